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
        if _mark(task, waits=False):
            super().apply_eta_task(task)

    def _limit_task(self, request: Any, bucket: Any, tokens: int) -> Any:
        _mark(request, waits=True)  # for its rate limit
        return super()._limit_task(request, bucket, tokens)

    def _limit_move_to_pool(self, request: Any) -> None:
        if _mark(request, waits=False):
            super()._limit_move_to_pool(request)

    def on_close(self) -> None:
        """The connection is lost, and Celery drops what it holds: give back what no pool process has.

        Celery would also forget what a process has been given and has not confirmed yet: it would run, uncounted.
        """
        jobs = self.pool._pool._cache
        for job in list(jobs.values()):
            job._accepted = job._accepted or job._write_to is not None
        super().on_close()
        if ours := broker.current():
            kept = {job._accept_callback.__self__.message.delivery_tag for job in list(jobs.values())}
            ours.drop(keep=kept - ours.causes.keys())

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
            for tag, waits in ours.held.items():
                if not waits:  # seen after SIGTERM to all: the pool has not said yet that its process is gone
                    ours.causes.setdefault(tag, "child lost as the worker ended")
            ours.end()
        super().shutdown()


def _mark(request: Any, waits: bool) -> bool:
    ours = broker.current()
    return ours is None or ours.mark(request.message.delivery_tag, waits)


def _park(message: Any, reason: str) -> None:
    if ours := broker.current():
        ours.park(message.delivery_tag, reason)
