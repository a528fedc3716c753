"""What one worker process holds, and how it is settled. It outlives connections and channels."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import redis
from kombu.transport import virtual
from kombu.utils.json import loads

from redelivery import kills, recorder
from redelivery.broker import giveback, lease

COMMON, *TEXTS = (
    Path(__file__).with_name(f"{name}.lua").read_text() for name in ("common", "take", "lease", "give_back")
)


class Holder:
    """The messages of this process. The main thread says what becomes of them; ``lease.Thread`` tells Redis."""

    def __init__(self, node: str) -> None:
        self.pid = os.getpid()
        #: This life of the process, as leases name it.
        self.worker = kills.name_worker(node, self.pid)
        #: What is not settled: tag -> whether it waits, and has not started; oldest first.
        self.held: dict[str, bool] = {}
        #: What is settled here, and Redis does not know it yet. None: the message is to be removed.
        self.done: dict[str, giveback.Return | None] = {}
        #: What killed the run of a message, noted before it is rejected.
        self.causes: dict[str, str] = {}
        self.draining = False
        #: Rings for the thread. Not an event: a signal handler rings it, too.
        self.lock, self.bell = threading.Lock(), SimpleQueue()
        self.thread: lease.Thread | None = None

    def attach(self, channel: Any) -> None:
        """Use the Redis of a new consumer channel, with connections of this holder's own."""
        self.channel, self.prefix = channel, channel.global_keyprefix
        self.client = redis.Redis(connection_pool=channel._get_pool())
        self.take, self.renew, self.give_back = (self.client.register_script(COMMON + text) for text in TEXTS)
        self.client.script_load(self.take.script)
        giveback.give_back_unheard(self)
        if self.thread is None:
            options = channel.connection.client.transport_options
            self.thread = lease.Thread(self, options["lease_s"], options["stock_visibility_s"])
            self.thread.start()

    def key(self, name: str) -> str:
        """The whole name of one of our keys, such as ``kills``."""
        return f"{self.prefix}redelivery.{name}"

    def receive(self, channel: Any, key: bytes, tag: bytes, text: bytes, state: bytes) -> bool:
        """Hold what ``take.lua`` has taken, and deliver it; returns whether it did.

        What the script could not read is parked already; what nobody else can read is parked here.
        """
        if state == b"parked":
            kills.log_parked(text.decode(errors="replace"))
            recorder.wake()
            return True
        tag, queue = tag.decode(), key.decode()[len(self.prefix) :].rsplit(channel.sep, 1)[0]
        with self.lock:
            if self.draining:
                return False  # it has begun meanwhile, and the thread gives this back
            self.held[tag] = state == b"waits"
        channel._queue_cycle.rotate(queue)
        try:
            message = loads(text.decode())
            message["properties"]["delivery_tag"] = tag
            channel.connection._deliver(message, queue)
        except Exception as error:
            if tag in channel.qos._delivered:
                raise  # it could be read: the error is the consumer's
            self.park(tag, f"it cannot be decoded: {error!r}")
        return True

    def mark(self, tag: str, waits: bool) -> bool:
        """Say that a message waits, or that it starts; False when it is not this worker's any more, and must not."""
        with self.lock:
            if tag not in self.held:
                return False
            self.held[tag] = waits
        with suppress(redis.RedisError, OSError):  # then the thread renews it, or finds it lost
            return tag not in self.thread.renewed([tag])[0]
        return True

    def note_cause(self, tag: str, cause: str) -> None:
        """Say what killed the run of a message, before it is rejected."""
        self.causes[tag] = cause

    def park(self, tag: str, reason: str) -> None:
        """Take a message out of its queue, for an operator to look at."""
        self.settle(tag, True, reason)

    def settle(self, tag: str, requeue: bool = False, reason: str = "") -> None:
        """Remove a message (a run that is complete is complete, whoever holds it now), put it back, or park it."""
        back = giveback.Return(not self.held.get(tag, False), self.causes.pop(tag, ""), reason)
        self.done.setdefault(tag, back if requeue else None)
        self.held.pop(tag, None)
        self.bell.put(None)

    def drop(self, keep: Collection[str] = (), waiting: bool = False) -> None:
        """Give back all (that is ``waiting``) but ``keep``, the oldest last: it is taken first again.

        Without a cause it has not started.
        """
        with self.lock:
            held = [tag for tag, waits in self.held.copy().items() if waits or not waiting]
            for tag in reversed(held):
                if tag not in keep:
                    self.held[tag] = tag not in self.causes
                    self.settle(tag, requeue=True)

    def flush(self) -> None:
        """Tell Redis what is settled."""
        done = self.done.copy()
        if acks := [tag for tag, back in done.items() if back is None]:
            with self.client.pipeline() as pipe:
                pipe.zrem(f"{self.prefix}unacked_index", *acks).hdel(f"{self.prefix}unacked", *acks)
                pipe.hdel(self.key("leases"), *acks).execute()
        for tag, back in done.items():
            if back is not None:
                giveback.give_back(self, tag, back)
            self.done.pop(tag, None)

    def drain(self) -> None:
        """Take nothing from now on, and give back what has not started. Safe in a signal handler."""
        self.draining = True
        self.bell.put(None)

    def end(self) -> None:
        """Give back whatever is left; for a worker whose pool has ended."""
        self.draining = True
        if self.thread:
            self.thread.end()
            self.drop()
            with suppress(redis.RedisError, OSError):  # then it comes back when its lease runs out
                self.flush()
                giveback.give_back_unheard(self)


class QoS(virtual.QoS):
    """How kombu settles: a channel counts what it holds, and the rest is the holder's, which outlives it."""

    restore_at_shutdown = False

    def can_consume(self) -> bool:
        """Whether there is room; in a drain there is none."""
        return not self.channel.holder.draining and super().can_consume()

    def ack(self, delivery_tag: str) -> None:
        """Have a message removed."""
        self.reject(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a message removed, or put back."""
        self.channel.holder.settle(delivery_tag, requeue)
        super().ack(delivery_tag)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Have the channel poll again, unless an answer is outstanding; kombu calls this once a second."""
        if not self.channel._brpop_sent_at:
            self.channel._in_poll = None
