"""Declared is not effective: compare the policy with what running workers have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from celery import Celery

from redelivery import force
from redelivery.policy import EXEMPT_PREFIX, Policy
from redelivery.versions import TASK_ATTRIBUTES

#: Attributes to ask for; ``registered`` answers with text and leaves out what is None (measured).
ATTRIBUTES = TASK_ATTRIBUTES
CONNECT_S = 3


class BrokerDown(Exception):
    """The broker could not be reached, so that no worker could be asked."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the policy says. ``task`` is ``-`` where the whole worker is meant."""

    worker: str
    task: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.worker}: {self.task}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Comparison:
    """What the workers answered. It holds when at least one answered and nothing differs."""

    workers: tuple[str, ...]
    differences: tuple[Difference, ...] = field(default=())

    @property
    def holds(self) -> bool:
        return bool(self.workers) and not self.differences

    def as_dict(self) -> dict[str, Any]:
        return {
            "holds": self.holds,
            "workers": list(self.workers),
            "differences": [asdict(difference) for difference in self.differences],
        }


def compare(app: Celery, policy: Policy, timeout_s: float, nodes: Iterable[str] = ()) -> Comparison:
    """Ask running workers for their tasks and settings.

    Args:
        timeout_s: seconds to wait for answers.
        nodes: worker names that must all answer; empty means whoever answers.

    Raises:
        BrokerDown: within about ``CONNECT_S`` seconds.
    """
    nodes = tuple(nodes)
    tasks, settings = _ask(app, timeout_s, nodes)
    differences = [
        Difference(node, "-", "an answer", f"none within {timeout_s:g} s")
        for node in nodes
        if node not in tasks
    ]
    for worker in sorted(tasks):
        differences += _tasks(app, policy, worker, dict(map(parse, tasks[worker])))
        differences += _settings(app, policy, worker, settings.get(worker))
    return Comparison(tuple(sorted(tasks)), tuple(differences))


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Take apart one task of an answer: ``"app.send [acks_late=True time_limit=60]"``."""
    name, separator, rest = text.partition(" [")
    return name, dict(re.findall(r"(\w+)=(\S+)", rest.rstrip("]"))) if separator else {}


def _ask(app: Celery, timeout_s: float, nodes: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    options = {**(app.conf.broker_transport_options or {})}
    options.update(socket_connect_timeout=CONNECT_S, socket_timeout=max(CONNECT_S, timeout_s + 1))
    try:
        with app.connection_for_write(transport_options=options) as connection:
            connection.ensure_connection(max_retries=0, timeout=CONNECT_S)
            inspect = app.control.inspect(
                destination=list(nodes) or None,
                timeout=timeout_s,
                connection=connection,
                limit=len(nodes) or None,
            )
            tasks = inspect.registered(*ATTRIBUTES) or {}
            settings = inspect.conf(with_defaults=True) if tasks else {}
    except Exception as error:  # redis-py's and kombu's errors have no common base
        if isinstance(error, (OSError, *app.connection().recoverable_connection_errors)) or "onnect" in str(
            error
        ):
            raise BrokerDown(f"the broker {app.connection().as_uri()} cannot be reached: {error}") from error
        raise
    return tasks, settings or {}


def _tasks(app: Celery, policy: Policy, worker: str, found: dict[str, dict[str, str]]) -> list[Difference]:
    differences = []
    for name, entry in policy.tasks.items():
        if name not in found:
            differences.append(
                Difference(worker, name, f"a task ({policy.where(entry)})", "none of this name")
            )
            continue
        for attribute, value in entry.annotation(force.transport_on(app)).items():
            given = found[name].get(attribute, "None")
            if not _same(given, value):
                differences.append(Difference(worker, name, f"{attribute}={value}", f"{attribute}={given}"))
    for name in sorted(found.keys() - policy.tasks.keys()):
        if not name.startswith(EXEMPT_PREFIX):
            differences.append(Difference(worker, name, "an entry in the policy", "none"))
    return differences


def _settings(app: Celery, policy: Policy, worker: str, conf: dict[str, Any] | None) -> list[Difference]:
    """Compare what concerns the whole worker: visibility and prefetch."""
    if conf is None:
        return [Difference(worker, "-", "its settings", "no answer")]
    expected = {"worker_prefetch_multiplier": policy.prefetch_multiplier}
    found = {"worker_prefetch_multiplier": conf.get("worker_prefetch_multiplier")}
    if "visibility_timeout" in (app.conf.broker_transport_options or {}):
        expected["visibility_timeout"] = policy.visibility_timeout_s
        found["visibility_timeout"] = (conf.get("broker_transport_options") or {}).get("visibility_timeout")
    return [
        Difference(worker, "-", f"{name}={value}", f"{name}={found[name]}")
        for name, value in expected.items()
        if found[name] != value
    ]


def _same(given: str, value: Any) -> bool:
    """Whether text from a worker means ``value``: ``"60"`` and ``"60.0"`` are both 60."""
    if given == str(value):
        return True
    try:
        return not isinstance(value, bool) and float(given) == float(value)
    except (TypeError, ValueError):
        return False
