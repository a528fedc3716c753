"""What the lead form does: store a lead, publish the alert to the team, send it, confirm it."""

import logging
from datetime import timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from leads.models import Lead
from service.mail import Outcome, deliver
from service.publishing import publish

logger = logging.getLogger(__name__)

SWEEP_AFTER = timedelta(minutes=10)
"""How long an alert may stay unconfirmed before it is published again: longer than its retries take."""
SWEEP_BATCH = 100


def register(lead: Lead) -> None:
    """Store a lead, and publish the alert once the row is committed.

    The row says from when on the sweep publishes the alert again. Only a confirmation ends that, so neither a
    broker that is away nor one that loses the message loses the lead.
    """
    lead.alert_due_at = timezone.now() + SWEEP_AFTER

    def after_commit() -> None:
        publish_alert(lead)

    with transaction.atomic():
        lead.save()
        # A named function: with a functools.partial, `robust` fails on its own when it comes to logging an
        # error.
        transaction.on_commit(after_commit, robust=True)


def publish_alert(lead: Lead) -> bool:
    """Publish the alert of a lead and return whether that worked; if not, the next sweep tries again."""
    from leads.tasks import alert_new_lead  # the tasks need this module

    published = publish(alert_new_lead, str(lead.pk))
    if not published:
        Lead.objects.filter(pk=lead.pk, alert_confirmed_at=None).update(alert_due_at=timezone.now())
    return published


def publish_overdue_alerts() -> int:
    """Publish the alerts that were not confirmed in time, oldest first, and return how many they were.

    Each row is claimed by a conditional update, so that two sweeps at once do not publish it twice. Killed
    between the claim and the publishing, the row is overdue again after SWEEP_AFTER.
    """
    now = timezone.now()
    published = 0
    overdue = Lead.objects.filter(alert_due_at__lte=now).order_by("alert_due_at")
    for lead in overdue[:SWEEP_BATCH]:
        row = Lead.objects.filter(pk=lead.pk, alert_due_at=lead.alert_due_at)
        if not row.update(alert_due_at=now + SWEEP_AFTER):
            continue
        if not publish_alert(lead):
            break  # the broker is away for the others too; the next sweep tries again
        published += 1
    if published:
        logger.warning("published %d alerts again that were not confirmed", published)
    return published


def send_alert(lead: Lead) -> Outcome:
    """Tell the team about a lead and return what became of the mail."""
    message = EmailMessage(
        subject=f"New lead: {lead.name}",
        body=f"{lead.name} <{lead.email}> wrote:\n\n{lead.message}\n",
        to=[settings.TEAM_EMAIL],
        reply_to=[lead.email],
        headers={"Message-ID": f"<lead.{lead.pk}@{settings.DOMAIN}>"},
    )
    return deliver(message)


def confirm_alert(lead: Lead) -> None:
    """Note that the mail server took the alert, so that the sweep leaves this lead alone."""
    Lead.objects.filter(pk=lead.pk).update(alert_confirmed_at=timezone.now(), alert_due_at=None)
