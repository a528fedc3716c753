"""Retries of late-ack tasks survive a broker that is away.

Celery publishes a retry as a new message. When the broker does not take it, Celery rejects the message at
hand, and what ``ack = "late"`` promises is lost: measured with a Redis that was paused and one that was full.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import OperationalError

from redelivery import log

#: Seconds for which a task tries again to publish its retry, before it gives its message back.
PATIENCE_S = 30
FIRST_PAUSE_S = 0.5

#: What may go away by itself; kombu makes an OperationalError of all that a broker may answer. Any other error,
#: as of arguments that are not JSON, would come back at each delivery, so that one is left to Celery.
PASSING = (OperationalError, SoftTimeLimitExceeded)


def around(retry: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper for the ``retry`` of a task; Celery puts it there by an ``@`` annotation.

    ``autoretry_for`` calls it as well. A message that is given back runs from the beginning, as after a kill,
    and it may come at once, from a broker that takes nothing and still hands out messages: so the waiting comes
    before it. The soft time limit cuts it short, so that a stop of the worker takes no longer than it may.

    When the main process cannot give the message back either, it stays unacknowledged and is delivered again
    after the visibility timeout (``redelivery.settle``).
    """

    @functools.wraps(retry)
    def kept(self: Any, *args: Any, **options: Any) -> Any:
        end, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            try:
                return retry(self, *args, **options)
            except Reject as reject:
                if reject.requeue or not isinstance(reject.reason, PASSING):
                    raise
                reason = reject.reason
            left_s = end - time.monotonic()
            if left_s <= 0 or isinstance(reason, SoftTimeLimitExceeded):
                break
            if pause_s == FIRST_PAUSE_S:
                log.unpublished(self.request, f"waits for the broker, its retry was not published: {reason}")
            if not _slept(min(pause_s, left_s)):
                break
            pause_s *= 2
        log.unpublished(self.request, f"its message is given back, the retry was not published: {reason}")
        raise Reject(reason, requeue=True)

    return kept


def _slept(seconds: float) -> bool:
    """Pause; False when the soft time limit cut it short."""
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        return False
    return True
