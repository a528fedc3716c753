"""Tell systemd what a worker or beat does: ready, draining, alive. Without ``NOTIFY_SOCKET`` nothing happens.

A unit with ``Type=notify`` is started when its worker consumes, not when its process exists. Celery has no such
thing; this is the protocol of sd_notify(3): one datagram of ``NAME=value`` lines.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import Any

from celery import signals
from celery.worker import state as worker_state

from redelivery import broker

logger = logging.getLogger("redelivery")

#: Seconds between two looks; a watchdog interval shorter than three of them shortens it.
LOOK_EVERY_S = 2.0
#: Seconds without any move of the main process until the watchdog is left alone. kombu waits up to 30 s between
#: two attempts to connect, and the broker's socket timeout comes on top.
STILL_S = 60.0


def connect() -> None:
    """Take part when systemd started this process; called by ``redelivery.setup``.

    The variables leave the environment at once, so that neither pool processes nor what tasks start can speak for
    the unit.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    watchdog_us = os.environ.pop("WATCHDOG_USEC", "0")
    for_us = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    notifier = Notifier(address, int(watchdog_us) / 1e6 if for_us else 0.0)
    receivers = {
        signals.worker_init: notifier.starting,
        signals.worker_ready: notifier.consuming,
        signals.worker_shutting_down: notifier.draining,
        signals.worker_shutdown: notifier.drained,
        signals.beat_init: notifier.beating,
    }
    for signal, receiver in receivers.items():
        signal.connect(receiver, weak=False, dispatch_uid="redelivery.notify")


class Notifier:
    """One process's line to systemd.

    Args:
        address: the datagram socket; a leading ``@`` means the abstract namespace, nothing that nobody listens.
        watchdog_s: seconds after which systemd kills a silent process; 0 where the unit has no watchdog.
    """

    def __init__(self, address: str, watchdog_s: float) -> None:
        self.address = "\0" + address[1:] if address.startswith("@") else address
        self.pause_s = min(LOOK_EVERY_S, watchdog_s / 3) if watchdog_s else LOOK_EVERY_S
        self.consumer: Any = None
        self.drains = False
        self._drain = (0.0, 0, 0)  # since when, and how many tasks ran and were returned then
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.ticks = 0
        self._queues = ""
        self._status = ""
        self._last = (self._moves(), monotonic())

    def send(self, **fields: object) -> None:
        """Send fields such as ``READY=1``. A systemd that does not listen is logged, never raised."""
        if not self.address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(1)
                line.sendto(text.encode(), self.address)
        except OSError as error:
            logger.warning("systemd was not told %r: %s", text, error)

    def starting(self, **_: Any) -> None:
        """A worker starts: not ready before it consumes, however long the broker is away."""
        self.send(STATUS="starting: waits for the broker and its processes")

    def consuming(self, sender: Any = None, **_: Any) -> None:
        """A worker consumes for the first time (Celery sends ``worker_ready`` once, not after a reconnect)."""
        self.consumer = sender
        self._queues = ", ".join(sender.app.amqp.queues.consume_from)
        sender.timer.call_repeatedly(1, self._tick)
        self.send(READY=1, STATUS=self.status(), WATCHDOG=1)
        threading.Thread(target=self._watch, name="redelivery-notify", daemon=True).start()

    def draining(self, **_: Any) -> None:
        """A worker was told to stop: it takes nothing more, gives back what has not started, finishes what runs.

        Celery calls this in its signal handler, so the line is logged by the thread: the main one may be in a handler
        of its own, whose lock it holds.
        """
        self.drains, self._drain = True, (monotonic(), len(_running()), _waiting())
        self.send(STOPPING=1, STATUS=self.status())
        self._bell.put(None)

    def drained(self, **_: Any) -> None:
        """The pool has ended. The line is what tells a drain from a kill: exit status and systemd's Result do not."""
        if self.drains:
            logger.info("drained in %.1f s", monotonic() - self._drain[0])

    def beating(self, **_: Any) -> None:
        """Beat has read its schedule."""
        self.send(READY=1, STATUS="publishing")

    def status(self) -> str:
        """One line for ``systemctl status``, such as ``draining: 2 tasks, longest 41 s``."""
        running = _running()
        tasks = "no task" if not running else "1 task" if len(running) == 1 else f"{len(running)} tasks"
        longest = f", longest {time() - min(running):.0f} s" if running else ""
        if self.drains:
            return f"draining: {tasks}{longest}"
        if getattr(self.consumer, "connection", None) is None:
            return f"reconnecting to the broker: {tasks}{longest}"
        return f"consuming {self._queues}: {tasks}{longest}"

    def alive(self) -> bool:
        """Whether the main process consumes, is in a reconnect whose attempts are counted, or drains.

        A drain may take as long as the unit's ``TimeoutStopSec``: that is what ends it, not the watchdog.
        """
        moves, (before, since) = self._moves(), self._last
        if moves != before or self.drains:
            self._last = (moves, monotonic())
            return True
        return monotonic() - since < STILL_S

    def _tick(self) -> None:
        self.ticks += 1

    def _moves(self) -> tuple[int, ...]:
        """Numbers of which one grows while all is well: turns of the event loop, reconnects, and attempts at one."""
        counters = ("restart_count", "broker_connection_retry_attempt")
        return (self.ticks, *(getattr(self.consumer, name, 0) for name in counters))

    def _watch(self) -> None:
        """Feed the watchdog from a thread of its own: the event loop blocks while it reconnects, and ends at a stop."""
        said = False
        while True:
            with suppress(Empty):
                self._bell.get(timeout=self.pause_s)
            if self.drains and not said:
                said = True
                logger.info("draining: %d running, %d returned", *self._drain[1:])
            fields: dict[str, object] = {"WATCHDOG": 1} if self.alive() else {}
            if (status := self.status()) != self._status:
                fields["STATUS"] = self._status = status
            if fields:
                self.send(**fields)


def _waiting() -> int:
    """How many messages this worker holds that have not started: they go back to their queue."""
    if holder := broker.current():
        return sum(holder.held.copy().values())
    return len(worker_state.reserved_requests) - len(worker_state.active_requests)


def _running() -> list[float]:
    """When each task that runs began, as seconds since the epoch. The main thread may change the set meanwhile."""
    while True:
        try:
            return [request.time_start or time() for request in tuple(worker_state.active_requests)]
        except RuntimeError:
            continue
