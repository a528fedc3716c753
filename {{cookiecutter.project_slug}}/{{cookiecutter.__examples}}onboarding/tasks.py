"""Tasks of the sign-up. How they are acknowledged and limited is written in ack_policy.toml."""

import logging

from celery import shared_task
from django.db import InterfaceError, OperationalError

from onboarding import services
from onboarding.models import Submission
from redelivery.log import guard
from redelivery.marker import Marker, MarkerUnavailable
from service.mail import MailNotSent, Outcome

logger = logging.getLogger(__name__)

# All that is retried happens before the send, or is a send that provably did not happen.
BEFORE_THE_SEND = (MarkerUnavailable, OperationalError, InterfaceError, MailNotSent)


@shared_task(
    bind=True, autoretry_for=BEFORE_THE_SEND, max_retries=10, retry_backoff=10, retry_backoff_max=240
)
def send_welcome_email(self, submission_id: str) -> str:
    """Send the welcome email of a submission, once as far as possible.

    Errs on the side of sending twice. Gaps left: killed after the send and before the marker; two deliveries
    at the same moment; a cache that was flushed. A mail that may or may not have been accepted is not sent
    again.
    """
    marker = Marker(self.name, submission_id)
    if marker.is_set():
        guard("skip", "already sent; skipping redelivery")
        return "already sent"
    submission = Submission.objects.filter(pk=submission_id).first()
    if submission is None:
        logger.error("no submission %s: nothing sent", submission_id)
        return "no such submission"
    outcome = services.send_welcome(submission)
    if outcome is Outcome.SENT:
        marker.set()
    elif outcome is Outcome.NOT_SENT:
        raise MailNotSent(f"welcome email of submission {submission_id}")
    return outcome.value


@shared_task
def publish_overdue_welcomes() -> int:
    """Publish the welcome emails that nobody has published; beat asks for it every minute."""
    return services.publish_overdue_welcomes()
