"""What a person may settle, with what was seen; each refuses when the payment is not any more what the person saw."""

from django.db import transaction

from payments import reconciliation
from payments.limits import pause
from payments.models import OPEN, Payment, State
from payments.providers import asked, provider
from payments.publishing import publish_payment
from payments.sending import record


class MovedOn(Exception):
    """Somebody or something else was faster; the text says what the payment is now."""


def seen_by(payment_id: int, state: str, attempt: int) -> Payment:
    """Return the payment if it is still what the person saw; raises MovedOn otherwise."""
    payment = Payment.to_send().get(pk=payment_id)
    if (payment.state, payment.attempt) != (state, attempt):
        raise MovedOn(now(payment))
    return payment


def now(payment: Payment) -> str:
    """Say what a payment is now, and who saw what last."""
    payment.refresh_from_db()
    last = payment.evidence_set.order_by("-pk").first()
    because = f" ({last})" if last else ""
    return f"Nothing was recorded: {payment} is {payment.state} by now, attempt {payment.attempt}{because}."


def may_be_settled(payment: Payment) -> bool:
    """Whether a person may say how it ended: it is in doubt, or what was seen contradicts itself."""
    return payment.state == State.UNCERTAIN or payment.contradicted


def record_charged(payment: Payment, who: str, seen: str, reference: str) -> None:
    """Record that the customer was charged; raises MovedOn."""
    if not may_be_settled(payment) or not payment.move(State.SENT, who, seen, reference):
        raise MovedOn(now(payment))


def record_not_charged(payment: Payment, who: str, seen: str, reference: str) -> None:
    """Record that nothing was charged, and send the same request again; raises MovedOn.

    With the same key: should the provider know it after all, it still charges once.
    """
    if payment.state != State.UNCERTAIN:
        raise MovedOn(now(payment))

    def after_commit() -> None:
        publish_payment(payment)

    with transaction.atomic():
        if not payment.move(State.PENDING, who, seen, reference, due=pause(1)):
            raise MovedOn(now(payment))
        transaction.on_commit(after_commit, robust=True)


def read_back(payment: Payment, who: str) -> str:
    """Ask the provider now, and return the state after it. Only for payments in doubt; raises MovedOn for others.

    What the provider does not find may be under way, so that proves nothing here.
    """
    in_doubt = reconciliation.in_doubt().filter(pk=payment.pk, attempt=payment.attempt).exists()
    if payment.state not in OPEN or not in_doubt:
        raise MovedOn(now(payment))
    outcome = asked(provider().read_back, payment.request, payment.created_at)
    return record(payment, payment.attempt, outcome, who)
