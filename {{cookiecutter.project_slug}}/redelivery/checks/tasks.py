"""Checks of the tasks in the code against the entries of the policy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from celery import Celery
from django.core.checks import CheckMessage, Error, Warning

from redelivery import force
from redelivery.checks.decisions import contradiction
from redelivery.force import InForce
from redelivery.policy import EXEMPT_PREFIX, TaskPolicy


def load(app: Celery) -> None:
    """Import every task module and bind every task, as a worker does."""
    app.loader.import_default_modules()
    app.finalize()


def registered(app: Celery) -> dict[str, Any]:
    """The project's tasks by name; Celery's own are exempt."""
    return {name: task for name, task in app.tasks.items() if not name.startswith(EXEMPT_PREFIX)}


#: What a call, or an entry of a schedule, may not say besides the policy.
DECIDED_OPTIONS = {"time_limit", "soft_time_limit", "queue", "countdown", "eta"}
#: What matters to a task that acknowledges early.
READ_FOR_EARLY = {"acks_late", "time_limit", "soft_time_limit", "queue", "retry_on_worker_lost"}


def matters(entry: TaskPolicy, attribute: str) -> bool:
    """Whether to speak of this attribute: not of one that Celery reads for late acknowledgement only, while the entry
    is an open decision for early."""
    return not (entry.is_open and entry.ack == "early" and attribute not in READ_FOR_EARLY)


def entries(state: InForce) -> Iterator[CheckMessage]:
    """Tasks without an entry, entries without a task."""
    policy, found = state.policy, registered(state.app)
    for name in sorted(found.keys() - policy.tasks.keys()):
        yield Error(
            f"Task {name} ({type(found[name]).__module__}) has no entry in {policy.where()}.",
            hint=f'Add [tasks."{name}"] with queue, ack, guard, time_limit_s and reason.'
            + _near(name, policy.tasks.keys() - found.keys(), "Or is the entry {} meant?"),
            id="redelivery.E003",
        )
    for name in sorted(policy.tasks.keys() - found.keys()):
        yield Error(
            f"{policy.where(policy.tasks[name])}: no task is registered as {name}.",
            hint="Remove the entry, correct its name, or import the module of the task."
            + _near(name, found.keys() - policy.tasks.keys(), "Is the task {} meant?"),
            id="redelivery.E004",
        )


def declarations(state: InForce) -> Iterator[CheckMessage]:
    """Decorators and classes that say something else than the entry."""
    for entry in state.policy.tasks.values():
        wanted = {**entry.annotation(state.transport), "queue": entry.queue}
        for attribute, value in state.declared.get(entry.name, {}).items():
            if attribute in wanted and value != wanted[attribute] and matters(entry, attribute):
                yield contradiction(
                    [entry],
                    f"Task {entry.name} declares {attribute}={value!r}, but its entry in "
                    f"{state.policy.where(entry)} means {attribute}={wanted[attribute]!r}.",
                    f"Remove {attribute} from the task's decorator or class, or change the entry.",
                    5,
                )


def effect(state: InForce) -> Iterator[CheckMessage]:
    """Tasks that the policy did not reach."""
    for name, task in registered(state.app).items():
        entry = state.policy.tasks.get(name)
        if entry is None:
            continue
        differing = [f"{key}={getattr(task, key, None)!r}" for key, value in entry.annotation(state.transport).items()
                     if getattr(task, key, None) != value]  # fmt: skip
        if differing:
            yield Error(
                f"The entry in {state.policy.where(entry)} is not in force on task {name}: it has "
                f"{', '.join(differing)}.",
                hint="Call redelivery.setup(app) before any task is used, and derive no task class from the "
                "class of a registered task: Celery applies annotations once.",
                id="redelivery.E006",
            )


def overlaps(state: InForce) -> Iterator[CheckMessage]:
    """The project's own routes and annotations that speak of the same things as the policy."""
    for entry in state.policy.tasks.values():
        route = _own_route(state, entry)
        if entry.is_open and "queue" in state.declared.get(entry.name, {}):
            route = None  # the task's own queue wins over its route
        if route is not None and route != entry.queue:
            yield contradiction(
                [entry],
                f"task_routes sends {entry.name} to queue {route!r}, but its entry in "
                f"{state.policy.where(entry)} says {entry.queue!r}.",
                f"Remove the task from {force.setting(state.app, 'task_routes')}: the policy routes it.",
                7,
            )
        wanted = entry.annotation(state.transport)
        for attribute, value in _own_annotations(state, entry).items():
            if attribute in wanted and value != wanted[attribute] and matters(entry, attribute):
                yield contradiction(
                    [entry],
                    f"task_annotations sets {attribute}={value!r} for {entry.name}, but its entry in "
                    f"{state.policy.where(entry)} means {attribute}={wanted[attribute]!r}.",
                    f"Remove {attribute} for this task (or for '*') from "
                    f"{force.setting(state.app, 'task_annotations')}.",
                    8,
                )


