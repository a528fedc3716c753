"""``manage.py ack_policy``: what each task promises, derived numbers, and whether running workers agree."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from redelivery import adopt, force, live, policy, tables
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
            "--init",
            nargs="?",
            const="",
            metavar="FILE",
            help="write a first policy from what the tasks and settings say today, to ACK_POLICY_FILE or FILE (- is "
            "standard output); nothing is overwritten",
        )
        parser.add_argument(
            "--strict",
            action="store_true",
            help="list the open decisions that --init left; exit 1 if there is one",
        )
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
        if options["init"] is not None:
            self.init(options["init"])
            return
        try:
            current = policy.current()
        except policy.PolicyError as error:
            raise CommandError(str(error)) from None
        if options["strict"]:
            self.strict(current)
            return
        state = self.state()
        if options["live"]:
            self.live(state, current, options)
        else:
            self.show(state, current, options["json"])

    def state(self) -> force.InForce:
        state = force.in_force()
        if state is None:
            raise CommandError("redelivery.setup(app) was not called, so that no Celery app is known.")
        return state

    def init(self, target: str) -> None:
        """Write a first policy."""
        state = self.state()
        try:
            text = adopt.first_policy(state)
        except (
            Exception
        ) as error:  # a setting that Celery cannot use either, or a task module that cannot be imported
            raise CommandError(f"the tasks and settings of this project cannot be read: {error!r}") from error
        if target == "-":
            self.stdout.write(text, ending="")
            return
        file = target or getattr(settings, "ACK_POLICY_FILE", None)
        if not file:
            raise CommandError("ACK_POLICY_FILE is not set: set it, or name a file after --init.")
        path = Path(file)
        try:
            entries = adopt.write(text, path)
        except FileExistsError:
            raise CommandError(
                f"{path} exists, and --init overwrites nothing: `--init -` prints a first policy."
            ) from None
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}.") from None
        except policy.PolicyError as error:
            raise CommandError(f"what the tasks say cannot be written as a policy: {error.message}") from None
        self.stdout.write(
            f"{path}: {entries} {'entry' if entries == 1 else 'entries'}, each an open decision. Next: manage.py check"
        )

    def strict(self, current: policy.Policy) -> None:
        """List what is still to be decided."""
        left = current.open_decisions
        for entry in left:
            self.stdout.write(f"{current.where(entry)}: {entry.name}: {entry.reason}")
        self.stdout.write(f"{len(left)} of {len(current.tasks)} tasks are open decisions.")
        if left:
            sys.exit(1)

    def show(self, state: force.InForce, current: policy.Policy, as_json: bool) -> None:
        tasks.load(state.app)
        exempt = [name for name in state.app.tasks if name.startswith(policy.EXEMPT_PREFIX)]
        if as_json:
            self.stdout.write(json.dumps(tables.as_dict(current, exempt, state.transport), indent=2))
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
