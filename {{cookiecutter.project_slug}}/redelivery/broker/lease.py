"""The thread of a worker that tells Redis what is settled, renews leases, and gives back those of dead workers."""

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
        self.tick_s, self.ended, self._trouble = min(lease_s / TICKS, LONGEST_TICK_S), False, ""
        self._ticked = self._renewed = 0.0

    def run(self) -> None:
        """Settle whenever the bell rings, and tick each second."""
        while not self.ended:
            with suppress(Empty):
                self.holder.bell.get(timeout=self.tick_s)
            for step in (self.holder.flush, self._tick):
                try:
                    step()
                except Exception as error:  # the thread must outlive whatever Redis says
                    if repr(error) != self._trouble:
                        logger.warning("redelivery: Redis does not take it, tried again: %r", error)
                    self._trouble = repr(error)

    def end(self) -> None:
        """End after what it does now."""
        self.ended = True
        self.holder.bell.put(None)
        self.join(END_S)

    def renewed(self, tags: list[str]) -> tuple[list[str], list[Any]]:
        """Renew leases; returns the tags of those that are lost, and what ran out of anybody's."""
        holder = self.holder
        runs = "drains" if holder.draining else "runs"
        pairs = [text for tag in tags for text in (tag, "waits" if holder.held.get(tag) else runs)]
        lost, out = holder.renew(args=[holder.prefix, holder.worker, self.lease_s, self.stock_s, *pairs])
        return [tag.decode() for tag in lost], out

    def _tick(self) -> None:
        holder, begun = self.holder, time.monotonic()
        if begun - self._ticked < self.tick_s and not holder.draining:
            return
        self._ticked = begun
        if holder.draining:
            holder.drop(waiting=True)
            giveback.give_back_unheard(holder)
        due = holder.draining or begun - self._renewed > self.lease_s / 3
        lost, out = self.renewed([*holder.held.copy(), *holder.done.copy()] if due else [])
        self._renewed = begun if due else self._renewed
        for tag in lost:
            if holder.held.pop(tag, None) is not None:
                logger.error("redelivery: another worker took message %s over while it was held here", tag)
        giveback.give_back_expired(holder, out)
        self._trouble = ""