def waits(state: InForce) -> Iterator[CheckMessage]:
    """Retries that wait longer than a message may."""
    longest_s = state.policy.longest_countdown_s
    for name, task in registered(state.app).items():
        entry = state.policy.tasks.get(name)
        if entry is None:
            continue
        wait_s, why = longest_retry(task)
        if wait_s > longest_s:
            yield contradiction(
                [entry],
                f"Task {name} ({state.policy.where(entry)}) may wait {wait_s:g} s for a retry ({why}), "
                f"longer than longest_countdown_s = {longest_s}.",
                f"Lower {why.split()[0]} in the task, or raise longest_countdown_s under [publish].",
                18,
            )


def schedule(state: InForce) -> Iterator[CheckMessage]:
    """Beat entries for tasks that nobody knows, or with options that the policy decides."""
    setting = force.setting(state.app, "beat_schedule")
    for name, item in (state.app.conf.beat_schedule or {}).items():
        task, options = item.get("task"), item.get("options") or {}
        if task not in state.app.tasks:
            yield Error(
                f"beat_schedule entry {name!r} sends {task!r}, which is not registered.",
                hint=f"Correct the name in {setting}." + _near(task, registered(state.app), "Is {} meant?"),
                id="redelivery.E019",
            )
        entry = state.policy.tasks.get(task)
        for option in sorted(DECIDED_OPTIONS & options.keys()) if entry else ():
            yield contradiction(
                [entry],
                f"beat_schedule entry {name!r} sets {option} for {task}, which the policy decides.",
                f"Remove {option} from its options in {setting}.",
                19,
            )


def crash_retries(state: InForce) -> Iterator[CheckMessage]:
    """What the policy says, and nothing obeys without the transport."""
    counted = [entry for entry in state.policy.tasks.values() if entry.crash_retries is not None]
    if counted and not state.transport:
        yield Warning(
            f"{state.policy.where()}: crash_retries has no effect, neither written nor by default, as for "
            f"{counted[0].name}: crashes are counted on Redis with REDELIVERY_TRANSPORT on.",
            hint="A task that kills its process on every run comes back until its message is removed; one over its "
            "hard limit is acknowledged.",
            id="redelivery.W001",
        )


def _own_route(state: InForce, entry: TaskPolicy) -> str | None:
    """The queue that the project's own routes give a task; a router that needs a real call is not asked."""
    from celery.app.routes import Router

    try:
        route = Router(state.routes, app=state.app).lookup_route(entry.name, (), {}, {}, None)
    except Exception:
        return None
    queue = route if isinstance(route, str) else (route or {}).get("queue")
    return getattr(queue, "name", queue)


def _own_annotations(state: InForce, entry: TaskPolicy) -> dict[str, Any]:
    from celery.app.annotations import resolve_all

    task = state.app.tasks.get(entry.name)
    found: dict[str, Any] = {}
    for annotation in resolve_all(state.annotations, task) if task else ():
        found.update(annotation)
    return found


def longest_retry(task: Any) -> tuple[float, str]:
    """The longest wait in seconds that a task's own attributes ask for, and which attribute asks."""
    backoff = getattr(task, "retry_backoff", False)
    if not (getattr(task, "autoretry_for", None) and backoff):
        return float(task.default_retry_delay or 0), "default_retry_delay"
    most = float(getattr(task, "retry_backoff_max", 600))
    if task.max_retries is not None:
        most = min(most, float(int(backoff) * 2 ** min(max(task.max_retries - 1, 0), 40)))
    return most, "retry_backoff_max or max_retries"


def _near(name: Any, known: Any, text: str) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    return " " + text.format(near[0]) if near else ""
