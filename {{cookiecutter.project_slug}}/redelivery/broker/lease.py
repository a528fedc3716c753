"""The thread of a worker that renews its leases, and gives back the messages of workers that no longer do."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

from redelivery.broker import giveback

if TYPE_CHECKING:
    from redelivery.broker.holder import Holder

logger = logging.getLogger("redelivery")
#: Ticks for each lease, at most seconds between two, and seconds that the last one may take.
TICKS, LONGEST_TICK_S, END_S = 12, 1.0, 10.0


class Thread(threading.Thread):
    """Renews three times in ``lease_s`` seconds, looks each second; ``stock_s`` is for messages without a lease."""

    def __init__(self, holder: Holder, lease_s: float, stock_s: float) -> None:
        super().__init__(name="redelivery.lease", daemon=True)
        self.holder, self.lease_s, self.stock_s = holder, lease_s, stock_s
        self.ended, self._trouble = False, ""
        self.tick_s, self._renewed = min(lease_s / TICKS, LONGEST_TICK_S), 0.0

    def run(self) -> None:
        """Tick each second, and tell Redis at once what is settled."""
        ticked = 0.0
        while not self.ended:
            with suppress(Empty):
                self.holder.bell.get(timeout=self.tick_s)
                while True:
                    self.holder.bell.get_nowait()
            if time.monotonic() - ticked >= self.tick_s or self.holder.draining:
                ticked = time.monotonic()
                self._try(self._tick)
            self._try(self.holder.flush)

    def end(self) -> None:
        """Give back all that is left, and end."""
        self.ended = True
        self.holder.bell.put(None)
        self.join(END_S)
        self._try(self.holder.flush)
        self._try(lambda: giveback.release(self.holder))
        self._try(lambda: giveback.forget(self.holder))

    def renewed(self, tags: list[str]) -> tuple[list[str], list[Any]]:
        """Renew leases; returns the tags of those that are lost, and what ran out of anybody's."""
        holder = self.holder
        pairs = [value for tag in tags for value in (tag, int(holder.held.get(tag, False)))]
        lost, out = holder.renew(args=[holder.prefix, holder.worker, self.lease_s, self.stock_s, *pairs])
        return [tag.decode() for tag in lost], out

    def _tick(self) -> None:
        holder = self.holder
        if holder.draining:
            giveback.release(holder, keep={tag for tag, waits in holder.held.copy().items() if not waits})
        due = time.monotonic() - self._renewed > self.lease_s / 3
        begun = time.monotonic()
        lost, out = self.renewed([*holder.held.copy(), *holder.done.copy()] if due else [])
        self._renewed, self._trouble = begun if due else self._renewed, ""
        for tag in lost:
            if holder.held.pop(tag, None) is not None:
                logger.error("redelivery: another worker took message %s over while it was held here", tag)
        giveback.give_back_expired(holder, out)
        if due or holder.draining:
            giveback.announce(holder)

    def _try(self, step: Any) -> None:
        try:
            step()
        except Exception as error:  # the thread must outlive whatever Redis says
            if repr(error) != self._trouble:
                logger.warning("redelivery: Redis does not take it, this goes on being tried: %r", error)
            self._trouble = repr(error)
