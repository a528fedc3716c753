"""What becomes of a message that comes back: it goes into its queue again, with its count, or is parked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from redelivery import kills, recorder

if TYPE_CHECKING:
    from redelivery.broker.holder import Holder

#: What interrupted a message, by what its lease says that it does; one that waits has not started.
CAUSES = {"runs": "worker gone", "drains": "drain timeout", "stock": "visibility timeout"}


@dataclass(frozen=True)
class Return:
    """How a message comes back: whether it had ``started``, the ``cause`` of a kill, a ``reason`` to park it."""

    started: bool
    cause: str = ""
    reason: str = ""


UNSTARTED = Return(started=False)


class Found(NamedTuple):
    """A message as it is registered: its tag, its lease (or its score), and the same taken apart.

    ``stored`` is ``[text, exchange, routing key]``, as kombu writes it.
    """

    tag: str
    seen: str
    stored: bytes
    worker: str
    state: str
    key: str


def give_back(holder: Holder, tag: str, back: Return) -> None:
    """Give back a message of the holder's own."""
    stored, lease = (
        holder.client.hget(f"{holder.prefix}unacked", tag),
        holder.client.hget(holder.key("leases"), tag),
    )
    if stored and lease:
        _move(holder, _found(holder, tag, lease.decode(), stored), back)


def give_back_unheard(holder: Holder) -> None:
    """Give back what is leased to this process and never reached it: the answer was lost, or came into a drain."""
    for tag, lease in holder.client.hgetall(holder.key("leases")).items():
        tag = tag.decode()
        if f" {holder.worker} " in lease.decode() and tag not in holder.held and tag not in holder.done:
            give_back(holder, tag, UNSTARTED)


def give_back_expired(holder: Holder, out: list[Any]) -> None:
    """Give back messages whose leases ran out, or that a stock worker holds for too long."""
    for tag, seen, stored in out:
        found = _found(holder, tag.decode(), seen.decode(), stored)
        if found.tag in holder.held or found.tag in holder.done:
            continue
        started = found.state != "waits" and found.worker != holder.worker
        if _move(holder, found, Return(True, CAUSES[found.state]) if started else UNSTARTED):
            return  # it has killed before: what was killed with it comes back a second later, not beside it


def _found(holder: Holder, tag: str, seen: str, stored: bytes) -> Found:
    if " " in seen:
        return Found(tag, seen, stored, *seen.split(" ", 4)[2:])
    message, exchange, routing_key = json.loads(stored)  # a stock worker notes no list
    queue, priority = (
        holder.channel._lookup(exchange, routing_key)[0],
        holder.channel._get_message_priority(message),
    )
    return Found(tag, seen, stored, "", "stock", holder.prefix + holder.channel._q_for_pri(queue, priority))


def _move(holder: Holder, found: Found, back: Return) -> bool:
    """Move one message, if it still is whose it was; returns whether it had killed a worker before."""
    raw, payload = _split(found.stored)
    text, record, parked = raw, "", ""
    if back.reason or payload is None:
        reason = back.reason or "it cannot be decoded"
        parked = kills.parked(raw, key=found.key, reason=reason, worker=found.worker)
    elif back.started:
        one = kills.Interrupted(payload, found.tag, found.key, found.worker, back.cause)
        text, record, parked = kills.judge(one)
    target, end = found.key, "LPUSH" if back.started else "RPUSH"
    if parked:
        target, end, text = holder.key("parked"), "LPUSH", parked
    done = holder.give_back(
        args=[holder.prefix, holder.worker, found.tag, found.seen, target, end, text, record]
    )
    if done and parked:
        kills.log_parked(parked)
    if done and (parked or record):
        recorder.wake()
    return bool(done and payload and back.cause and kills.crashes(payload))


def _split(stored: bytes) -> tuple[str, Any]:
    """The text of a message as it was published, and the same decoded, from ``[text, exchange, routing key]``."""
    text = stored.decode(errors="replace")[1:].lstrip()
    try:
        payload, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return text, None
    return text[:end], payload
