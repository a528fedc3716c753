"""Tasks of the payments. How they are acknowledged and limited is written in ack_policy.toml."""

import logging

from celery import shared_task

from payments import publishing, reconciliation, retention
from payments.models import Payment, State
from payments.sending import claim_and_send
from redelivery.log import guard

logger = logging.getLogger(__name__)


@shared_task
def send_payment(payment_id: str) -> str:
    """Send a payment that is pending, once: of any number of deliveries one gets the claim, the others skip.

    Errs on the side of not sending: killed after the claim, the payment waits for reconciliation.
    """
    payment = Payment.to_send().filter(pk=payment_id).first()
    if payment is None:
        logger.error("no payment %s: nothing sent", payment_id)
        return "no such payment"
    if payment.state != State.PENDING:
        guard("skip", f"it is {payment.state}; skipping")
        return "not pending"
    state = claim_and_send(payment)
    if state is None:
        guard("skip", "another delivery has it, or payments are halted")
    return state or "not claimed"


@shared_task
def reconcile_payment(payment_id: str, attempt: str) -> str:
    """Find out what became of an attempt that is in doubt; skip if the payment has moved on."""
    payment = reconciliation.in_doubt().filter(pk=payment_id, attempt=attempt).first()
    if payment is None:
        guard("skip", "it is not in doubt any more; skipping")
        return "not in doubt"
    return reconciliation.reconcile(payment)


@shared_task
def publish_due_payments() -> int:
    """Publish what is due: payments to be sent, and payments to be looked into; beat asks for it every minute."""
    return publishing.publish_due()


@shared_task
def purge_payments() -> int:
    """Delete payments that were settled long ago; beat asks for it every hour."""
    return retention.purge()
