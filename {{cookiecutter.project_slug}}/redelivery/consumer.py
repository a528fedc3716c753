"""Celery's consumer, which asks the holder before a message that waited for its eta starts, and ends it at the end.

What the code cannot make sense of is parked, where Celery would drop it. Celery's own code runs after that: its log
lines and signals stay, and its ``reject`` or ``ack`` finds nothing any more.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state
from celery.worker.consumer import Consumer as CeleryConsumer

from redelivery import broker, kills


class Consumer(CeleryConsumer):
    """The consumer of a worker whose messages have leases."""

    def apply_eta_task(self, task: Any) -> None:
        """Run a task whose eta has come, unless its message was given back or lost meanwhile."""
        if _may_start(task):
            super().apply_eta_task(task)

    def _limit_post_eta(self, request: Any, bucket: Any, tokens: int) -> None:
        if _may_start(request):
            super()._limit_post_eta(request, bucket, tokens)

    def create_task_handler(self, *args: Any, **options: Any) -> Any:
        """Handle messages, and park one that would end the worker: of a body such as ``7`` (measured)."""
        handle = super().create_task_handler(*args, **options)

        def handle_or_park(message: Any) -> None:
            try:
                handle(message)
            except kills.BROKEN as error:
                if any(request.message is message for request in state.reserved_requests):
                    raise  # it is understood, and on its way to the pool
                self.on_invalid_task(None, message, error)

        return handle_or_park

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """Park a message whose task this release does not have."""
        _park(message, f"no task of this name: {exc}")
        super().on_unknown_task(body, message, exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Park what is no message of a task."""
        _park(message, "not a message of Celery's")
        super().on_unknown_message(body, message)

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """Park a message of a task that lacks something."""
        _park(message, f"not a task message: {exc!r}")
        super().on_invalid_task(body, message, exc)

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        """Park a message whose body cannot be decoded."""
        _park(message, f"cannot be decoded: {exc}")
        super().on_decode_error(message, exc)

    def shutdown(self) -> None:
        """The pool has ended: give back what is left, then close the connection."""
        if ours := broker.current():
            for tag, waits in ours.held.copy().items():
                if (
                    not waits
                ):  # seen after SIGTERM to all: the pool has not said any more that its process is gone
                    ours.causes.setdefault(tag, "child lost as the worker ended")
            ours.end()
        super().shutdown()


def _may_start(request: Any) -> bool:
    ours = broker.current()
    return ours is None or ours.start(request.message.delivery_tag)


def _park(message: Any, reason: str) -> None:
    if ours := broker.current():
        ours.park(message.delivery_tag, reason)
