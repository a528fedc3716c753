"""Delete what was settled long ago: a few rows at a time, and never an open one or its evidence."""

from datetime import timedelta

from django.db import transaction
from django.db.models.functions import Now

from payments.models import Payment
from payments.records import Evidence, Order
from service.settings.env import env

BATCH = 500
BATCHES = 100
"""How many batches one run deletes at most; the next run goes on."""


def retention() -> timedelta:
    """How long a settled payment is kept: longer than a customer may dispute it."""
    return timedelta(days=min(env.int("PAYMENT_RETENTION_DAYS", default=400), 100_000))


def purge() -> int:
    """Delete payments that were settled more than PAYMENT_RETENTION_DAYS ago, with order and evidence; return how many.

    Each batch is a transaction of its own, so no lock is held for long. The order goes with its payment: one that
    stayed without could be paid a second time.
    """
    old = Payment.objects.filter(contradicted=False, settled_at__lt=Now() - retention())
    purged = 0
    for _ in range(BATCHES):
        with transaction.atomic():
            rows = list(old.order_by("settled_at").values_list("pk", "order_id")[:BATCH])
            payments, orders = [pk for pk, _ in rows], [order for _, order in rows]
            Evidence.objects.filter(payment_id__in=payments).delete()
            Payment.objects.filter(pk__in=payments).delete()
            Order.objects.filter(pk__in=orders).delete()
        purged += len(rows)
        if len(rows) < BATCH:
            break
    return purged
