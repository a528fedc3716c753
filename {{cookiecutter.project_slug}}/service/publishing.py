"""Publish a task from a web request: within a bounded time, and without ever failing the request."""

import logging

from celery import Task
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def publish(task: Task, *args: str) -> bool:
    """Publish a task and return whether the broker took it; when it did not, log that and return False.

    Call it after the commit (`transaction.on_commit`), and let a sweep publish what it could not. How long it
    may take is set in settings/celery.py: less than 3 s with a broker that is down or paused.
    """
    try:
        task.apply_async(args)
    except OperationalError as error:
        logger.warning("%s(%s) was not published, the broker is away: %s", task.name, ", ".join(args), error)
        return False
    return True
