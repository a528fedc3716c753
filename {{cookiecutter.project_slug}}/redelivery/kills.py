"""Interrupted deliveries: what is recorded of each, and when a message has crashed often enough to be parked.

Nothing here touches Redis or a database. The counts travel in the message, as the header ``redelivery``:
``{"deliveries": 2, "crashes": 1}``, and so outlive workers and Redis.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from kombu import compression, serialization

from redelivery import policy

logger = logging.getLogger("redelivery")

HEADER = "redelivery"
#: What broken messages raise when they are taken apart.
BROKEN = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Interrupted:
    """A delivery that did not end as one should.

    ``payload`` is the message as kombu wrote it, ``key`` the Redis list that it came from, ``worker`` the process
    that had it (``name_worker``), ``cause`` what happened; empty when it was no kill, and the task itself gave the
    message back.
    """

    payload: dict[str, Any]
    tag: str
    key: str
    worker: str
    cause: str


def judge(one: Interrupted) -> tuple[str, str, str]:
    """What becomes of a delivery that was interrupted after its task had started.

    Returns:
        The text to put back into the queue, the JSON of its record for the list of kills or nothing, and the JSON
        for the list of parked messages when it is not to be put back. A record comes with every cause.
    """
    try:
        deliveries, before = counts(one.payload["headers"])
        count = before + bool(one.cause)
        again = json.dumps(_again(one.payload, {"deliveries": deliveries + 1, "crashes": count}))
    except BROKEN as error:
        raw = json.dumps(one.payload)
        reason = f"cannot be read: {error!r}"
        return raw, "", parked(raw, key=one.key, reason=reason, worker=one.worker)
    if not one.cause:
        return again, "", ""
    record = _record(one.payload["headers"], one.tag, one.cause, deliveries + 1, node(one.worker))
    record |= {"args_digest": _digest(one.payload), "release": one.worker.rpartition(":")[2]}
    retries = crash_retries(record["task"])
    if count <= retries:
        return again, json.dumps({**record, "outcome": "redelivered"}), ""
    reason = f"crashed {count} times (crash_retries = {retries}), at last: {one.cause}"
    item = parked(again, key=one.key, reason=reason, worker=one.worker)
    return again, json.dumps({**record, "outcome": "parked"}), item


def parked(raw: str, *, key: str, reason: str, worker: str) -> str:
    """The JSON for the list of parked messages. Each is an item of its own, also two with the same text."""
    item = {"raw": raw, "key": key, "reason": reason, "worker": worker, "time": time.time()}
    return json.dumps({**item, "n": uuid.uuid4().hex})


def log_parked(item: str) -> None:
    """Say at error level, in one line, that a message was parked; ``item`` is what ``parked`` returned."""
    facts = json.loads(item, strict=False)
    logger.error(
        "%s[%s] is parked until an operator replays or discards it: %s (queue %s, worker %s)",
        *describe(facts["raw"])[1:],
        facts["reason"],
        queue_of(facts["key"]),
        node(facts["worker"]),
    )


def interrupted(request: Any, cause: str, outcome: str) -> dict[str, Any]:
    """The record of a delivery that the broker does not know of any more: ``request`` is the worker's."""
    headers, properties = request.request_dict, request.message.properties or {}
    number = delivery(headers, request.delivery_info.get("redelivered"))
    # AMQP numbers its deliveries anew on each channel, so there the task's id must do.
    tag = properties.get("delivery_tag") or request.id
    record = _record(headers, tag, cause, number, request.hostname)
    digest = digest_of(request.args, request.kwargs)
    return {**record, "args_digest": digest, "release": release(), "outcome": outcome}


def crash_retries(task: str) -> int:
    """How often a task may crash and be delivered again; for one that the policy does not know, the default."""
    entry = policy.current().tasks.get(task)
    given = entry.crash_retries if entry else None
    return policy.DEFAULT_CRASH_RETRIES if given is None else given


def counts(headers: dict[str, Any]) -> tuple[int, int]:
    """How often a message was delivered before, and how often it crashed then. Nonsense counts as 0."""
    found = headers.get(HEADER)
    found = found if isinstance(found, dict) else {}
    deliveries, crashed = (_count(found.get(name)) for name in ("deliveries", "crashes"))
    return deliveries, crashed


