"""What beat asks for: publish what is due, purge what is old. How they are acknowledged is in ack_policy.toml."""

from celery import shared_task

from payments import publishing, retention


@shared_task
def publish_due_payments() -> int:
    """Publish what is due: payments to be sent, and payments to be looked into; beat asks for it every minute."""
    return publishing.publish_due()


@shared_task
def purge_payments() -> int:
    """Delete payments that were settled long ago; beat asks for it every hour."""
    return retention.purge()
