"""The first ``ack_policy.toml`` of a project that exists: what its tasks and settings say today, nothing decided."""

from __future__ import annotations

import fnmatch
import inspect
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery.app.annotations import resolve_all as resolve_annotations
from celery.app.routes import Router
from celery.app.routes import prepare as prepare_routes
from kombu import Queue

from redelivery.checks import schedules
from redelivery.checks.tasks import load, longest_retry, registered
from redelivery.force import InForce
from redelivery.policy import OPEN_DECISION
from redelivery.policy_file import DAY_S, DEFAULT_LONGEST_COUNTDOWN_S, DEFAULT_MARGIN_S, parse
from redelivery.source import is_installed

#: The hard limit of a task that has none, in seconds: stock Celery hands out a message again after an hour on Redis,
#: so a late-ack task that takes longer runs twice already.
GUESSED_LIMIT_S = 3600
GUESSED_CONCURRENCY = 2

HEADER = """\
# How every task is acknowledged, what makes a second run of it harmless, and why. `manage.py check` compares it with
# the code; `manage.py ack_policy` prints it with the numbers that follow from it.
#
#   ack    early = acknowledged before the task runs: at most once    late = after it: at least once
#   guard  none         a second run does everything again, and that is harmless
#          marker       a marker in the cache, set right after the effect, ends a second run at once
#          transaction  a second run finds the row that the first wrote in the transaction of its effect
#          claim        one conditional update lets one delivery act; what is in doubt waits for a person
#          lost-ok      there is no second run (ack = "early")
#   gaps   what is left, in words: each begins with "killed", "two deliveries", "cache flushed" or "lost"
#
# Written by `manage.py ack_policy --init` from what the code says. Nobody has decided anything yet: give each task the
# guard that it has, or a better one, and replace its reason.
"""


@dataclass
class Draft:
    """One entry to be: what a task says of itself today. Times are in seconds; ``notes`` become comments."""

    name: str
    queue: str
    late: bool
    limit_s: int
    soft_s: int | None
    open_points: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The entry as TOML."""
        rows = [
            ("queue", quoted(self.queue)),
            ("ack", '"late"' if self.late else '"early"'),
            ("guard", '"none"' if self.late else '"lost-ok"'),
            ("time_limit_s", str(self.limit_s)),
        ]
        if self.soft_s is not None:
            rows.append(("soft_time_limit_s", str(self.soft_s)))
        rows.append(("reason", quoted("; ".join((OPEN_DECISION, *self.open_points)))))
        width = max(len(key) for key, _ in rows)
        comments = [f"# {note}" for note in self.notes]
        return "\n".join(
            [*comments, f"[tasks.{quoted(self.name)}]", *(f"{k.ljust(width)} = {v}" for k, v in rows)]
        )


def first_policy(state: InForce) -> str:
    """The text of a first policy for the tasks that are registered now; the same code gives the same bytes."""
    load(state.app)
    tasks = registered(state.app)
    drafts = [draft(state, tasks[name]) for name in sorted(tasks)]
    default = default_queue(state)
    queues = [default, *sorted({one.queue for one in drafts} - {default})]
    waits_s, why = longest_wait(state, tasks.values())
    parts = [
        HEADER.rstrip("\n"),
        f"[drain]\nmargin_s = {DEFAULT_MARGIN_S}  # on top of the longest time limit when a worker stops; closing the "
        "pool alone may take 30",
        f"[publish]\nlongest_countdown_s = {waits_s}  # {why}",
        *(f"[queues.{key(name)}]\n{concurrency(state)}" for name in queues),
        *(one.text() for one in drafts),
    ]
    return "\n\n".join(parts) + "\n"


def write(text: str, path: Path) -> int:
    """Write a first policy where none is yet, whole or not at all; return how many entries it has.

    Raises:
        FileExistsError: somebody has one already.
        OSError: it cannot be written there.
        PolicyError: the text is no policy; nothing was written.
    """
    handle, partial = tempfile.mkstemp(prefix=".ack_policy-", suffix=".toml", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        entries = len(parse(Path(partial)).tasks)
        os.chmod(partial, 0o666 & ~_umask())
        os.link(partial, path)
    finally:
        os.unlink(partial)
    return entries


def draft(state: InForce, task: Any) -> Draft:
    """What one task says today: in its decorator or class, in the settings, and in annotations."""
    today = Today(state, task)
    queue, notes = today.queue()
    hard, soft = today("time_limit"), today("soft_time_limit")
    points = []
    if hard:
        limit_s = min(max(math.ceil(hard), 2), DAY_S)
        if limit_s != hard:
            points.append(f"its time limit of {hard:g} s became {limit_s} s")
    else:
        limit_s = min(max(GUESSED_LIMIT_S, 2 * math.ceil(soft or 0)), DAY_S)
        points.append(f"it had no time limit, {limit_s} s is a guess")
    soft_s = math.ceil(soft) if soft else None
    if soft_s and soft_s >= limit_s:
        points.append(f"its soft limit of {soft:g} s was never reached")
        soft_s = None
    late = bool(today("acks_late"))
    if late and not today("reject_on_worker_lost"):
        points.append("until now its message was lost when its pool process was killed")
    if is_library(task):
        notes.append(f"Its code is in a package ({type(task).__module__}), not in this project.")
    return Draft(task.name, queue, late, limit_s, soft_s, points, notes)


class Today:
    """What a task says of itself, without what the policy lays over it if there is one already."""

    def __init__(self, state: InForce, task: Any) -> None:
        self.state, self.task = state, task
        self.covered = state.policy is not None and task.name in state.declared

    def __call__(self, attribute: str) -> Any:
        conf = self.state.app.conf
        if not self.covered:
            value = getattr(self.task, attribute, None)
            # Before Celery 5.7 the worker alone looks at the settings of the limits.
            return conf.get(f"task_{attribute}") if value is None else value
        own: dict[str, Any] = {}
        for annotation in resolve_annotations(self.state.annotations, self.task):
            own.update(annotation)
        declared = self.state.declared[self.task.name]
        return own.get(attribute, declared.get(attribute, self.state.by_hand.get(f"task_{attribute}")))

    def queue(self) -> tuple[str, list[str]]:
        """Its queue, and remarks where that is not certain."""
        app = self.state.app
        given = (
            self.state.declared[self.task.name].get("queue")
            if self.covered
            else getattr(self.task, "queue", None)
        )
        notes: list[str] = []
        if given is None:
            given, notes = self.routed()
        given = getattr(given, "name", given)
        sent = schedule_queues(app).get(self.task.name, set())
        if given is None and len(sent) == 1:
            given = next(iter(sent))
        for other in sorted(sent - {given}):
            notes.append(f"A beat schedule sends it to queue {other!r}.")
        return given or default_queue(self.state), notes

    def routed(self) -> tuple[Any, list[str]]:
        """The queue that the project's own routes give it."""
        app = self.state.app
        routes = self.state.routes if self.state.policy else list(prepare_routes(app.conf.task_routes))
        try:
            route = Router(routes, app=app).lookup_route(self.task.name, (), {}, {}, self.task)
        except Exception as error:  # a router of the project's, which wants a real call
            return None, [
                f"A router of task_routes needs a real call to say where it goes ({type(error).__name__})."
            ]
        if route is None or isinstance(route, (str, Queue)):
            return route, []
        if route.get("queue") or not {"exchange", "routing_key"} & route.keys():
            return route.get("queue"), []
        found = queue_of(app, route)
        where = ", ".join(f"{key} {route[key]!r}" for key in ("exchange", "routing_key") if route.get(key))
        return found, [] if found else [
            f"task_routes sends it to {where}, and task_queues has no queue for that."
        ]


