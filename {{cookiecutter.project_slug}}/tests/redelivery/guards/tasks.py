"""One task for each guard, as short as the guard allows."""

from celery import shared_task
from django.core.mail import send_mail
from django.db import transaction
from django.db.models import F

from redelivery.marker import Marker
from tests.redelivery.guards.models import Account, Credit, Parcel, Rate, Visit


def mail(to: str) -> None:
    """Send a mail: an effect outside of the database that cannot be taken back."""
    send_mail("Hello", "A line of text.", "guards@example.com", [to])


@shared_task
def page_somebody(to):
    """Guard `none`: everything again."""
    mail(to)


@shared_task
def greet(to):
    """Guard `marker`: looked up first, written right after the effect."""
    marker = Marker("tests.redelivery.guards.tasks.greet", to)
    if marker.is_set():
        return
    mail(to)
    marker.set()


@shared_task
def credit(number, account_id, amount):
    """Guard `transaction`: a row with a natural key, in the same transaction as the effect."""
    with transaction.atomic():
        _, created = Credit.objects.get_or_create(number=number, defaults={"account_id": account_id})
        if created:
            Account.objects.filter(pk=account_id).update(balance=F("balance") + amount)


@shared_task
def store_rate(day, value):
    """Guard `transaction`: an upsert, which needs no look before it writes."""
    Rate.objects.bulk_create(
        [Rate(day=day, value=value)], update_conflicts=True, unique_fields=["day"], update_fields=["value"]
    )


@shared_task
def announce_parcel(parcel_id, to):
    """Guard `claim`: a conditional update lets one delivery act.

    A row that is left in `sending` is in doubt, which is not this task's to settle.
    """
    claimed = Parcel.objects.filter(pk=parcel_id, state="waiting").update(state="sending")
    if not claimed:
        return
    mail(to)
    Parcel.objects.filter(pk=parcel_id, state="sending").update(state="sent")


@shared_task
def count_visit(page):
    """Guard `lost-ok`, acknowledged early: there is no second run."""
    Visit.objects.create(page=page)
