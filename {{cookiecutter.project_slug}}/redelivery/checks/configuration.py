"""Checks of Celery's settings: those that the policy decides, unknown ones, and those that void a promise."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import Any

from celery import concurrency
from celery.app.defaults import _TO_NEW_KEY as NEW_NAMES
from celery.app.defaults import SETTING_KEYS
from celery.concurrency.prefork import TaskPool
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning

from redelivery import versions
from redelivery.checks.decisions import contradiction
from redelivery.checks.tasks import matters
from redelivery.force import TASK_SETTINGS, InForce, asks_for_leases, reads_django_settings, setting
from redelivery.policy import TaskPolicy

#: Read by Celery's Django fix-up, though it is not in Celery's list of settings.
EXTRA_SETTINGS = {"CELERY_DB_REUSE_MAX"}
JSON = {"json", "application/json"}


def decided_by_policy(state: InForce) -> Iterator[CheckMessage]:
    """Settings given by hand that say something else than the policy."""
    policy = state.policy
    for attribute, key in TASK_SETTINGS.items():
        given = state.by_hand.get(key)
        wrong = None if given is None else _contradicted(state, attribute, given)
        if wrong:
            wanted = wrong.annotation(state.transport)[attribute]
            yield _contradiction(
                state, key, given, f"entry {wrong.name} in {policy.where(wrong)} means {wanted!r}"
            )
    if versions.SPLITS_TIMEOUTS and state.by_hand.get("task_acks_on_failure_or_timeout", True) is not True:
        yield _contradiction(
            state,
            "task_acks_on_failure_or_timeout",
            False,
            "with it a task over its time limit runs again for ever",
        )
    multiplier = state.by_hand.get("worker_prefetch_multiplier", policy.prefetch_multiplier)
    if multiplier != policy.prefetch_multiplier:
        yield _contradiction(
            state,
            "worker_prefetch_multiplier",
            multiplier,
            f"{policy.where()} computes the visibility timeout for {policy.prefetch_multiplier}",
        )
    options = state.by_hand["broker_transport_options"]
    visibility = options.get("visibility_timeout", policy.visibility_timeout_s)
    if visibility != policy.visibility_timeout_s:
        yield _contradiction(
            state,
            "broker_transport_options",
            f"visibility_timeout {visibility}",
            f"{policy.where()} derives {policy.visibility_timeout_s} s from its time limits",
        )


def release(state: InForce) -> Iterator[CheckMessage]:
    """A note of what the installed Celery cannot do."""
    for name, text in versions.missing().items():
        yield Info(
            f"Celery {versions.release()} has no {name}: {text}.",
            hint="Celery 5.7 has it.",
            id="redelivery.I001",
        )


def kombu(state: InForce) -> Iterator[CheckMessage]:
    """The transport with leases stands on kombu's private methods: with an untested kombu it is off."""
    if asks_for_leases(state.app) and not versions.kombu_is_tested():
        yield Warning(
            f"kombu {versions.kombu_release()} is not of the series {versions.KOMBU} that REDELIVERY_TRANSPORT was "
            "tested with, so it is off: messages are taken as kombu does, and some are lost when workers are killed.",
            hint=f"Install kombu {versions.KOMBU}.*, or set REDELIVERY_TRANSPORT to off.",
            id="redelivery.W007",
        )


def _contradicted(state: InForce, attribute: str, given: Any) -> TaskPolicy | None:
    """The first entry that means something else than a setting, of a task that has not said so itself."""
    for entry in state.policy.tasks.values():
        said = entry.is_open and attribute in state.declared.get(entry.name, {})
        if given != entry.annotation(state.transport)[attribute] and matters(entry, attribute) and not said:
            return entry
    return None


