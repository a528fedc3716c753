"""What becomes of a message that comes back: it goes into its queue again, with its count, or is parked."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redelivery import kills, recorder

if TYPE_CHECKING:
    from redelivery.broker.holder import Holder

#: Seconds for which is remembered who a worker was; each renewal writes it again.
FACTS_S = 86_400


@dataclass(frozen=True)
class Return:
    """How a message comes back: whether it had ``started``, the ``cause`` of a kill, a ``reason`` to park it."""

    started: bool
    cause: str = ""
    reason: str = ""


UNSTARTED = Return(started=False)


def give_back(holder: Holder, tag: str, back: Return) -> None:
    """Give back a message of the holder's own."""
    stored = holder.client.hget(f"{holder.prefix}unacked", tag)
    lease = holder.client.hget(holder.key("leases"), tag)
    if stored and lease:
        queue = lease.decode().split(" ", 3)[3]
        _move(holder, tag, "", stored, back, queue, holder.worker, _facts(holder))


def release(holder: Holder, keep: Collection[str] = ()) -> None:
    """Give back all that the holder has leased, but ``keep``, in its old order: the oldest is taken first again.

    That covers messages of which the process never heard, because the answer to its last take was lost.
    """
    with holder.lock:
        gone = [tag for tag in holder.held if tag not in keep]
        backs = {tag: Return(not holder.held.pop(tag), holder.causes.pop(tag, "")) for tag in gone}
    leases = holder.client.hgetall(holder.key("leases"))
    ours = [tag.decode() for tag, lease in leases.items() if lease.split()[1] == holder.worker.encode()]
    ours = [tag for tag in ours if tag not in holder.held and tag not in holder.done]
    for tag in sorted(ours, key=lambda tag: gone.index(tag) if tag in backs else len(gone), reverse=True):
        give_back(holder, tag, backs.get(tag, UNSTARTED))


def give_back_expired(holder: Holder, found: list[Any]) -> None:
    """Give back messages whose leases ran out, or that a stock worker holds for too long."""
    for tag, seen, stored in found:
        tag, seen = tag.decode(), seen.decode()
        if tag in holder.held or tag in holder.done:
            continue
        _, worker, waits, key = seen.split(" ", 3) if " " in seen else (seen, "", "0", _key(holder, stored))
        facts = json.loads(holder.client.get(holder.key(f"worker.{worker}")) or "{}")
        cause = (
            "drain timeout" if facts.get("draining") else "worker gone" if worker else "visibility timeout"
        )
        unstarted = waits == "1" or worker == holder.worker
        back = UNSTARTED if unstarted else Return(started=True, cause=cause)
        if _move(holder, tag, seen, stored, back, key, worker, facts):
            return  # it has killed before: what was killed with it comes back a second later, not beside it


def announce(holder: Holder) -> None:
    """Write down who this worker is, for whoever finds its messages later."""
    name = holder.key(f"worker.{holder.worker}")
    holder.client.set(name, json.dumps(_facts(holder)), ex=FACTS_S)


def forget(holder: Holder) -> None:
    """Remove what ``announce`` wrote, for a worker that ends and has given everything back."""
    holder.client.delete(holder.key(f"worker.{holder.worker}"))


def _facts(holder: Holder) -> dict[str, Any]:
    return {"node": holder.node, "release": kills.release(), "draining": holder.draining}


def _move(
    holder: Holder,
    tag: str,
    seen: str,
    stored: bytes,
    back: Return,
    key: str,
    worker: str,
    facts: dict[str, Any],
) -> bool:
    """Move one message, if it still is whose it was; returns whether it had killed a worker before."""
    raw, payload = _split(stored)
    text, record, parked = raw, "", ""
    if back.reason or payload is None:
        reason = back.reason or "it cannot be decoded"
        parked = kills.parked(raw, key=key, reason=reason, worker=worker)
    elif back.started:
        text, record, parked = kills.judge(kills.Interrupted(payload, tag, key, worker, facts, back.cause))
    target, end = (holder.key("parked"), "LPUSH") if parked else (key, "LPUSH" if back.started else "RPUSH")
    args = [holder.prefix, holder.worker, tag, seen, target, end, parked or text, record]
    done = holder.give_back(args=args)
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


def _key(holder: Holder, stored: bytes) -> str:
    """The list of a message that a stock worker took, which noted only its exchange and routing key."""
    message, exchange, routing_key = json.loads(stored)
    channel = holder.channel
    queue = channel._lookup(exchange, routing_key)[0]
    return holder.prefix + channel._q_for_pri(queue, channel._get_message_priority(message))