def default_queue(state: InForce) -> str:
    """The queue of messages without a route, before there was a policy."""
    return state.default_queue or state.app.conf.task_default_queue


def queue_of(app: Any, route: Mapping[str, Any]) -> str | None:
    """The name of the declared queue that a message with this exchange and routing key arrives in."""
    exchange = getattr(route.get("exchange"), "name", route.get("exchange"))
    key = route.get("routing_key")
    for queue in app.amqp.queues.values():
        pattern = (queue.routing_key or "").replace("#", "*")
        if exchange in (None, queue.exchange.name) and (key is None or fnmatch.fnmatchcase(key, pattern)):
            return queue.name
    return None


def schedule_queues(app: Any) -> dict[str, set[str]]:
    """The queues that beat's schedule names, in the settings and in the database, by task."""
    found: dict[str, set[str]] = {}
    items = [
        *(
            (item.get("task"), (item.get("options") or {}).get("queue"))
            for item in (app.conf.beat_schedule or {}).values()
        ),
        *((row["task"], row["queue"]) for row in schedules.rows()),
    ]
    for task, queue in items:
        if queue:
            found.setdefault(task, set()).add(getattr(queue, "name", queue))
    return found


def longest_wait(state: InForce, tasks: Iterable[Any]) -> tuple[int, str]:
    """The longest countdown in seconds that the project's retries ask for, at least the default, and why."""
    waits = {task.name: math.ceil(longest_retry(task)[0]) for task in tasks}
    name = max(sorted(waits), key=waits.__getitem__, default=None)
    if name is None or waits[name] <= DEFAULT_LONGEST_COUNTDOWN_S:
        return (
            DEFAULT_LONGEST_COUNTDOWN_S,
            "what is due later belongs into the database, not into a worker's memory",
        )
    return min(waits[name], DAY_S), f"{name} may wait so long for a retry"


def concurrency(state: InForce) -> str:
    """How many processes a worker has today."""
    given = state.app.conf.worker_concurrency
    if isinstance(given, int) and given > 0:
        return f"concurrency = {given}"
    return f"concurrency = {GUESSED_CONCURRENCY}  # decide: until now one process a core, or what -c says"


def is_library(task: Any) -> bool:
    """Whether the code of a task is installed, and not the project's own."""
    try:
        path = inspect.getfile(inspect.unwrap(task.run))
    except TypeError:
        return False
    return is_installed(os.path.realpath(path))


def key(text: str) -> str:
    """A TOML key, in quotes where it needs them."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else quoted(text)


def quoted(text: str) -> str:
    """A TOML string: as in JSON, but for the one character more that TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
