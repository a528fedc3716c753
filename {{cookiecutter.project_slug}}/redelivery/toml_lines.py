"""On which line of a TOML text each key is written, for error messages (``tomllib`` does not tell)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

KeyPath = tuple[str, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map each key path of a valid TOML text to the line (from 1) of the statement that first names it.

    The text is cut into statements: lines are added up until they parse on their own, which holds for
    headers, comments, and values over several lines alike. A statement after a header belongs to that
    header's table.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _deepest(parsed)
            paths: Iterator[KeyPath] = iter([table])
        else:
            paths = ((*table, *path) for path in _paths(parsed))
        for path in paths:
            for length in range(1, len(path) + 1):
                lines.setdefault(path[:length], number)
    return lines


def syntax_error_line(text: str, error: tomllib.TOMLDecodeError) -> int:
    """The line (from 1) at which ``tomllib`` gave up; its message names it, except at the end of the text."""
    found = re.search(r"\(at line (\d+)", str(error))
    return int(found[1]) if found else max(1, len(text.splitlines()))


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each statement; comments and empty lines are their own."""
    first, gathered = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        gathered = f"{gathered}{line}\n"
        try:
            tomllib.loads(gathered)
        except tomllib.TOMLDecodeError:
            continue
        yield first, gathered
        first, gathered = number + 1, ""


def _deepest(parsed: dict[str, Any]) -> KeyPath:
    """The key path of a header: ``[a."b.c"]`` parses to nested tables with one key each."""
    path: list[str] = []
    node: Any = parsed
    while isinstance(node, dict) and node:
        name = next(iter(node))
        path.append(name)
        node = node[name]
    return tuple(path)


def _paths(parsed: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Each key path in a parsed statement, inline tables and dotted keys included."""
    for name, value in parsed.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
