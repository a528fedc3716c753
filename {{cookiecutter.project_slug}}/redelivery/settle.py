"""In the worker, without leases: an acknowledgement that Redis does not take costs a second run, and not the worker.

kombu counts such a message as held for good. A worker of one process then takes no message any more, and says
nothing: measured with a Redis that was paused, while a task ended, for longer than the socket timeout. A
message that is given back to a Redis that is full ends the worker (measured).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from celery import signals
from kombu.transport import virtual

logger = logging.getLogger("redelivery")


def connect() -> None:
    """Look after every message that a worker of this process receives; where it has no leases."""
    signals.task_received.connect(_look_after, weak=False, dispatch_uid="redelivery.settle")


def _look_after(request: Any = None, **_: Any) -> None:
    """Once for each channel, not for each message: a wrapper in a message is a cycle that only a collection frees."""
    held = getattr(request.message.channel, "qos", None)
    if isinstance(held, virtual.QoS) and "ack" not in vars(held):
        # Of Redis and its like; AMQP brokers do the counting themselves.
        held.ack = _settled("ack", held.ack, held)
        held.reject = _settled("reject", held.reject, held)


def _settled(name: str, method: Callable[..., None], held: virtual.QoS) -> Callable[..., None]:
    """Have a message no longer counted when the broker does not take its ``ack`` or ``reject``."""

    @functools.wraps(method)
    def settle(delivery_tag: str, *args: Any, **options: Any) -> None:
        headers = getattr(held._delivered.get(delivery_tag), "headers", None) or {}
        try:
            method(delivery_tag, *args, **options)
        except Exception as error:  # a client has more kinds of them than kombu lists
            virtual.QoS.ack(held, delivery_tag)
            logger.error(
                "%s[%s]: the broker did not take its %s; it may be delivered again after the visibility timeout: %s",
                *(headers.get("task"), headers.get("id"), name, error),
            )

    return settle
