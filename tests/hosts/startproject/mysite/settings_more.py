# What the project's authors have added to the settings that startproject wrote.

INSTALLED_APPS += ["shop"]

CELERY_BROKER_URL = "redis://127.0.0.1:6379/0"
CELERY_TASK_ACKS_LATE = False
CELERY_TASK_TIME_LIMIT = 30 * 60
CELERY_TASK_ROUTES = {"shop.tasks.count_visit": {"queue": "low-priority", "priority": 9}}
CELERY_TASK_ANNOTATIONS = {"shop.tasks.count_visit": {"rate_limit": "10/s", "time_limit": 30}}
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 43200}
CELERY_BEAT_SCHEDULE = {
    "forget-visits": {
        "task": "shop.forget-visits",
        "schedule": 3600,
        "options": {"queue": "nightly", "expires": 600},
    },
}
