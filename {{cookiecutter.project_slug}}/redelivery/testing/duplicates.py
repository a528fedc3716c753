"""Deliver a task twice without killing it: twins at a barrier, a second message, a flushed cache."""

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from redelivery.testing.children import Child
from redelivery.testing.crashmap import CrashMap
from redelivery.testing.killer import Killer
from redelivery.testing.messages import Message
from redelivery.testing.points import Point

# Twins that make no progress for so long wait for each other (one may hold a row lock that the other needs).
QUIET_S = 0.7


@dataclass(frozen=True)
class Duplicates:
    """Effects of one call, seen from outside, after two deliveries of different kinds."""

    twins: int
    second_message: int
    flushed_cache: int


def deliver_twice(killer: Killer, crash_map: CrashMap) -> Duplicates:
    """Try all three kinds on the task of a drawn crash map."""
    return Duplicates(
        twins=twins(killer, killer.around_the_effect(crash_map.path)[0].point),
        second_message=second_message(killer),
        flushed_cache=flushed_cache(killer),
    )


def twins(killer: Killer, barrier: Point) -> int:
    """Hold two deliveries of one message before the effect, let both go at once, and count.

    A delivery that ends, or waits for the other, before it gets there does not hold the other up.
    """
    message, *waiting = killer.before(barrier)
    gate_reading, gate_writing = os.pipe()
    twins = (message, message.again())
    children = [killer.stop_at(twin, barrier, lambda: os.read(gate_reading, 1)) for twin in twins]
    wait_until_held(children)
    # Not only closed: a twin that is not at the gate yet holds the other end open, too.
    os.write(gate_writing, b"." * len(children))
    os.close(gate_reading)
    os.close(gate_writing)
    for child in children:
        killer.end_of(child)
    killer.deliver([*waiting, *killer.published()])
    return killer.count()


def wait_until_held(children: list[Child]) -> None:
    """Return when each child is at the barrier or has ended, or when none has moved for a while."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        moving = [child for child in children if not child.closed and not child.reports]
        if not moving:
            return
        for child in moving:
            if child.read(0.01):
                quiet_since = time.monotonic()


def second_message(killer: Killer) -> int:
    """Deliver two messages of the same call, as a sweep or a user's double click would send them, and count."""
    message = killer.fresh_message()
    deliver_apart(killer, message, replace(message, id=str(uuid.uuid4())))
    return killer.count()


def flushed_cache(killer: Killer) -> int:
    """Deliver, flush every cache, deliver again, and count."""
    message = killer.fresh_message()
    deliver_apart(killer, message, message.again(), between=killer.world.flush_caches)
    return killer.count()


def deliver_apart(
    killer: Killer, first: Message, second: Message, between: Callable[[], None] = lambda: None
) -> None:
    """Deliver two messages one after the other, in two processes: what one keeps in memory, the other must not find."""
    killer.deliver([first])
    killer.runner.stop()
    between()
    killer.deliver([second])
