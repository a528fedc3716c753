"""``manage.py kills``: which deliveries were interrupted, by day, task and cause, and what waits for an operator."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from redelivery import force, recorder, tables
from redelivery.models import Kill, Parked
from redelivery.summary import OUTCOMES, summary

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Command(BaseCommand):
    help = (
        "Show interrupted deliveries by day, task and cause, and how many parked messages wait for an operator. "
        "With --purge, delete what is older: records of kills, and parked messages that were settled."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--since",
            default="7d",
            metavar="WHEN",
            help="30m, 12h, 7d, 2w, a date: 2026-01-31, or seconds since 1970: 1769817600.5 (default: 7d)",
        )
        parser.add_argument(
            "--worker", metavar="NODE", action="append", help="only those of this worker; may be given again"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        parser.add_argument(
            "--purge", metavar="WHEN", help="delete what is older, such as 90d; what waits in the admin stays"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        since = moment("--since", options["since"])
        before = moment("--purge", options["purge"]) if options["purge"] else None
        self.fetch()
        try:
            if before:
                self.purge(before)
            else:
                self.show(since, options["worker"], options["json"])
        except DatabaseError as error:
            raise CommandError(f"The database does not answer as it should (migrated?): {error}") from None

    def fetch(self) -> None:
        """Move to the database what is still in Redis, as when every worker is dead."""
        state = force.in_force()
        if state is None or not state.transport:
            return
        try:
            with state.app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=3)
                channel = connection.default_channel
                prefix = channel.global_keyprefix
                recorder.flush(channel.client, lambda name: f"{prefix}redelivery.{name}")
        except Exception as error:  # redis-py's and kombu's errors have no common base
            self.stderr.write(f"Without what was not moved from the broker to the database yet: {error}")

    def show(self, since: datetime, workers: list[str] | None, as_json: bool) -> None:
        rows = summary(Kill.objects.filter(at__gte=since, **({"worker__in": workers} if workers else {})))
        waiting = Parked.objects.filter(state=Parked.State.WAITING).count()
        if as_json:
            found = {"since": since.isoformat(), "kills": rows, "waiting": waiting}
            self.stdout.write(json.dumps(found, indent=2, default=str))
            return
        shown = f"{since:%Y-%m-%d %H:%M}"
        if rows:
            columns = ("day", "task", "cause", "kills", *OUTCOMES)
            self.stdout.write(tables.table(columns, [[str(row[name]) for name in columns] for row in rows]))
        else:
            self.stdout.write(f"No delivery was interrupted since {shown}.")
        if waiting:
            text = f"Parked, and waiting for an operator in the admin: {waiting}."
            self.stdout.write("\n" + self.style.ERROR(text))

    def purge(self, before: datetime) -> None:
        kills, _ = Kill.objects.filter(at__lt=before).delete()
        settled = Parked.objects.exclude(state=Parked.State.WAITING).filter(settled_at__lt=before)
        parked, _ = settled.delete()
        self.stdout.write(f"Deleted: {kills} records of kills, {parked} settled messages.")


def moment(option: str, text: str) -> datetime:
    """The time that an argument means: so long ago, or the begin of a day.

    Raises:
        CommandError: it is neither; the message says how to write it.
    """
    try:
        if found := re.fullmatch(r"(\d+)([mhdw])", text):
            then = timezone.now() - timedelta(**{UNITS[found[2]]: int(found[1])})
        elif re.fullmatch(r"\d{9,11}(\.\d+)?", text):
            then = datetime.fromtimestamp(float(text), UTC)
        else:
            then = timezone.make_aware(datetime.combine(date.fromisoformat(text), time()))
        return timezone.localtime(then)
    except (ValueError, OverflowError):
        raise CommandError(
            f"{option} {text!r} is no time: write a number with m, h, d or w (30m, 12h, 7d, 2w), "
            "or a day as 2026-01-31."
        ) from None
