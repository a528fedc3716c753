"""Logs: one line an event, with task, id, and whether it was delivered again ("-" outside of tasks)."""

from service.settings.env import env

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"task": {"()": "redelivery.log.TaskContext"}},
    "formatters": {
        "line": {
            "format": "{asctime} {levelname} {name} {task}[{task_id}] redelivered={redelivered} {message}",
            "style": "{",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "filters": ["task"], "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env.str("LOG_LEVEL", default="INFO")},
    "loggers": {
        # Django gives its own logger handlers of its own; here all lines have one form.
        "django": {"handlers": [], "level": "INFO"},
        # Successes and retries have a line from `redelivery` already.
        "celery.app.trace": {"level": "WARNING"},
    },
}
