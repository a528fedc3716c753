"""In the worker: a thread that moves records to the database, so that nothing else ever waits for one.

Records of interrupted deliveries come from two places: lists in the broker's Redis, filled by the scripts that give
messages back (``redelivery.broker``), and this process, for what the broker does not know of any more. What Redis holds
is removed there after the database took it, and stored once, whoever moves it and however often.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from celery import signals
from django.db import connections

from redelivery import kills

logger = logging.getLogger("redelivery")

#: Seconds between two looks for what dead workers left; what this process pushes is moved at once.
LOOK_S = 30
#: Seconds for which the end of a process waits for its last records.
LAST_S = 5
#: Items read at once, and records kept in memory while the database is away.
BATCH, MOST_IN_MEMORY = 100, 10_000

#: Seconds for which the start of a pool process waits for a record that is being written to SQLite.
FORK_S = 2

_recorder: Recorder | None = None
#: Held while this thread is at the database, and while a pool process is forked.
_at_database = threading.Lock()


def connect() -> None:
    """Record in the workers of this process; called by ``redelivery.setup``."""
    signals.worker_ready.connect(_start, weak=False, dispatch_uid="redelivery.recorder")


def wake() -> None:
    """Have the records moved that were just pushed to Redis; never blocks."""
    if _recorder is not None:
        _recorder.work.set()


def later(record: dict[str, Any]) -> None:
    """Have a record of this process written; never blocks."""
    if _recorder is not None:
        _recorder.records.append(record)
        _recorder.work.set()


def flush(client: Any, key: Callable[[str], str]) -> None:
    """Move everything from the broker's Redis to the database.

    Args:
        client: a redis-py client that adds no prefix to keys.
        key: gives the full name of the list ``"kills"`` or ``"parked"``.

    Raises:
        Whatever Redis or the database raises; what was not stored is still in Redis then.
    """
    for name, store in (("kills", _store_kill), ("parked", _store_parked)):
        while items := client.lrange(key(name), -BATCH, -1):
            for item in reversed(items):  # oldest first
                store(item if isinstance(item, str) else item.decode(errors="surrogateescape"))
                client.lrem(key(name), -1, item)


class Recorder(threading.Thread):
    """Moves records whenever ``work`` is set, and at least every ``LOOK_S`` seconds."""

    def __init__(self) -> None:
        super().__init__(name="redelivery-recorder", daemon=True)
        self.records: deque[dict[str, Any]] = deque(maxlen=MOST_IN_MEMORY)
        self.work = threading.Event()
        self.ending = False
        self.pid = os.getpid()

    def run(self) -> None:
        pause_s, last = 0.0, False
        while not last:
            last = self.ending
            with _at_database:
                try:
                    self.move()
                    pause_s = 0.0
                except Exception as error:  # no database, no table, no Redis: each has errors of its own
                    if not pause_s:
                        logger.warning("records of kills are kept until they can be stored: %s", error)
                    pause_s = min(pause_s * 2 or 1, LOOK_S)
                finally:
                    # A pool child that is forked must not find an open connection here.
                    connections.close_all()
            if not last:
                self.work.wait(pause_s or LOOK_S)
                self.work.clear()

    def move(self) -> None:
        """Move what there is."""
        from redelivery import broker

        while self.records:
            _store_kill(json.dumps(self.records[0]))
            self.records.popleft()
        if ours := broker.current():
            flush(ours.client, ours.key)

    def end(self) -> None:
        """Move what is left, and wait a little for it."""
        if os.getpid() == self.pid:
            self.ending = True
            self.work.set()
            self.join(LAST_S)


def _keep_from_forks() -> None:
    """Let no process be forked while a record is on its way to SQLite, but not for long.

    SQLite keeps its locks in the memory of a process. A child that is forked while this thread has one takes it for its
    own and waits for nobody, until its tasks fail with "database is locked" (measured).
    """
    if not any(connections[alias].vendor == "sqlite" for alias in connections):
        return
    taken: list[bool] = []
    os.register_at_fork(
        before=lambda: taken.append(_at_database.acquire(timeout=FORK_S)),
        after_in_parent=lambda: taken.pop() and _at_database.release(),
        after_in_child=lambda: taken.pop() and _at_database.release(),
    )


def _start(**_: Any) -> None:
    global _recorder
    if _recorder is None:
        _keep_from_forks()
    _recorder = Recorder()
    _recorder.start()
    atexit.register(_recorder.end)


TEXTS_OF_KILL = ("message", "task", "task_id", "args_digest", "worker", "release", "cause", "outcome")


def _store_kill(text: str) -> None:
    from redelivery.models import Kill

    record = json.loads(text)
    texts = {name: _plain(record[name]) for name in TEXTS_OF_KILL}
    row = Kill(delivery=record["delivery"], at=_when(record), **texts)
    Kill.objects.bulk_create([row], ignore_conflicts=True)


def _store_parked(text: str) -> None:
    from redelivery.models import Parked

    item = json.loads(text, strict=False)
    texts = dict(zip(("message", "task", "task_id"), kills.describe(item["raw"]), strict=True))
    texts |= {
        "queue": kills.queue_of(item["key"]),
        "worker": kills.node(item["worker"]),
        "reason": item["reason"],
    }
    row = Parked(
        item=hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest(),
        raw=_plain(item["raw"], None),
        at=_when(item),
        **{name: _plain(value) for name, value in texts.items()},
    )
    Parked.objects.bulk_create([row], ignore_conflicts=True)


def _when(item: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(float(item["time"]), UTC)


def _plain(text: Any, most: int | None = 255) -> str:
    """Text that every database takes: no NUL, no lone surrogate, not too long."""
    return str(text).encode(errors="backslashreplace").decode().replace("\0", "\\0")[:most]
