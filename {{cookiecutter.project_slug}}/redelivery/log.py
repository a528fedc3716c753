"""One log line a task event: the task, its id, which delivery it is, and what its guard decided."""

from __future__ import annotations

import logging
from typing import Any

from celery import signals
from celery.exceptions import TimeLimitExceeded

from redelivery import kills

logger = logging.getLogger("redelivery")


class TaskContext(logging.Filter):
    """Give each record what a format may show of the running task.

    ``task``, ``task_id``, ``redelivered`` (``yes`` or ``no``), ``delivery`` (its number, from 1 on; ``?`` where the
    broker does not count them) and ``guard`` (what it decided) are ``-`` outside of a task. ``context`` is all of
    them in one, such as ``app.send[id] redelivered=no delivery=1 guard=run: ``; it is empty outside of a task, and
    for lines that name the task themselves: this module's, and Celery's own.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "context"):
            return True  # another handler's filter was here
        record.context = ""
        if not hasattr(record, "redelivered"):
            context = _context(_current_request())
            record.__dict__.update(context)
            if context["task_id"] != "-" and not record.name.startswith("celery."):
                record.context = f"{_prefix(context)}: "
        return True


def guard(decision: str, text: str) -> None:
    """Log what the guard of the running task decided: ``guard("skip", "already sent")``."""
    decided(decision)
    if request := _current_request():
        _write(logging.INFO, request, "%s", text)


def decided(decision: str) -> None:
    """Note what the guard of the running task decided; from now on the task's lines show it."""
    if request := _current_request():
        request.redelivery_guard = decision


def connect() -> None:
    """Log task events from now on; called by ``redelivery.setup``. Calling it twice changes nothing."""
    signals.task_prerun.connect(_started, weak=False, dispatch_uid="redelivery.log.started")
    signals.task_postrun.connect(_finished, weak=False, dispatch_uid="redelivery.log.finished")
    signals.task_retry.connect(_retry, weak=False, dispatch_uid="redelivery.log.retry")
    signals.task_failure.connect(_failed, weak=False, dispatch_uid="redelivery.log.failed")


def _started(sender: Any = None, **_: Any) -> None:
    _write(logging.INFO, sender.request, "started")


def _finished(sender: Any = None, state: str | None = None, **_: Any) -> None:
    """Log a success. Retries and failures have lines of their own; state None: the process was killed."""
    if state == "SUCCESS":
        _write(logging.INFO, sender.request, "finished")


def _retry(sender: Any = None, request: Any = None, reason: Any = None, **_: Any) -> None:
    _write(logging.WARNING, request, "will be retried: %s", reason)


_last_timed_out = ""


def _failed(sender: Any = None, task_id: str = "", exception: BaseException | None = None, **_: Any) -> None:
    """Log a failure, a hard time limit once: Celery sends the signal for that twice if it acknowledges (measured)."""
    global _last_timed_out
    if isinstance(exception, TimeLimitExceeded) and sender.acks_on_timeout:
        if task_id == _last_timed_out:
            return
        _last_timed_out = task_id
    request = sender.request if sender.request.id == task_id else None
    context = _context(request) if request else {**NO_TASK, "task": sender.name, "task_id": task_id}
    logger.error("%s failed: %r", _prefix(context), exception, extra=context)


def unpublished(request: Any, text: str) -> None:
    """Log what becomes of a task whose retry the broker did not take."""
    _write(logging.WARNING, request, "%s", text)


def _write(level: int, request: Any, text: str, *args: Any) -> None:
    if logger.isEnabledFor(level):
        context = _context(request)
        logger.log(level, "%s " + text, _prefix(context), *args, extra=context)


def _prefix(context: dict[str, str]) -> str:
    decision = "" if context["guard"] == "-" else f" guard={context['guard']}"
    delivery = f"redelivered={context['redelivered']} delivery={context['delivery']}"
    return f"{context['task']}[{context['task_id']}] {delivery}{decision}"


def _current_request() -> Any:
    from celery import current_task

    return current_task.request if current_task else None


NO_TASK = {"task": "-", "task_id": "-", "redelivered": "-", "delivery": "-", "guard": "-"}


def _context(request: Any) -> dict[str, str]:
    if request is None or not request.id:
        return NO_TASK
    redelivered = (request.delivery_info or {}).get("redelivered")
    return {
        "task": request.task or "-",
        "task_id": request.id,
        "redelivered": "yes" if redelivered else "no",
        "delivery": str(kills.delivery(request.headers or {}, redelivered) or "?"),
        "guard": getattr(request, "redelivery_guard", "-"),
    }
