"""Schedules that live in the database (django-celery-beat): what they send, and where to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError, router

from redelivery.force import InForce


def rows() -> list[dict[str, Any]]:
    """The enabled entries of django-celery-beat, as ``name``, ``task`` and ``queue``; none without its table."""
    if not apps.is_installed("django_celery_beat"):
        return []
    model = apps.get_model("django_celery_beat", "PeriodicTask")
    try:
        return list(model.objects.filter(enabled=True).order_by("name").values("name", "task", "queue"))
    except DatabaseError:  # not migrated yet, or not reachable: not this check's business
        return []


def in_database(state: InForce, databases: Any) -> Iterator[CheckMessage]:
    """Rows for tasks that nobody knows, or with a queue that is not the policy's: beat would not send those.

    Warnings, because ``migrate`` runs these checks, too, and a person can mend a row while the service runs.
    """
    if not apps.is_installed("django_celery_beat"):
        return
    model = apps.get_model("django_celery_beat", "PeriodicTask")
    if router.db_for_read(model) not in (databases or ()):
        return
    for row in rows():
        entry = state.policy.tasks.get(row["task"])
        if row["task"] not in state.app.tasks:
            yield Warning(
                f"The periodic task {row['name']!r} in the database sends {row['task']!r}, which is not registered.",
                hint="Correct or disable it in the admin.",
                id="redelivery.W120",
            )
        elif entry and row["queue"] and row["queue"] != entry.queue:
            yield Warning(
                f"The periodic task {row['name']!r} in the database sends {entry.name} to queue {row['queue']!r}, but "
                f"its entry in {state.policy.where(entry)} says {entry.queue!r}.",
                hint="Empty its queue in the admin: the policy routes it.",
                id="redelivery.W120",
            )