def crashes(payload: dict[str, Any]) -> int:
    """How often a message crashed before this delivery."""
    headers = payload.get("headers")
    return counts(headers)[1] if isinstance(headers, dict) else 0


def published_again(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers of a message that Celery makes from those of another one, for a retry.

    It is a new message, whose deliveries begin at 1; but its task has crashed as often, so that one that crashes and
    retries in turn does not go on for ever.
    """
    crashed = counts(headers)[1]
    kept = {name: value for name, value in headers.items() if name not in (HEADER, "redelivered")}
    return {**kept, HEADER: {"deliveries": 0, "crashes": crashed}} if crashed else kept


def delivery(headers: dict[str, Any], redelivered: Any) -> int | None:
    """The number of a delivery, from 1 on; None for a redelivery that the broker did not count."""
    before = counts(headers)[0] or _count(headers.get("x-delivery-count"))  # of RabbitMQ's quorum queues
    return None if redelivered and not before else before + 1


def release() -> str:
    """Which release this process runs: the setting ``REDELIVERY_RELEASE``."""
    return str(getattr(settings, "REDELIVERY_RELEASE", "") or "")


def queue_of(key: str) -> str:
    """The queue of a Redis list, whose name may have a prefix, and after a separator a priority."""
    from redelivery import force

    state = force.in_force()
    options = (state.app.conf.broker_transport_options or {}) if state else {}
    return key.partition("\x06\x16")[0].removeprefix(options.get("global_keyprefix") or "")


def name_worker(node: str, pid: int) -> str:
    """This life of a worker's main process, as leases name it: ``node:pid:random:release``, without blanks."""
    parts = (re.sub(r"\s", "_", node), pid, uuid.uuid4().hex[:8], re.sub(r"[\s:]", "_", release()))
    return ":".join(map(str, parts))


def node(worker: str) -> str:
    """The node name of a worker process."""
    return worker.rsplit(":", 3)[0]


def describe(raw: str) -> tuple[str, str, str]:
    """Delivery tag, task name and task id of a message; something in their place where it cannot be read."""
    try:
        message = json.loads(raw)
        headers = message["headers"]
        return str(message["properties"].get("delivery_tag") or ""), str(headers["task"]), str(headers["id"])
    except BROKEN:
        return "", "unreadable message", "-"


def arguments(message: dict[str, Any]) -> tuple[Any, Any]:
    """Positional and keyword arguments of a message of Celery's protocol 2, as kombu wrote it.

    Raises one of ``BROKEN``, or an error of kombu for what is not JSON.
    """
    body, properties = message["body"], message["properties"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    if packed := message["headers"].get("compression"):
        body = compression.decompress(body, packed)
    args, kwargs, _ = serialization.loads(
        body, message["content-type"], message["content-encoding"], accept={"application/json"}
    )
    return args, kwargs


def digest_of(args: Any, kwargs: Any) -> str:
    """The SHA-256 of arguments, the same for the same ones."""
    text = json.dumps([args, kwargs], sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _again(payload: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """A message as it is delivered again; ``redelivered`` is what kombu sets, too."""
    properties = payload["properties"]
    info = {**(properties.get("delivery_info") or {}), "redelivered": True}
    return {
        **payload,
        "headers": {**payload["headers"], "redelivered": True, HEADER: numbers},
        "properties": {**properties, "delivery_info": info},
    }


def _record(headers: dict[str, Any], tag: str, cause: str, number: int | None, worker: str) -> dict[str, Any]:
    return {
        "message": str(tag),
        "delivery": number,
        "task": str(headers.get("task")),
        "task_id": str(headers.get("id")),
        "worker": worker,
        "cause": cause,
        "time": time.time(),
    }


def _digest(message: dict[str, Any]) -> str:
    try:
        return digest_of(*arguments(message))
    except Exception:  # kombu's errors for what is not JSON have no common base
        return hashlib.sha256(str(message["body"]).encode()).hexdigest()


def _count(number: Any) -> int:
    return number if type(number) is int and number > 0 else 0
