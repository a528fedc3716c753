"""Checks for production, which ``manage.py check --deploy`` runs; one of them asks the broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from redelivery import force
from redelivery.checks.stores import broker_places, cache_places
from redelivery.force import InForce

CONNECT_S = 2
CLUSTER = "The broker is a Redis Cluster, on which tasks cannot be queued."
REDIS = ("redis", "rediss", "redis+socket", "valkey", "valkeys")


def one_instance(state: InForce) -> Iterator[CheckMessage]:
    """Broker and cache need different eviction policies, which are set for an instance."""
    broker = {place.instance for place in broker_places(state)}
    for alias, found in cache_places().items():
        for instance in sorted(broker & {place.instance for place in found}):
            yield Error(
                f"The broker and cache {alias!r} are on one Redis instance ({instance}): a broker must never "
                "evict, a cache should.",
                hint="Give each an instance of its own.",
                id="redelivery.E015",
            )


def eviction(state: InForce) -> Iterator[CheckMessage]:
    """A broker that evicts keys loses queues."""
    if force.broker_scheme(state.app) not in REDIS:
        return
    try:
        evicts = _ask(state, lambda client: client.config_get("maxmemory-policy")["maxmemory-policy"])
    except Exception as error:  # refused by a managed Redis, not reachable, or not Redis
        yield Warning(
            f"The broker's maxmemory-policy could not be read: {error}.",
            hint="Make sure that it is noeviction; any other loses messages when memory runs out.",
            id="redelivery.W002",
        )
        return
    if evicts != "noeviction":
        yield Error(
            f"The broker's maxmemory-policy is {evicts}: when memory runs out, Redis throws queues away.",
            hint="Set maxmemory-policy noeviction on the broker's instance.",
            id="redelivery.E016",
        )


def unit_names(state: InForce) -> Iterator[CheckMessage]:
    """Queues that the systemd units cannot be named after: they take the last part between dashes for the queue."""
    for queue in state.policy.queues.values():
        if not re.fullmatch(r"[a-z0-9_]+", queue.name):
            yield Warning(
                f"{state.policy.where(queue)}: the queue name {queue.name!r} has more than a-z, 0-9 and _, and the "
                "reference units are named after their queue.",
                hint="Rename the queue, or name it in the unit by hand.",
                id="redelivery.W021",
            )


def cluster(state: InForce) -> Iterator[CheckMessage]:
    """Kombu does not know Redis Cluster, and the scripts of ``redelivery.broker`` touch several keys at once."""
    if force.broker_scheme(state.app) not in REDIS:
        return
    with suppress(Exception):  # not reachable, or a managed Redis that does not say: `eviction` warns of it
        if _ask(state, is_cluster):
            yield Error(
                CLUSTER, hint="Give the broker a Redis of its own without cluster mode.", id="redelivery.E025"
            )


def eager(state: InForce) -> Iterator[CheckMessage]:
    """Eager tasks run in the web process: nothing is queued, acknowledged or delivered again."""
    if state.app.conf.task_always_eager:
        yield Error(
            "task_always_eager is on: tasks run in the web process, and none of the policy holds.",
            hint="Remove it from the production settings.",
            id="redelivery.E020",
        )


def is_cluster(client: Any) -> bool:
    """Whether a Redis is part of a cluster."""
    return bool(client.info("cluster")["cluster_enabled"])


def _ask(state: InForce, question: Callable[[Any], Any]) -> Any:
    options = {**(state.app.conf.broker_transport_options or {})}
    options.update(socket_connect_timeout=CONNECT_S, socket_timeout=CONNECT_S)
    with state.app.connection_for_write(transport_options=options) as connection:
        connection.ensure_connection(max_retries=0, timeout=CONNECT_S)
        return question(connection.default_channel.client)