def unknown_settings(state: InForce) -> Iterator[CheckMessage]:
    """Django settings that look like Celery's, but that Celery does not read, or only under an old name."""
    if not reads_django_settings(state.app):
        return
    namespace = state.app.namespace
    for name in sorted(dir(settings)):
        if not name.startswith("CELERY") or name in EXTRA_SETTINGS or _is_read(name, namespace):
            continue
        if namespace and name in NEW_NAMES:
            yield Error(
                f"{name} is an old name, which Celery reads only until version 6.",
                hint=f"Rename it to {setting(state.app, NEW_NAMES[name])}.",
                id="redelivery.E010",
            )
            continue
        better = _nearest(name, namespace)
        yield Error(
            f"Celery does not know the setting {name}, so it does nothing.",
            hint=f"Is {better} meant?"
            if better
            else "Remove it, or rename it if it is not meant for Celery.",
            id="redelivery.E010",
        )


def pool(state: InForce) -> Iterator[CheckMessage]:
    """Pools that cannot enforce a time limit, and a remapped SIGTERM."""
    name = state.app.conf.worker_pool
    if not _is_prefork(name):
        yield Error(
            f"worker_pool is {name!r}: time limits and drains are enforced by the prefork pool only.",
            hint=f"Remove {setting(state.app, 'worker_pool')}.",
            id="redelivery.E011",
        )
    if os.environ.get("REMAP_SIGTERM"):
        yield Error(
            f"REMAP_SIGTERM={os.environ['REMAP_SIGTERM']} is in the environment: every ordinary stop of a "
            "worker would cut off its running tasks.",
            hint="Unset REMAP_SIGTERM.",
            id="redelivery.E012",
        )


def content(state: InForce) -> Iterator[CheckMessage]:
    """Anything but JSON: pickle runs code that a message brings."""
    conf = state.app.conf
    for key in ("accept_content", "result_accept_content"):
        others = sorted(set(conf[key] or ()) - JSON)
        if others:
            yield _not_json(setting(state.app, key), f"accepts {', '.join(map(repr, others))}")
    for key in ("task_serializer", "result_serializer"):
        if conf[key] not in JSON:
            yield _not_json(setting(state.app, key), f"is {conf[key]!r}")
    for name, declared in state.declared.items():
        serializer = declared.get("serializer")
        if serializer and serializer not in JSON and serializer != conf.task_serializer:
            entry = state.policy.tasks[name]
            yield _not_json(f"Task {name} ({state.policy.where(entry)})", f"has serializer={serializer!r}")


def _contradiction(state: InForce, key: str, given: Any, policy_says: str) -> CheckMessage:
    """A warning while any entry is an open decision: until then the setting is where its numbers were taken from."""
    name = setting(state.app, key)
    return contradiction(
        state.policy.open_decisions or state.policy.tasks.values(),
        f"{name} is {given if isinstance(given, str) else repr(given)}, but {policy_says}.",
        f"Remove it from {name}: the policy sets it.",
        9,
    )


def _not_json(what: str, does: str) -> CheckMessage:
    return Error(f"{what} {does}; only JSON is allowed.", hint="Use json.", id="redelivery.E013")


def _is_prefork(name: Any) -> bool:
    try:
        return issubclass(concurrency.get_implementation(name), TaskPool)
    except Exception:
        return False


def _is_read(name: str, namespace: str | None) -> bool:
    if not namespace:
        return name in NEW_NAMES
    prefix = f"{namespace}_"
    return (
        not name.startswith(("CELERYD_", "CELERYBEAT_", prefix))
        or name.removeprefix(prefix).lower() in SETTING_KEYS
    )


def _nearest(name: str, namespace: str | None) -> str | None:
    """The name most like it that Celery reads; the common prefix does not count as likeness."""
    prefix = f"{namespace}_" if namespace else ""
    known = [key.upper() for key in SETTING_KEYS] if namespace else list(NEW_NAMES)
    near = difflib.get_close_matches(name.removeprefix(prefix), known, n=1)
    return f"{prefix}{near[0]}" if near else None
