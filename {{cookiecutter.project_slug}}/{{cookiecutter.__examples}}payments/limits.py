"""How long things take and last, each derived from where it is written: ack_policy.toml and the provider's adapter."""

from datetime import timedelta

from payments.providers import provider
from redelivery import policy

TASKS = ("payments.tasks.send_payment", "payments.tasks.reconcile_payment")
"""The tasks that talk to the provider."""
FIRST_PAUSE = timedelta(seconds=30)
RECORD_AGAIN_AFTER_S = (0.1, 1, 3)
"""Pauses before an answer is recorded again: a database that restarts is back by then. Else it is read back later."""
LONGEST_PAUSE = timedelta(hours=1)


def dead_after() -> timedelta:
    """After so long no worker can still be at work on what it claimed: its hard limit, and the time to enforce it."""
    current = policy.current()
    return timedelta(seconds=max(current.tasks[name].time_limit_s for name in TASKS) + current.margin_s)


def resend_for() -> timedelta:
    """For so long after its first send a request may be sent again, and be done before the provider forgets the key."""
    return provider().key_lifetime - dead_after()


def pause(attempt: int) -> timedelta:
    """How long to wait after this attempt: twice as long as after the one before."""
    return min(FIRST_PAUSE * 2 ** min(attempt, 20), LONGEST_PAUSE)
