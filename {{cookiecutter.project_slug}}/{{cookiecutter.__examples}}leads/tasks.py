"""Tasks of the lead form. How they are acknowledged and limited is written in ack_policy.toml."""

import logging

from celery import shared_task
from django.db import InterfaceError, OperationalError

from leads import services
from leads.models import Lead
from service.mail import MailNotSent

logger = logging.getLogger(__name__)

HARMLESS_TO_REPEAT = (OperationalError, InterfaceError, MailNotSent)


@shared_task(
    bind=True, autoretry_for=HARMLESS_TO_REPEAT, max_retries=3, retry_backoff=10, retry_backoff_max=240
)
def alert_new_lead(self, lead_id: str) -> str:
    """Tell the team about a lead, at least once: on purpose without a marker or a look at the confirmation.

    Errs on the side of telling twice: a duplicate is harmless, a lost alert is a missed lead. So an unknown
    outcome is retried as well, and the sweep publishes again whatever was never confirmed.
    """
    lead = Lead.objects.filter(pk=lead_id).first()
    if lead is None:
        logger.error("no lead %s: nobody told", lead_id)
        return "no such lead"
    if not services.send_alert(lead):
        raise MailNotSent(f"alert of lead {lead_id}")
    services.confirm_alert(lead)
    return "sent"


@shared_task
def publish_overdue_alerts() -> int:
    """Publish the alerts that were not confirmed in time; beat asks for it every minute."""
    return services.publish_overdue_alerts()
