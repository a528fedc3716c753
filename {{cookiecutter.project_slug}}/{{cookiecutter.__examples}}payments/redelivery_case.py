"""How the redelivery tests call the tasks of the payments, and count charges in the provider's own ledger."""

import atexit
import functools
import os

from payments.models import Payment, State
from payments.records import Order
from payments.testing import Simulator, simulator
from redelivery.testing.case import Case


@functools.cache
def provider_of(pid: int) -> Simulator:
    """Return this process's simulated provider; it is there until the process ends.

    It behaves the same for all cases, because they are tried at the same time: it charges, and cannot be read back.
    """
    running = simulator()
    atexit.register(running.__exit__, None, None, None)
    provider = running.__enter__()
    provider.behave(unreadable=True)
    return provider


def pending() -> Payment:
    """Write an order and its payment, without publishing it."""
    order = Order.objects.create(customer="cus_1", method="pm_card", amount=1250, currency="EUR")
    payment = Payment(order=order)
    payment.digest = payment.request.digest
    payment.save()
    return payment


class SendPayment(Case):
    """One pending payment; its effect is a charge in the ledger."""

    task = "payments.tasks.send_payment"

    def prepare(self, world):
        """A payment."""
        provider_of(os.getpid())
        return (str(pending().pk),)

    def effects(self, world, args):
        """Charges of its key."""
        return len(provider_of(os.getpid()).charges(str(Payment.objects.get(pk=args[0]).provider_key)))


class ReconcilePayment(SendPayment):
    """One payment in doubt that the provider cannot read back, so that the same request is sent again."""

    task = "payments.tasks.reconcile_payment"

    def prepare(self, world):
        """A payment whose first attempt got no answer, and did nothing."""
        provider_of(os.getpid())
        payment = pending()
        assert payment.claim() and payment.move(State.UNCERTAIN, "worker", "Unknown: timed out")
        return (str(payment.pk), str(payment.attempt))
