from uuid import uuid4

from acme.billing.models import Payment
from redelivery.testing.case import Case


class Booked(Case):
    """One payment; the effect is its row."""

    task = "acme.billing.book-payment"

    def prepare(self, world):
        return (uuid4().hex, 950)

    def effects(self, world, args):
        return Payment.objects.filter(reference=args[0]).count()
