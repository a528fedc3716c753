"""The tasks that pay. How they are acknowledged and limited is written in ack_policy.toml."""

from celery import shared_task

from payments import reconciliation
from payments.models import Payment, State
from payments.sending import claim_and_send
from payments.statements import read_payment
from redelivery.log import guard


@shared_task
def send_payment(payment_id: str) -> str:
    """Send a payment that is pending, once: of any number of deliveries one gets the claim, the others skip.

    Errs on the side of not sending: killed after the claim, the payment waits for reconciliation.
    """
    payment = read_payment(payment_id)
    if payment is None:
        raise Payment.DoesNotExist(f"no payment {payment_id}: nothing was sent")
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
