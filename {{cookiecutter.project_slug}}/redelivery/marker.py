"""A note in the cache that an effect has taken place, looked up before the effect and set right after it."""

from __future__ import annotations

import hashlib
import logging
import re

from django.conf import settings
from django.core.cache import caches

from redelivery import log, policy

logger = logging.getLogger("redelivery")

DAY_S = 86_400
#: Memcached takes keys of up to 250 bytes; what Django and KEY_PREFIX add must fit, too.
LONGEST_KEY = 180


class MarkerUnavailable(Exception):
    """The cache did not answer, so nobody knows whether the marker is set: retry, before the effect."""


class Marker:
    """The marker of one effect of one task.

    Args:
        task_name: the task's registered name, which has an entry with ``guard = "marker"``.
        key: what the effect belongs to in the business, such as the primary key of the sign-up. Never the
            task id: a second message for the same thing (published twice, sent again by an operator) has
            another id, and would find no marker.

    Raises:
        LookupError: the task has no such entry.
    """

    def __init__(self, task_name: str, key: object) -> None:
        entry = policy.current().tasks.get(task_name)
        if entry is None or entry.marker_days is None:
            raise LookupError(f'{task_name} has no entry with guard = "marker" in the ack policy.')
        self.task_name = task_name
        self.key = _cache_key(task_name, str(key))
        self.lifetime_s = entry.marker_days * DAY_S

    def is_set(self) -> bool:
        """Whether the effect is known to have taken place; the task's log lines show it as ``guard=``.

        Raises:
            MarkerUnavailable: the cache did not answer.
        """
        try:
            found = _cache().get(self.key) is not None
        except Exception as error:  # each cache backend raises errors of its own
            raise MarkerUnavailable(f"The cache did not answer for the marker {self.key}: {error}") from error
        log.decided("skip" if found else "run")
        return found

    def set(self) -> None:
        """Note that the effect has taken place. A failure is logged, not raised: the effect stays."""
        try:
            _cache().set(self.key, 1, self.lifetime_s)
        except Exception:
            logger.exception("The marker %s could not be written: a redelivery would act again.", self.key)


def cache_alias() -> str:
    """The alias in ``CACHES`` that keeps the markers."""
    return getattr(settings, "REDELIVERY_MARKER_CACHE", "default")


def _cache():
    return caches[cache_alias()]


def _cache_key(task_name: str, key: str) -> str:
    """A readable key where every cache accepts it, else one with a digest."""
    readable = f"redelivery:{task_name}:{key}"
    if len(readable) <= LONGEST_KEY and re.fullmatch(r"[!-~]+", readable):
        return readable
    return f"redelivery:{hashlib.sha256(readable.encode()).hexdigest()}"
