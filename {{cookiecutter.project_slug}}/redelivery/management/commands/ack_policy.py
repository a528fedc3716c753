"""``manage.py ack_policy``: what each task promises, derived numbers, and whether running workers agree."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redelivery import force, live, policy, tables
from redelivery.checks import tasks


class Command(BaseCommand):
    help = (
        "Show the ack policy and the numbers derived from it; with --live, compare it with running workers."
    )
    # A broken policy is this command's own business: one line, not a list of checks.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
        parser.add_argument(
            "--live", action="store_true", help="ask running workers; exit 1 on any difference"
        )
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=2.0,
            metavar="S",
            help="seconds to wait for workers (default: 2)",
        )
        parser.add_argument(
            "--destination",
            nargs="+",
            default=[],
            metavar="NODE",
            help="workers that must all answer, by node name",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["destination"] and not options["live"]:
            raise CommandError("--destination goes with --live.")
        try:
            current = policy.current()
        except policy.PolicyError as error:
            raise CommandError(str(error)) from None
        state = force.in_force()
        if state is None:
            raise CommandError("redelivery.setup(app) was not called, so that no Celery app is known.")
        if options["live"]:
            self.live(state, current, options)
        else:
            self.show(state, current, options["json"])

    def show(self, state: force.InForce, current: policy.Policy, as_json: bool) -> None:
        tasks.load(state.app)
        exempt = [name for name in state.app.tasks if name.startswith(policy.EXEMPT_PREFIX)]
        if as_json:
            self.stdout.write(json.dumps(tables.as_dict(current, exempt), indent=2))
        else:
            self.stdout.write(tables.as_text(current, exempt, shutil.get_terminal_size().columns))

    def live(self, state: force.InForce, current: policy.Policy, options: dict[str, Any]) -> None:
        try:
            found = live.compare(state.app, current, options["timeout"], options["destination"])
        except live.BrokerDown as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self.stdout.write(json.dumps(found.as_dict(), indent=2))
        else:
            self.stdout.write(self.report(found, current, options["timeout"]))
        if not found.holds:
            sys.exit(1)

    def report(self, found: live.Comparison, current: policy.Policy, timeout_s: float) -> str:
        if not found.workers and not found.differences:
            return self.style.ERROR(f"No worker answered within {timeout_s:g} s.")
        if found.differences:
            rows = [(it.worker, it.task, it.expected, it.found) for it in found.differences]
            return (
                self.style.ERROR("Not in force:")
                + "\n"
                + tables.table(("worker", "task", "expected", "found"), rows)
            )
        count = len(current.tasks)
        workers = ", ".join(found.workers)
        return self.style.SUCCESS(
            f"In force: {count} {'entry' if count == 1 else 'entries'} of the policy on {workers}."
        )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise ValueError(text)
    return value
