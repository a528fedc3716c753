"""What one worker process holds, and how it is settled. It outlives connections and channels."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import redis
from celery.worker import state

from redelivery.broker import giveback, lease

#: Seconds for which the holder's own commands may wait for Redis.
SOCKET_S = 2.0
COMMON, *TEXTS = (
    Path(__file__).with_name(f"{name}.lua").read_text() for name in ("common", "take", "lease", "give_back")
)


class Holder:
    """The messages of this process. The main thread says what becomes of them; ``lease.Thread`` tells Redis."""

    def __init__(self, node: str) -> None:
        self.node, self.pid = node, os.getpid()
        #: This life of the process, as leases name it.
        self.worker = f"{node.replace(' ', '_')}:{self.pid}:{uuid4().hex[:8]}"
        #: What is not settled: tag -> whether it still waits for its eta; oldest first.
        self.held: dict[str, bool] = {}
        #: What is settled here, and Redis does not know it yet. None: the message is to be removed.
        self.done: dict[str, giveback.Return | None] = {}
        #: What killed the run of a message, noted before it is rejected.
        self.causes: dict[str, str] = {}
        self.draining = False
        self.lock, self.bell = threading.Lock(), SimpleQueue()
        self.thread: lease.Thread | None = None

    def attach(self, channel: Any) -> None:
        """Use the Redis of a new consumer channel, and give back what is not running: Celery has dropped it."""
        pool = channel._get_pool()
        pool.connection_kwargs.update(socket_timeout=SOCKET_S, socket_connect_timeout=SOCKET_S)
        self.channel, self.prefix = channel, channel.global_keyprefix
        self.client = redis.Redis(connection_pool=pool)
        self.take, self.renew, self.give_back = (self.client.register_script(COMMON + text) for text in TEXTS)
        giveback.announce(self)
        giveback.release(self, keep={request.message.delivery_tag for request in state.active_requests})
        if self.thread is None:
            options = channel.connection.client.transport_options
            self.thread = lease.Thread(self, options["lease_s"], options["stock_visibility_s"])
            self.thread.start()

    def key(self, name: str) -> str:
        """The whole name of one of our keys, such as ``kills``."""
        return f"{self.prefix}redelivery.{name}"

    def add(self, tag: str, waits: bool) -> bool:
        """Hold a message; False when a drain has begun, and it must not run."""
        with self.lock:
            if not self.draining:
                self.held[tag] = waits
            return not self.draining

    def start(self, tag: str) -> bool:
        """Whether a message that has waited may run now; its lease no longer says that it waits."""
        with self.lock:
            if tag not in self.held:
                return False
            self.held[tag] = False
        with suppress(redis.RedisError, OSError):  # then the thread renews it, or finds it lost
            return tag not in self.thread.renewed([tag])[0]
        return True

    def note_cause(self, tag: str, cause: str) -> None:
        """Say what killed the run of a message, before it is rejected."""
        self.causes[tag] = cause

    def park(self, tag: str, reason: str) -> bool:
        """Take a message out of its queue, for an operator to look at."""
        self.settle(tag, True, reason)
        return True

    def settle(self, tag: str, requeue: bool = False, reason: str = "") -> None:
        """Remove a message (a run that is complete is complete, whoever holds it now), put it back, or park it."""
        back = giveback.Return(not self.held.pop(tag, False), self.causes.pop(tag, ""), reason)
        self.done.setdefault(tag, back if requeue else None)
        self.bell.put(None)

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
