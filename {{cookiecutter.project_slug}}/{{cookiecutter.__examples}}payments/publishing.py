"""Place an order with its payment in one transaction, publish after the commit, and again whatever is due."""

import logging
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.functions import Now

from payments.models import Payment, State
from payments.records import Halt, Order
from service.publishing import publish

logger = logging.getLogger(__name__)

SWEEP_AFTER = timedelta(minutes=2)
"""How long the sweep leaves a payment to whoever publishes it now, and to its message on the way to a worker."""
SWEEP_BATCH = 500


def place_order(order: Order) -> Payment:
    """Store an order and its payment, and publish the payment once both are committed.

    Raises ValidationError for an order that makes no sense. Neither a broker that is away nor one that loses the
    message loses the payment: the sweep finds it.
    """
    if type(order.amount) is not int:  # Django would cut 12.50 to 12 without a word
        raise ValidationError({"amount": f"{order.amount!r} is not a whole number of minor units (cents)."})
    order.full_clean()
    payment = Payment(order=order, due_at=Now() + SWEEP_AFTER)
    payment.digest = payment.request.digest

    def after_commit() -> None:
        publish_payment(payment)

    with transaction.atomic():
        order.save(force_insert=True)
        payment.save(force_insert=True)
        # A named function: with a functools.partial, `robust` fails on its own when it comes to logging an error.
        transaction.on_commit(after_commit, robust=True)
    return payment


def publish_payment(payment: Payment) -> bool:
    """Publish what is to be done next for a payment, and return whether that worked; if not, the next sweep tries."""
    from payments.tasks import reconcile_payment, send_payment  # the tasks need this module

    if payment.state == State.PENDING:
        published = publish(send_payment, str(payment.pk))
    else:
        published = publish(reconcile_payment, str(payment.pk), str(payment.attempt))
    if not published:
        unchanged = Payment.objects.filter(pk=payment.pk, state=payment.state, attempt=payment.attempt)
        unchanged.update(due_at=Now())
    return published


def publish_due() -> int:
    """Publish what is due, longest due first, and return how much it was. While payments are halted, one to be sent.

    Each row is claimed by a conditional update, so that two sweeps at once do not publish it twice.
    """
    published = 0
    pending = 1 if Halt.objects.exists() else SWEEP_BATCH
    for states, most in (((State.SENDING, State.UNCERTAIN), SWEEP_BATCH), ((State.PENDING,), pending)):
        due = Payment.objects.filter(settled_at=None, state__in=states, due_at__lte=Now()).order_by("due_at")
        for payment in due[:most]:
            row = due.order_by().filter(pk=payment.pk, attempt=payment.attempt)
            if not row.update(due_at=Now() + SWEEP_AFTER):
                continue
            if not publish_payment(payment):
                return published  # the broker is away for the others too; the next sweep tries again
            published += 1
    return published
