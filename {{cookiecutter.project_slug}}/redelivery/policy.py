"""The ack policy: what each task promises, read from ``ack_policy.toml``, and the numbers derived from it.

Every number that depends on another one (stop timeouts, Redis visibility, prefetch) is computed here and
nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redelivery import versions

#: Which way of acknowledging each guard needs.
ACK_OF_GUARD = {
    "none": "late",
    "marker": "late",
    "transaction": "late",
    "claim": "late",
    "lost-ok": "early",
}
#: How a gap begins, so that the redelivery tests can compare it with what they measure.
GAP_KINDS = ("killed", "two deliveries", "cache flushed", "lost")
#: Which kinds of gap a guard can have at all.
GAPS_OF_GUARD = {
    "none": ("two deliveries",),
    "marker": ("killed", "two deliveries", "cache flushed"),
    "transaction": (),
    "claim": (),
    "lost-ok": ("lost", "two deliveries"),
}
#: Messages that a worker takes for each of its processes: with 1 it holds no late-ack message that it does
#: not run.
PREFETCH_MULTIPLIER = 1
#: Seconds of margin that billiard alone may need to join its pool (measured: 300 waits of 0.1 s).
POOL_JOIN_S = 30
#: Seconds after which a worker that no longer renews its leases counts as dead. It renews each third, and is looked for
#: each second, so what it held starts elsewhere after 9 to 14 s.
LEASE_S = 12
#: Kombu's own visibility timeout: what a stock worker holds is not given back earlier.
STOCK_VISIBILITY_S = 3600
#: What ``crash_retries`` is where an entry does not say: enough for a run of bad luck (a deploy, a full memory), and
#: few enough that a task that kills its process is out of the way within minutes.
DEFAULT_CRASH_RETRIES = 3
#: Celery's own tasks need no entry.
EXEMPT_PREFIX = "celery."
#: How the reason of an entry begins that ``ack_policy --init`` wrote, and that nobody has thought about yet.
OPEN_DECISION = "taken over from the decorator: decide"


class PolicyError(Exception):
    """The policy cannot be used: ``path``, ``line`` (or None where no line is to blame) and ``message``."""

    def __init__(self, path: Path | str, line: int | None, message: str) -> None:
        super().__init__(path, line, message)
        self.path, self.line, self.message = Path(path), line, message

    def __str__(self) -> str:
        return f"{place(self.path, self.line)}: {self.message}"


def place(path: Path, line: int | None) -> str:
    """``file:line`` for a message; the path is relative when the file lies below the working directory."""
    try:
        shown = path.relative_to(Path.cwd())
    except (ValueError, OSError):
        shown = path
    return f"{shown}:{line}" if line else str(shown)


@dataclass(frozen=True)
class TaskPolicy:
    """One entry: how a task is delivered, and why. Times are in seconds."""

    name: str
    queue: str
    ack: str
    guard: str
    time_limit_s: int
    soft_time_limit_s: int
    reason: str
    gaps: tuple[str, ...] = ()
    marker_days: int | None = None
    #: How often a message comes back after a crash before it is parked; None where none comes back.
    crash_retries: int | None = None
    line: int = field(default=0, compare=False)

    @property
    def is_open(self) -> bool:
        """Whether the entry only repeats what the code said, and waits for somebody to decide.

        Until then what the code or a call says otherwise is a warning, not an error.
        """
        return self.reason.lower().startswith(OPEN_DECISION)

    def annotation(self, counted: bool) -> dict[str, Any]:
        """What Celery's ``task_annotations`` sets on the task; it beats decorators (measured).

        ``reject_on_worker_lost`` goes with late acknowledgement: without it the message of a killed pool
        process is acknowledged, hence lost (measured). With ``acks_on_timeout=False`` a hard limit is a kill like
        any other, and the message comes back; alone that would run a task over its limit for ever (measured), so
        it needs a transport that counts crashes (``counted``). The other two are Celery's defaults, set because a
        decorator that changes one of them would break the promise.
        """
        late = self.ack == "late"
        wanted = {
            "acks_late": late,
            "reject_on_worker_lost": late,
            "time_limit": self.time_limit_s,
            "soft_time_limit": self.soft_time_limit_s,
            "retry_on_worker_lost": False,
            "acks_on_failure": True,
            "acks_on_timeout": not (late and counted),
        }
        return versions.readable(wanted)


@dataclass(frozen=True)
class Queue:
    """One queue and what its workers need: pool processes, and seconds that a stop may take."""

    name: str
    concurrency: int
    stop_timeout_s: int
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Policy:
    """The whole file. ``margin_s`` and ``longest_countdown_s`` are in seconds."""

    path: Path
    queues: Mapping[str, Queue]
    tasks: Mapping[str, TaskPolicy]
    margin_s: int
    longest_countdown_s: int

    @property
    def longest_limit_s(self) -> int:
        """The longest hard time limit of any task; 0 while there is none."""
        return max((task.time_limit_s for task in self.tasks.values()), default=0)

    @property
    def open_decisions(self) -> tuple[TaskPolicy, ...]:
        """The entries that nobody has decided yet."""
        return tuple(task for task in self.tasks.values() if task.is_open)

    @property
    def prefetch_multiplier(self) -> int:
        """Messages that a worker takes ahead, for each of its processes."""
        return PREFETCH_MULTIPLIER

    @property
    def visibility_timeout_s(self) -> int:
        """Seconds after which Redis hands out an unacknowledged message again.

        A healthy message must never get there. It may wait for its countdown, then behind
        ``prefetch_multiplier`` other tasks in its worker, and then run itself. What no number covers: many
        countdowns that end at once in one worker wait for each other, since Celery takes messages with a
        countdown in addition to its prefetch limit.
        """
        waits = self.prefetch_multiplier + 1
        return self.longest_countdown_s + waits * self.longest_limit_s + self.margin_s

    @property
    def lease_s(self) -> int:
        """Seconds for which a worker's lease on a message holds without being renewed."""
        return LEASE_S

    @property
    def stock_visibility_s(self) -> int:
        """Seconds after which a message without a lease, of a stock worker, is handed out again."""
        return max(self.visibility_timeout_s, STOCK_VISIBILITY_S)

    @property
    def default_queue(self) -> str:
        """Where a message without a route goes (Celery's own tasks): the first queue of the file."""
        return next(iter(self.queues))

    def where(self, entry: TaskPolicy | Queue | None = None) -> str:
        """``file:line`` of an entry, or the file, for messages."""
        return place(self.path, entry.line if entry else None)


def load(path: Path | str) -> Policy:
    """Read and validate a policy file.

    Raises:
        PolicyError: the file cannot be read, or the first mistake in it, with its line.
    """
    from redelivery.policy_file import parse

    return parse(Path(path))


def current() -> Policy:
    """The policy of this process: ``settings.ACK_POLICY_FILE``, read once.

    Raises:
        PolicyError: the setting is missing, or the file has a mistake.
    """
    from django.conf import settings

    path = getattr(settings, "ACK_POLICY_FILE", None)
    if not path:
        raise PolicyError(
            "settings",
            None,
            "ACK_POLICY_FILE is not set: give it the path of the policy file (ack_policy.toml).",
        )
    return _load_once(Path(path))


_load_once = functools.lru_cache(maxsize=None)(load)
