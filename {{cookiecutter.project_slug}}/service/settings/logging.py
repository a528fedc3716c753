"""Logs: one line an event; in a task with its name, its id, whether it was delivered again, and its guard."""

from service.settings.env import env

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"task": {"()": "redelivery.log.TaskContext"}},
    "formatters": {
        "line": {"format": "{asctime} {levelname} {name} {context}{message}", "style": "{"},
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
