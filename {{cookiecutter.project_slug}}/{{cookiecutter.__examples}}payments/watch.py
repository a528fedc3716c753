"""The numbers that somebody should watch, and the thresholds past which something is wrong."""

from datetime import timedelta

from django.db.models import Count, Min
from django.db.models.functions import Now

from payments.models import OPEN, Payment, State
from payments.records import Halt
from service.settings.env import env


def open_payments() -> dict:
    """Count what is open, by state, with the age in seconds of the oldest; from the index of the open ones alone."""
    rows = (
        Payment.objects.filter(settled_at=None)
        .values("state")
        .annotate(count=Count("pk"), age=Now() - Min("created_at"))
        .order_by()
    )
    found = {state.value: {"count": 0, "oldest_s": 0} for state in OPEN}
    for row in rows:
        found[row["state"]] = {"count": row["count"], "oldest_s": max(0, int(row["age"].total_seconds()))}
    return found


def numbers() -> dict:
    """Return what `/healthz` shows in detail: open payments, those with a person, contradictions, and the halt."""
    halt = Halt.objects.first()
    return {
        "open": open_payments(),
        "with_a_person": Payment.objects.filter(settled_at=None, state=State.UNCERTAIN, due_at=None).count(),
        "contradicted": Payment.objects.filter(contradicted=True).count(),
        "halted": {"since": halt.since.isoformat(), "reason": halt.reason} if halt else None,
    }


def settled() -> dict:
    """Count what is settled, by state: a look at every row. An uncertain payment is in no such count."""
    rows = Payment.objects.exclude(settled_at=None).values("state").annotate(count=Count("pk")).order_by()
    return {State.SENT.value: 0, State.REJECTED.value: 0} | {row["state"]: row["count"] for row in rows}


def thresholds() -> dict[str, timedelta]:
    """After how long an open payment is too old, by state; PAYMENT_MAX_PENDING_S and so on, in seconds."""
    defaults = {State.PENDING: 900, State.SENDING: 900, State.UNCERTAIN: 3600}
    names = {state: f"PAYMENT_MAX_{state.name}_S" for state in defaults}
    return {
        state.value: timedelta(seconds=env.int(names[state], default=seconds))
        for state, seconds in defaults.items()
    }


def problems(found: dict) -> list[str]:
    """Say in sentences what is past its threshold."""
    limits = thresholds()
    said = [
        f"{each['count']} {state}, the oldest for {each['oldest_s']} s: more than {limits[state].total_seconds():.0f} s"
        for state, each in found["open"].items()
        if each["count"] and each["oldest_s"] > limits[state].total_seconds()
    ]
    if found["with_a_person"]:
        said.append(
            f"{found['with_a_person']} wait for a person: see them in the admin, Payments, state uncertain"
        )
    if found["contradicted"]:
        said.append(f"{found['contradicted']} contradict what was seen of them: see them in the admin")
    if found["halted"]:
        said.append(f"halted since {found['halted']['since']}: {found['halted']['reason']}")
    return said
