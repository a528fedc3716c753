"""Claim a payment, send it, and record what the provider said: also when that comes late."""

import logging
import time

from celery.exceptions import SoftTimeLimitExceeded
from django.db import DatabaseError, connection

from payments import halt
from payments.limits import RECORD_AGAIN_AFTER_S, pause
from payments.models import OPEN, Payment, State
from payments.providers import Accepted, Misconfigured, NotSent, Outcome, Rejected, Unknown, asked, provider

logger = logging.getLogger(__name__)


def claim_and_send(payment: Payment) -> str | None:
    """Send a payment if this process gets the claim (else None), and return the state that the answer led to."""
    adapter, begun = provider(), time.monotonic()
    if not payment.claim():
        return None
    attempt = payment.attempt
    outcome: Outcome = Unknown("the order is not what it was when it was placed: nothing sent", alarm=True)
    if time.monotonic() - begun > adapter.timeout_s:
        outcome = NotSent("stopped for too long between the claim and the send")
    elif payment.request.digest == payment.digest:
        outcome = asked(adapter.send, payment.request)
    for wait_s in RECORD_AGAIN_AFTER_S:  # nothing that the provider said may be lost
        try:
            return record(payment, attempt, outcome)
        except (SoftTimeLimitExceeded, DatabaseError) as error:  # the former is raised once
            logger.error("%s, attempt %s: %s could not be recorded: %s", payment, attempt, outcome, error)
            connection.close()
            time.sleep(wait_s)
    return record(payment, attempt, outcome)


def record(payment: Payment, attempt: int, outcome: Outcome, who: str = "worker") -> str:
    """Write what is known of an attempt, to a row that may have moved on since; return the state after it."""
    if isinstance(outcome, Misconfigured):
        halt.halt(outcome.reason)
    elif getattr(payment, "halted", False) and isinstance(outcome, Accepted | Rejected):
        halt.resume()  # this was the probe
    reason = f"{type(outcome).__name__}: {outcome.reason}"
    alarm = getattr(outcome, "alarm", False)
    while (to := verdict(payment, attempt, outcome)) != payment.state or (alarm and to == State.UNCERTAIN):
        due = pause(attempt) if to in OPEN and not alarm else None
        if alarm:
            logger.critical("%s needs a person: %s", payment, reason)
        if payment.move(to, who, reason, outcome.reference, due):
            return to
        payment.refresh_from_db()
    contradiction = contradicts(payment, attempt, outcome)
    payment.note(who, f"{'CONTRADICTION, ' * contradiction}attempt {attempt}: {reason}", outcome.reference)
    if contradiction:
        Payment.objects.filter(pk=payment.pk).update(contradicted=True)
        logger.critical("%s is %s, but: %s %s", payment, payment.state, reason, outcome.reference)
    return payment.state


def speaks_for_all(payment: Payment, attempt: int, outcome: Outcome) -> bool:
    """Whether a "no" is about every attempt. A refused re-send says nothing of the one before it."""
    alone = payment.attempt == attempt and payment.doubted in (None, attempt)
    return alone or (isinstance(outcome, Rejected) and outcome.first_hand)


def verdict(payment: Payment, attempt: int, outcome: Outcome) -> str:
    """Return the state that a payment is to have, given what is known of one of its attempts."""
    if payment.state not in OPEN:
        return payment.state
    if isinstance(outcome, Accepted):
        return State.SENT
    if speaks_for_all(payment, attempt, outcome):
        if isinstance(outcome, Rejected):
            return State.REJECTED
        if isinstance(outcome, NotSent | Misconfigured):
            return State.PENDING
    return State.UNCERTAIN if (payment.state, payment.attempt) == (State.SENDING, attempt) else payment.state


def contradicts(payment: Payment, attempt: int, outcome: Outcome) -> bool:
    """Whether an answer and the final state that the payment has already cannot both be true."""
    if isinstance(outcome, Accepted):
        return payment.state == State.REJECTED or payment.reference != outcome.reference
    denies = payment.state == State.SENT and isinstance(outcome, Rejected)
    return denies and speaks_for_all(payment, attempt, outcome)
