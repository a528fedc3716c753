"""What the commands of this folder print: progress on standard error, tables on standard output."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from redelivery.testing.servers import redis_binary


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


def markdown(rows: list[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table; the first one is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def write_between(path: Path, name: str, text: str) -> None:
    """Put a text between the marks `<!-- NAME: begin -->` and `<!-- NAME: end -->` of a file.

    Raises RuntimeError where it has none.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise RuntimeError(f"{path} has no lines {begin} and {end}: the figures go between them.")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def made_by(target: str, arguments: list[str], crp_python: str | None) -> str:
    """Return what was run, when, and with which versions; `--write` and its file left out.

    `crp_python` is the Python of celery-redis-plus, where that was compared, too.
    """
    if "--write" in arguments:
        index = arguments.index("--write")
        arguments = arguments[:index] + arguments[index + 2 :]
    command = f"make {target}" + (f' ARGS="{shlex.join(arguments)}"' if arguments else "")
    parts = [f"{name} {version(name)}" for name in ("celery", "kombu", "redis")]
    if crp_python:
        code = "from importlib.metadata import version as v; print(v('celery-redis-plus'), v('redis'))"
        done = subprocess.run([crp_python, "-c", code], capture_output=True, text=True, check=True)
        parts.append("celery-redis-plus {} with redis {}".format(*done.stdout.split()))
    server = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    parts.append(" ".join(server.split()[:3]))
    return f"`{command}` on {date.today()} with {', '.join(parts)}"


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
