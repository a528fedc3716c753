"""Kills by day, task and cause: what ``manage.py kills`` and the admin show."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q, QuerySet
from django.db.models.functions import TruncDate

from redelivery.models import Kill

OUTCOMES = tuple(Kill.Outcome.values)


def summary(kills: QuerySet[Kill]) -> list[dict[str, Any]]:
    """One dictionary for each day, task and cause: ``day``, ``task``, ``cause``, ``kills``, and a count an outcome.

    The newest day comes first.
    """
    counts = {outcome: Count("pk", filter=Q(outcome=outcome)) for outcome in OUTCOMES}
    rows = kills.order_by().annotate(day=TruncDate("at")).values("day", "task", "cause")
    return list(rows.annotate(kills=Count("pk"), **counts).order_by("-day", "task", "cause"))
