"""What the commands of this folder print: progress on standard error, tables on standard output."""

import os
import sys
import time
from collections.abc import Callable


class Progress:
    """Lines on standard error, at most one every two seconds, so that nobody wonders whether it still runs."""

    def __init__(self):
        self.title, self.begun, self.said = "", time.monotonic(), 0.0

    def begin(self, title: str) -> None:
        """Name what begins."""
        self.title, self.begun, self.said = title.split(":")[0], time.monotonic(), time.monotonic()
        self._print(title)

    def say(self, text: str) -> None:
        """Show how far it is, unless something was shown just now."""
        if time.monotonic() - self.said > 2:
            self.said = time.monotonic()
            self._print(f"  {self.title}: {text}")

    def line(self, text: str) -> None:
        """Show one result."""
        self.said = time.monotonic()
        self._print(f"  {self.title}: {text}")

    def end(self, text: str) -> None:
        """Show what came of it."""
        self._print(f"  {self.title}: {text} ({time.monotonic() - self.begun:.0f} s)")

    @staticmethod
    def _print(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def table(rows: list[tuple[str, ...]]) -> str:
    """Align rows in columns; a row that is shorter than the first one may be wider."""
    whole = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    )


def machine() -> str:
    """Return the machine's size and how busy it is."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def interruptible(main: Callable[[], int], name: str) -> int:
    """Run a command's main function; a Ctrl-C ends it with 130, an error of its surroundings with one text and 2."""
    try:
        return main()
    except KeyboardInterrupt:
        print(f"\n{name}: stopped; nothing is left running.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError) as error:
        print(f"\n{name}: it could not go on: {error}", file=sys.stderr)
        return 2
