from celery import shared_task
from django.db import transaction

from .models import Contact


@shared_task()
def get_contacts_count():
    """A pointless Celery task to demonstrate usage."""
    return Contact.objects.count()


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=3, default_retry_delay=600)
def add_points(self, email, points):
    """Everything in one transaction, so nothing can be half done."""
    with transaction.atomic():
        contact, _ = Contact.objects.select_for_update().get_or_create(email=email)
        contact.points += points
        contact.save()
    get_contacts_count.delay()
