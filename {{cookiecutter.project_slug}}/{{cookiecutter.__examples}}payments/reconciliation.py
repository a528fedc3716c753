"""What became of a payment that is in doubt: read it back, and send it again only where that cannot charge twice."""

from django.db.models import Q
from django.db.models.functions import Now

from payments import halt
from payments.limits import dead_after, pause
from payments.models import Payment, State
from payments.providers import Accepted, NotFound, Rejected, asked, provider
from payments.sending import claim_and_send, record

WHO = "reconciliation"


def in_doubt():
    """Uncertain payments, and those whose worker cannot be alive any more. Age resets nothing: it says when to look."""
    dead = Q(state=State.SENDING, claimed_at__lte=Now() - dead_after())
    return Payment.to_send().filter(Q(state=State.UNCERTAIN) | dead)


def reconcile(payment: Payment) -> str:
    """Settle a payment in doubt as far as the provider can tell, and return its state."""
    if payment.state == State.SENDING:
        seen = f"claimed at {payment.claimed_at:%Y-%m-%d %H:%M:%S} UTC, and no answer was recorded"
        if not payment.move(State.UNCERTAIN, WHO, seen, due=pause(0)):
            return "moved on"
    adapter = provider()
    outcome = asked(adapter.read_back, payment.request, payment.created_at)
    if isinstance(outcome, Accepted | Rejected) or getattr(outcome, "alarm", False):
        return record(payment, payment.attempt, outcome, WHO)
    if isinstance(outcome, NotFound) and adapter.not_found_is_proof:
        moved = payment.move(State.PENDING, WHO, f"read back: {outcome.reason}", due=pause(0))
        return State.PENDING if moved else "moved on"
    seen, due = f"a person is to find out: {outcome.reason}", None
    if halt.halted():
        seen, due = f"halted: {outcome.reason}", pause(payment.attempt)
    elif state := claim_and_send(payment):  # the same key and body, and the provider still knows the key
        return state
    return State.UNCERTAIN if payment.move(State.UNCERTAIN, WHO, seen, due=due) else "moved on"
