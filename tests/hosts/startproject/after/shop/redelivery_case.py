from uuid import uuid4

from redelivery.testing.case import Case
from shop.models import Order


class Receipt(Case):
    """One order; the effect is a mail to its address."""

    task = "shop.tasks.send_receipt"

    def prepare(self, world):
        order = Order.objects.create(email=f"{uuid4().hex}@example.com", total="9.50")
        return (order.pk,)

    def effects(self, world, args):
        return len(world.mailbox.mails(to=Order.objects.get(pk=args[0]).email))
