"""Logs: one line an event; in a task with its name, its id, whether it was delivered again, and its guard."""

from logging import getLevelNamesMapping

from service.settings.env import env, refuse

LEVEL = env.str("LOG_LEVEL", default="INFO").upper()
if LEVEL not in getLevelNamesMapping():
    refuse("LOG_LEVEL", f"is {LEVEL!r}: write DEBUG, INFO, WARNING or ERROR.")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"task": {"()": "redelivery.log.TaskContext"}},
    "formatters": {
        "line": {"format": "{asctime} {levelname} {name} {context}{message}", "style": "{"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "filters": ["task"], "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LEVEL},
    "loggers": {
        # Django gives its own logger handlers of its own; here all lines have one form.
        "django": {"handlers": [], "level": "INFO"},
        # Successes and retries have a line from `redelivery` already.
        "celery.app.trace": {"level": "WARNING"},
    },
}
