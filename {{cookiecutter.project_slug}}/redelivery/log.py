"""One log line a task event: the task, its id, whether it was redelivered, and what its guard decided."""

from __future__ import annotations

import logging
from typing import Any

from celery import signals
from celery.exceptions import TimeLimitExceeded

logger = logging.getLogger("redelivery")


class TaskContext(logging.Filter):
    """Give each record ``task``, ``task_id`` and ``redelivered`` (``yes``, ``no``); all ``-`` outside of a task."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "redelivered"):
            record.__dict__.update(_context(_current_request()))
        return True


def guard(decision: str, text: str) -> None:
    """Log what the guard of the running task decided: ``guard("skip", "already sent; skipping redelivery")``."""
    logger.info("guard %s: %s", decision, text, extra={**_context(_current_request()), "guard": decision})


def connect() -> None:
    """Log task events from now on; called by ``redelivery.setup``. Calling it twice changes nothing."""
    signals.task_prerun.connect(_started, weak=False, dispatch_uid="redelivery.log.started")
    signals.task_postrun.connect(_finished, weak=False, dispatch_uid="redelivery.log.finished")
    signals.task_retry.connect(_retry, weak=False, dispatch_uid="redelivery.log.retry")
    signals.task_failure.connect(_failed, weak=False, dispatch_uid="redelivery.log.failed")


def _started(sender: Any = None, **_: Any) -> None:
    _write(logging.INFO, sender.request, "started")


def _finished(sender: Any = None, state: str | None = None, **_: Any) -> None:
    """Log a success. Retries and failures have lines of their own; state None means that the process was killed."""
    if state == "SUCCESS":
        _write(logging.INFO, sender.request, "finished")


def _retry(sender: Any = None, request: Any = None, reason: Any = None, **_: Any) -> None:
    _write(logging.WARNING, request, "will be retried: %s", reason)


_last_timed_out = ""


def _failed(sender: Any = None, task_id: str = "", exception: BaseException | None = None, **_: Any) -> None:
    """Log a failure, a hard time limit once: Celery sends the signal for that twice (measured)."""
    global _last_timed_out
    if isinstance(exception, TimeLimitExceeded):
        if task_id == _last_timed_out:
            return
        _last_timed_out = task_id
    request = sender.request if sender.request.id == task_id else None
    context = _context(request) if request else {"task": sender.name, "task_id": task_id, "redelivered": "-"}
    logger.error(
        "%s[%s] redelivered=%s failed: %r",
        context["task"],
        context["task_id"],
        context["redelivered"],
        exception,
        extra=context,
    )


def _write(level: int, request: Any, text: str, *args: Any) -> None:
    if logger.isEnabledFor(level):
        context = _context(request)
        logger.log(
            level,
            "%s[%s] redelivered=%s " + text,
            context["task"],
            context["task_id"],
            context["redelivered"],
            *args,
            extra=context,
        )


def _current_request() -> Any:
    from celery import current_task

    return current_task.request if current_task else None


def _context(request: Any) -> dict[str, str]:
    if request is None or not request.id:
        return {"task": "-", "task_id": "-", "redelivered": "-"}
    redelivered = (request.delivery_info or {}).get("redelivered")
    return {"task": request.task or "-", "task_id": request.id, "redelivered": "yes" if redelivered else "no"}
