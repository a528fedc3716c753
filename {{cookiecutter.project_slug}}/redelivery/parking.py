"""What an operator does with a parked message: put it back on its queue, or discard it."""

from __future__ import annotations

import json
import logging

from django.db import transaction
from django.utils import timezone

from redelivery import force, kills
from redelivery.models import Parked

logger = logging.getLogger("redelivery")

#: Seconds to wait for the broker.
CONNECT_S = 3


class NotSettled(Exception):
    """A parked message is as it was; the text says why."""


def replay(parked: Parked, operator: str) -> None:
    """Put a message back on its queue, behind what waits there, with its crashes forgotten.

    The row says afterwards who did it. The next delivery counts on from the last one.

    Raises:
        NotSettled: another operator was first, the message cannot be read, or the broker did not take it.
    """
    try:
        message = json.loads(parked.raw)
        message["headers"][kills.HEADER] = {"deliveries": kills.counts(message["headers"])[0], "crashes": 0}
    except kills.BROKEN as error:
        raise NotSettled(f"It cannot be read, so no worker could run it: discard it ({error!r}).") from None
    with transaction.atomic():
        _settle(parked, Parked.State.REPLAYED, operator)
        try:
            with force.in_force().app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=CONNECT_S)
                connection.default_channel._put(parked.queue, message)
        except Exception as error:  # redis-py's and kombu's errors have no common base
            raise NotSettled(f"The broker did not take it, so it still waits here: {error}") from error
    _log(parked, "put back on its queue", operator)


def discard(parked: Parked, operator: str) -> None:
    """Give a message up; its row stays.

    Raises:
        NotSettled: another operator was first.
    """
    _settle(parked, Parked.State.DISCARDED, operator)
    _log(parked, "discarded", operator)


def _settle(parked: Parked, state: str, operator: str) -> None:
    """Let one operator settle a message: of two updates of a waiting row the second finds none."""
    waiting = Parked.objects.filter(pk=parked.pk, state=Parked.State.WAITING)
    won = waiting.update(state=state, settled_by=operator[:255], settled_at=timezone.now())
    parked.refresh_from_db()
    if not won:
        when = (
            timezone.localtime(parked.settled_at)
            if timezone.is_aware(parked.settled_at)
            else parked.settled_at
        )
        raise NotSettled(f"{parked.settled_by} has {parked.state} it before, at {when:%Y-%m-%d %H:%M}.")


def _log(parked: Parked, what: str, operator: str) -> None:
    logger.warning("%s, which was parked, was %s by %s", parked, what, operator)
