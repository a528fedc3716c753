"""Make the end of a stop quick: four waits of Celery's, each of which may last longer than what it waits for.

When the last task has ended, a stock worker takes 2 to 5 s more (measured, prefork), and a host's shutdown, a restart
or a deploy waits for it. In the order of a stop:

1. The event loop may sleep for a second before it sees that a stop has begun: Python goes on polling after a signal.
2. Results are collected from one process after the other, with half a second for each that has none: with eight of
   them, the result of the last task may lie there for four.
3. A process that was told to end sleeps for a second, so that its parent can read that it ends. None reads it here.
4. The thread that fires timers meanwhile looks twice a second whether it may end.

Nothing is skipped: loops look more often, and the process sleeps for less. Where another Celery lacks one of these
names, its stop is as slow as ever.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from billiard import pool as billiard_pool
from celery import Celery, bootsteps, signals
from celery.concurrency import asynpool, prefork

#: The longest of these sleeps from then on, in seconds.
SLEEP_S = 0.05


class ShortSleeps:
    """The module ``time``, but for its ``sleep``: put in its place in a module that sleeps too long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep, but not for long."""
        time.sleep(min(seconds, SLEEP_S))


class Waker(bootsteps.StartStopStep):
    """Ends the poll that the event loop is in; Celery makes one for each worker."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signals.worker_shutting_down.connect(self._wake, weak=False, dispatch_uid="redelivery.stopping.wake")

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Celery calls this whenever its loop begins, also after a reconnect."""
        hub.add_reader(self._reader, self._read)

    def _wake(self, **_: Any) -> None:
        with suppress(BlockingIOError):  # full: it will wake up
            os.write(self._writer, b"!")

    def _read(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)


def connect(app: Celery) -> None:
    """Watch the workers of ``app``; called by ``redelivery.setup``."""
    app.steps["worker"].add(Waker)
    signals.worker_shutting_down.connect(_begins, weak=False, dispatch_uid="redelivery.stopping.begins")
    signals.worker_process_shutdown.connect(_ends, weak=False, dispatch_uid="redelivery.stopping.ends")


def _begins(**_: Any) -> None:
    """In the main process, for waits 2 and 4."""
    asynpool.sleep = ShortSleeps.sleep
    prefork.time = ShortSleeps()


def _ends(exitcode: int = 0, **_: Any) -> None:
    """In a pool process, for wait 3: only one that was told to end, not one that has run its number of tasks."""
    if exitcode in (billiard_pool.EX_OK, billiard_pool.EX_FAILURE):
        billiard_pool.time = ShortSleeps()
