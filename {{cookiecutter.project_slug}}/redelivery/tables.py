"""The policy as a table for a terminal and as data for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from redelivery.policy import Policy


def as_dict(policy: Policy, exempt: Iterable[str] = (), counted: bool = False) -> dict[str, Any]:
    """Everything the policy says and what follows from it; times in seconds.

    ``counted`` says whether the transport counts crashes.
    """
    return {
        "file": str(policy.path),
        "margin_s": policy.margin_s,
        "longest_countdown_s": policy.longest_countdown_s,
        "visibility_timeout_s": policy.visibility_timeout_s,
        "prefetch_multiplier": policy.prefetch_multiplier,
        "default_queue": policy.default_queue,
        "queues": {
            queue.name: {
                "concurrency": queue.concurrency,
                "stop_timeout_s": queue.stop_timeout_s,
                "tasks": [task.name for task in policy.tasks.values() if task.queue == queue.name],
                "line": queue.line,
            }
            for queue in policy.queues.values()
        },
        "tasks": {
            task.name: {
                "queue": task.queue,
                "ack": task.ack,
                "guard": task.guard,
                "time_limit_s": task.time_limit_s,
                "soft_time_limit_s": task.soft_time_limit_s,
                "marker_days": task.marker_days,
                "crash_retries": task.crash_retries,
                "reason": task.reason,
                "gaps": list(task.gaps),
                "annotation": task.annotation(counted),
                "line": task.line,
            }
            for task in policy.tasks.values()
        },
        "exempt": sorted(exempt),
    }


def as_text(policy: Policy, exempt: Iterable[str] = (), width: int = 100) -> str:
    """The tables that ``manage.py ack_policy`` prints."""
    tasks = policy.tasks.values()
    parts = [
        f"{policy.where()}",
        table(
            ("task", "queue", "ack", "guard", "soft", "hard", "crash retries"),
            [
                (
                    t.name,
                    t.queue,
                    t.ack,
                    t.guard,
                    f"{t.soft_time_limit_s} s",
                    f"{t.time_limit_s} s",
                    "-" if t.crash_retries is None else str(t.crash_retries),
                )
                for t in tasks
            ],
        )
        if tasks
        else "No task yet.",
        table(
            ("queue", "processes", "stop timeout"),
            [(q.name, str(q.concurrency), f"{q.stop_timeout_s} s") for q in policy.queues.values()],
        ),
        _visibility(policy, width),
    ]
    parts += [_why(task.name, task.reason, task.gaps, width) for task in tasks]
    exempt = sorted(exempt)
    if exempt:
        parts.append(textwrap.fill(f"Exempt by name: {', '.join(exempt)}.", width, subsequent_indent="  "))
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, tuple("-" * width for width in widths), *rows]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def _visibility(policy: Policy, width: int) -> str:
    limits = policy.prefetch_multiplier + 1
    text = (
        f"Redis hands out an unacknowledged message again after {policy.visibility_timeout_s} s "
        f"(visibility): longest countdown {policy.longest_countdown_s} s + {limits} x longest limit "
        f"{policy.longest_limit_s} s + margin {policy.margin_s} s. "
        f"Prefetch multiplier {policy.prefetch_multiplier}."
    )
    return textwrap.fill(text, width)


def _why(name: str, reason: str, gaps: Iterable[str], width: int) -> str:
    lines = [name, textwrap.fill(reason, width, initial_indent="  ", subsequent_indent="  ")]
    lines += [
        textwrap.fill(f"gap: {gap}", width, initial_indent="  ", subsequent_indent="       ") for gap in gaps
    ]
    return "\n".join(lines)
