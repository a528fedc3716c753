"""Show a crash map: the source with a count beside each line, on a terminal or as one HTML page."""

import html
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from redelivery.testing.crashmap import CrashMap
from redelivery.testing.duplicates import Duplicates

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1a1a1a;
  background: #fff }
table { border-collapse: collapse; font: 13px/1.45 ui-monospace, monospace; margin: .5rem 0 1.5rem; width: 100% }
td { padding: 0 .6rem; white-space: pre; vertical-align: top }
td.count { text-align: right; border-right: 2px solid #bbb; min-width: 6rem; font-weight: bold }
td.number { text-align: right; color: #666; min-width: 2.5rem }
td:last-child { width: 100% }
tr.twice td { background: #ffe9c7 } tr.twice td.count { border-right: 6px double #a34700 }
tr.never td { background: #ffd9d9 } tr.never td.count { border-right: 6px solid #a00000 }
.legend { color: #444 }
"""


@dataclass(frozen=True)
class Row:
    """One source line: its number, its text, and the smallest and largest count, None where nothing was killed.

    `once` is the count of a run that nobody killed. `less` is what a smaller one means for the task: work that is lost,
    or (guard `claim`) a row that is in doubt.
    """

    number: int
    text: str
    counts: tuple[int, int] | None
    once: int
    less: str

    @property
    def count(self) -> str:
        """The count as text: `1`, or `1-2` where the points of a line differ."""
        if self.counts is None:
            return ""
        low, high = self.counts
        return str(low) if low == high else f"{low}-{high}"

    @property
    def remark(self) -> str:
        """What the count means, in words, so that it is legible without colour."""
        if self.counts is None:
            return ""
        low, high = self.counts
        if low < self.once:
            return self.less
        if high > self.once:
            return "twice" if high == 2 * self.once else "too many"
        return ""


def sections(crash_map: CrashMap, root: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a title and the rows of each function, in the order in which the task came to them."""
    by_line = crash_map.by_line()
    less = "in doubt" if crash_map.guard == "claim" else "lost"
    functions = dict.fromkeys((kill.point.file, kill.point.function) for kill in crash_map.kills)
    for file, group in groupby(functions, key=lambda place: place[0]):
        source = dict(enumerate(linecache.getlines(str(root / file)), start=1))
        for _, function in group:
            lines = [
                k.point.line for k in crash_map.kills if (k.point.file, k.point.function) == (file, function)
            ]
            numbers = range(min(lines), max(lines) + 1)
            yield (
                f"{file}: {function}",
                [
                    Row(n, source.get(n, "").rstrip(), by_line.get((file, n)), crash_map.once, less)
                    for n in numbers
                ],
            )


def summary(crash_map: CrashMap) -> str:
    """Say in one line what was tried and what came of it."""
    counts = [kill.redelivered for kill in crash_map.kills]
    again = (
        "then delivered again" if crash_map.ack == "late" else "never delivered again (acknowledged early)"
    )
    parts = [f"{counts.count(n)} x {n}" for n in sorted(set(counts))]
    return (
        f"{crash_map.task}: killed before each of {len(counts)} opcodes, {again}; effects: {', '.join(parts)}; "
        f"unharmed: {crash_map.once}; {crash_map.seconds:.1f} s"
    )


def as_text(crash_map: CrashMap, root: Path, colour: bool = False) -> str:
    """Return the annotated source for a terminal."""
    lines = [summary(crash_map)]
    for title, rows in sections(crash_map, root):
        lines += ["", title]
        for row in rows:
            line = f"{row.count:>4} {row.remark:<9}| {row.number:4} {row.text}".rstrip()
            code = {"lost": "31", "in doubt": "33", "": ""}.get(row.remark, "33")
            lines.append(f"\033[{code}m{line}\033[0m" if colour and code else line)
    return "\n".join(lines)


def duplicates_text(duplicates: Duplicates) -> list[str]:
    """Say what two deliveries without a kill did."""
    return [
        "",
        "delivered twice without a kill, effects:",
        f"{duplicates.twins:>4} two deliveries at the same moment",
        f"{duplicates.second_message:>4} two messages of the same call",
        f"{duplicates.flushed_cache:>4} two deliveries with a cache flush between them",
    ]


def as_html(crash_maps: list[CrashMap], root: Path) -> str:
    """Return one self-contained page with all maps."""
    body = []
    for crash_map in crash_maps:
        body.append(f"<h2>{html.escape(crash_map.task)}</h2><p>{html.escape(summary(crash_map))}</p>")
        for title, rows in sections(crash_map, root):
            body.append(f"<h3>{html.escape(title)}</h3><table>")
            body += [html_row(row) for row in rows]
            body.append("</table>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Crash map</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><h1>Crash map</h1>"
        '<p class="legend">Beside each line: how many effects were seen from outside after the task was killed before '
        "an opcode of that line and its message was delivered again. 1 is what one wants; <b>twice</b> is a gap that "
        "lets a duplicate through; <b>lost</b> is work that was never done; <b>in doubt</b> is a row that stays "
        "claimed until a person or a reconciliation settles it.</p>" + "\n".join(body) + "</html>\n"
    )


def html_row(row: Row) -> str:
    """Return one source line as a table row."""
    kind = {"": "", "lost": "never"}.get(row.remark, "twice")
    count = f"{row.count} {row.remark}".strip()
    return (
        f'<tr class="{kind}"><td class="count">{count}</td><td class="number">{row.number}</td>'
        f"<td>{html.escape(row.text)}</td></tr>"
    )
