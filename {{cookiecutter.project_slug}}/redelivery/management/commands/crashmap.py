"""`manage.py crashmap`: kill tasks before every opcode and show what came of it."""

import json
import logging
import sys
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from redelivery import policy
from redelivery.source import project_root

MOST_JOBS = 16


class Command(BaseCommand):
    """Draw the crash map of one task, or of all that have a case, in a sandbox of its own servers and databases."""

    help = (
        "Kill a task before every opcode of project code, deliver its message again, count the effects from outside. "
        "Runs in a sandbox: no real database, broker, cache or mail server is touched."
    )

    def add_arguments(self, parser):
        """Declare the arguments."""
        parser.add_argument(
            "task",
            nargs="*",
            help="full names as in ack_policy.toml, or their ends; default: all with a case",
        )
        parser.add_argument("--json", action="store_true", help="print every point and its counts as JSON")
        parser.add_argument("--html", metavar="FILE", type=Path, help="write one self-contained page to FILE")
        parser.add_argument(
            "--jobs",
            type=int,
            metavar="N",
            choices=range(1, MOST_JOBS + 1),
            help=f"processes to use, at most {MOST_JOBS} (default: one for each core, at most 4)",
        )
        parser.add_argument(
            "--duplicates",
            action="store_true",
            help="also deliver twice without a kill: twins at a barrier, a second message, a flushed cache",
        )

    def handle(self, *args, **options):
        """Draw and print; exit status 1 if a map could not be drawn."""
        from redelivery.testing.drawing import draw
        from redelivery.testing.sandbox import SandboxError

        if options["verbosity"] < 2:
            logging.disable(logging.CRITICAL)  # the log lines of hundreds of killed runs
        if options["html"]:
            check_writable(options["html"])
        try:
            cases = chosen_cases(options["task"])
            drawn = draw(
                cases, duplicates=options["duplicates"], jobs=options["jobs"], progress=self.progress(options)
            )
        except (SandboxError, policy.PolicyError) as error:
            raise CommandError(str(error)) from None
        except KeyboardInterrupt:
            raise CommandError("interrupted; everything that was started has ended", returncode=130) from None
        self.show(drawn, options)
        if any(one.error for one in drawn):
            raise CommandError("\n".join(one.error for one in drawn if one.error))

    def progress(self, options):
        """Return a function that shows how far a map is, on a terminal."""
        if not sys.stderr.isatty() or options["verbosity"] == 0:
            return None

        def show(task: str, done: int, total: int) -> None:
            self.stderr.write(f"\r{task}: {done}/{total} kills", ending="" if done < total else "\r\033[K")
            self.stderr.flush()

        return show

    def show(self, drawn, options):
        """Print what was asked for."""
        from redelivery.testing import report

        root = project_root()
        maps = [one.crash_map for one in drawn if one.crash_map]
        if options["html"]:
            options["html"].write_text(report.as_html(maps, root), encoding="utf-8")
        if options["json"]:
            self.stdout.write(json.dumps([one.as_json() for one in drawn], indent=1))
            return
        for one in drawn:
            if one.crash_map:
                self.stdout.write(report.as_text(one.crash_map, root, colour=self.style_is_on(options)))
            if one.duplicates:
                self.stdout.write("\n".join(report.duplicates_text(one.duplicates)))
            self.stdout.write("")

    def style_is_on(self, options):
        """Tell whether the output is a terminal that shows colours."""
        return self.stdout.isatty() and not options["no_color"]


def check_writable(file):
    """Raise CommandError, before hundreds of kills, where a file cannot be written."""
    try:
        file.open("a").close()
    except OSError as error:
        raise CommandError(f"--html {file}: {error.strerror}") from None


def chosen_cases(names):
    """Return the cases of the named tasks, or all; raises CommandError for a name that fits none or several."""
    from redelivery.testing.case import all_cases

    cases = all_cases()
    tasks = policy.current().tasks
    if not cases:
        raise CommandError(
            "no task has a case yet: write one in a module `redelivery_case.py` of the task's app"
        )
    if unknown := sorted(set(cases) - set(tasks)):
        raise CommandError(f"there is a case, but no entry in the ack policy, for {', '.join(unknown)}")
    chosen = []
    for name in names:
        fitting = [task for task in tasks if task == name or task.endswith(f".{name}")]
        if len(fitting) != 1:
            what = "the end of several tasks" if fitting else "no task"
            raise CommandError(f"{name!r} is {what} of the policy: {', '.join(fitting or tasks)}")
        if fitting[0] not in cases:
            raise CommandError(
                f"{fitting[0]} has no case: write one in a module `redelivery_case.py` of its app"
            )
        chosen.append(cases[fitting[0]])
    return chosen or list(cases.values())
