"""`manage.py payments`: what is open, for how long, and whether that is too long."""

import json
import sys

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from payments import halt, watch


class Command(BaseCommand):
    """Print counts by state, the age of the oldest open one of each, and what is wrong."""

    requires_system_checks = ()  # wrong settings are no reason not to say how many payments are in doubt
    help = "Counts of payments by state and ages of the open ones. Exit status 1 if something is past its threshold."

    def add_arguments(self, parser):
        """Declare the arguments."""
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("--resume", action="store_true", help="end a halt, after its cause was mended")

    def handle(self, *args, **options):
        """Print; exit status 1 past a threshold, 2 if the database cannot be asked."""
        try:
            if options["resume"]:
                ended = halt.resume()
                self.stderr.write("Payments are sent again." if ended else "Payments were not halted.")
            found = watch.numbers() | {"settled": watch.settled()}
        except DatabaseError as error:
            raise CommandError(f"the database cannot be asked: {error}", returncode=2) from None
        wrong = watch.problems(found)
        if options["json"]:
            self.stdout.write(json.dumps(found | {"problems": wrong}))
        else:
            self.table(found, wrong)
        if wrong:
            sys.exit(1)

    def table(self, found: dict, wrong: list[str]) -> None:
        """Print for people."""
        self.stdout.write(f"{'state':<10} {'count':>8}  oldest")
        for state, each in found["open"].items():
            self.stdout.write(
                f"{state:<10} {each['count']:>8}  {each['oldest_s']} s".removesuffix(
                    "  0 s" * (not each["count"])
                )
            )
        for state, count in found["settled"].items():
            self.stdout.write(f"{state:<10} {count:>8}")
        self.stdout.write(f"halted: {found['halted']['reason'] if found['halted'] else 'no'}")
        for sentence in wrong:
            self.stdout.write(self.style.ERROR(sentence))
