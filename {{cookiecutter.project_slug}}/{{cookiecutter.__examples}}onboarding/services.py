"""What the sign-up does: store a submission, publish its welcome email, send it."""

import logging
from datetime import timedelta

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from onboarding.models import Submission
from service.mail import Outcome, deliver
from service.publishing import publish

logger = logging.getLogger(__name__)

SWEEP_AFTER = timedelta(minutes=2)
"""How long the sweep leaves a submission to whoever publishes it now, a web request or another sweep."""
SWEEP_BATCH = 100


def sign_up(submission: Submission) -> None:
    """Store a submission, and publish its welcome email once the row is committed.

    The row says that the email is due. Whoever publishes it takes that back; if nobody does (broker away,
    process killed), the sweep finds it.
    """
    submission.welcome_due_at = timezone.now() + SWEEP_AFTER

    def after_commit() -> None:
        publish_welcome(submission)

    with transaction.atomic():
        submission.save()
        # A named function: with a functools.partial, `robust` fails on its own when it comes to logging an
        # error.
        transaction.on_commit(after_commit, robust=True)


def publish_welcome(submission: Submission) -> bool:
    """Publish the welcome email of a submission and note that it is not due any more; return if it worked."""
    from onboarding.tasks import send_welcome_email  # the tasks need this module

    if not publish(send_welcome_email, str(submission.pk)):
        return False
    Submission.objects.filter(pk=submission.pk).update(welcome_due_at=None)
    return True


def publish_overdue_welcomes() -> int:
    """Publish the welcome emails that nobody has published, oldest first, and return how many they were.

    Each row is claimed by a conditional update, so that two sweeps at once do not publish it twice. One that
    was published by a process that died before it noted that is published again; then the marker of the task
    keeps the mail from going out twice.
    """
    now = timezone.now()
    published = 0
    overdue = Submission.objects.filter(welcome_due_at__lte=now).order_by("welcome_due_at")
    for submission in overdue[:SWEEP_BATCH]:
        row = Submission.objects.filter(pk=submission.pk, welcome_due_at=submission.welcome_due_at)
        if not row.update(welcome_due_at=now + SWEEP_AFTER):
            continue
        if not publish_welcome(submission):
            break  # the broker is away for the others too; the next sweep tries again
        published += 1
    if published:
        logger.info("published %d overdue welcome emails", published)
    return published


def send_welcome(submission: Submission) -> Outcome:
    """Send the welcome email of a submission and return what became of it.

    Its Message-ID is the same at each sending, so that mail systems can recognise the rare duplicate.
    """
    name = settings.SERVICE_NAME
    message = EmailMessage(
        subject=f"Welcome to {name}",
        body=f"Hello {submission.name},\n\nthank you for signing up. Welcome to {name}!\n",
        to=[submission.email],
        headers={"Message-ID": f"<welcome.{submission.pk}@{settings.DOMAIN}>"},
    )
    return deliver(message)
