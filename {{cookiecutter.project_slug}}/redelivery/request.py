"""In the worker: what interrupted a delivery, as far as the main process sees it.

Celery sends no signal for a killed pool process whose message goes back, and two for one hard time limit (measured);
so this looks where Celery itself decides what becomes of the message.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import request

from redelivery import broker, kills, recorder

HARD_LIMIT = "hard time limit"


class Request(request.Request):
    """Celery's request of a task, which in addition has every interrupted delivery recorded once."""

    _cause = ""
    _requeued = False

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Called by the pool when a limit passes."""
        if soft:
            super().on_timeout(soft, timeout)
        else:
            self._interrupted(HARD_LIMIT, lambda: super(Request, self).on_timeout(soft, timeout))

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Called when the task raised, and when its process was lost or its hard limit passed."""
        self._interrupted(
            "" if self._already_revoked or self._already_cancelled else cause_of(exc_info.exception),
            lambda: super(Request, self).on_failure(exc_info, send_failed_event, return_ok),
        )

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Called for what still runs in a cold shutdown, and, if the project wants that, when the broker is lost."""
        lost = self.task.acks_late and emit_retry  # so Celery tells the two apart
        self._requeued = self.task.acks_late  # by the close of the channel that follows
        self._interrupted(
            "connection lost" if lost else "cold shutdown",
            lambda: super(Request, self).cancel(pool, signal, emit_retry),
        )

    def reject(self, requeue: bool = False) -> None:
        """Give the message back, or drop it."""
        self._requeued = self._requeued or (requeue and not self.acknowledged)
        super().reject(requeue)

    def _interrupted(self, cause: str, settle: Callable[[], None]) -> None:
        """Have Celery settle a message, and see to it that there is one record if something interrupted its task.

        The transport records what it gives back. What was acknowledged before, or is now, is recorded here.
        """
        if not cause or self._cause:
            settle()
            return
        self._cause = cause
        ours = None if self.acknowledged else broker.current()
        if ours is not None:
            ours.note_cause(self.message.delivery_tag, cause)
        settle()
        if ours is None or not self._requeued:
            recorder.later(kills.interrupted(self, cause, "redelivered" if self._requeued else "acked"))


def cause_of(error: BaseException) -> str:
    """What interrupted a task that ended with this exception; empty when nothing did."""
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    if isinstance(error, TimeLimitExceeded):
        return HARD_LIMIT
    if isinstance(error, SystemExit):  # as billiard reports a child that is about to exit
        return _exited(error.code if isinstance(error.code, int) else int(error.code is not None))
    if isinstance(error, KeyboardInterrupt):
        return _exited(-signal.SIGINT)
    if isinstance(error, WorkerLostError):
        found = re.search(r"(signal|exitcode) (-?\d+)", str(error))
        if found is None:
            return "child lost"
        return _exited(int(found[2]) * (-1 if found[1] == "signal" else 1))
    return ""


def _exited(status: int) -> str:
    """The status of an ended child in words; billiard's children exit with -241 after SIGTERM (measured)."""
    if status >= 0:
        return f"child exited with {status}"
    number = -status if -status < 128 else 256 + status
    try:
        return f"child killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"child killed by signal {number}"
