"""While the provider refuses our credentials nothing is sent: one row says so, and lets a probe through at times."""

import logging
from datetime import timedelta

from django.db.models.functions import Now

from payments.records import Halt

logger = logging.getLogger(__name__)

PROBE_EVERY = timedelta(minutes=5)


def halt(reason: str) -> None:
    """Stop sending, loudly: from now on no claim succeeds until the next probe is due. Every payment stays as it is."""
    probe_at = Now() + PROBE_EVERY
    _, new = Halt.objects.update_or_create(
        pk=1, defaults={"probe_at": probe_at}, create_defaults={"probe_at": probe_at, "reason": reason}
    )
    if new:
        logger.critical("payments are HALTED, nothing is sent until this is mended: %s", reason)


def halted() -> bool:
    """Tell whether nothing may be sent now."""
    return Halt.objects.filter(probe_at__gt=Now()).exists()


def resume() -> bool:
    """Send again; return whether nothing was sent before. For `manage.py payments --resume`, and a good probe."""
    ended = bool(Halt.objects.all().delete()[0])
    if ended:
        logger.warning("payments are sent again")
    return ended
