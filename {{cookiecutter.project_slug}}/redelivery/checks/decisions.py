"""Entries that ``ack_policy --init`` took over: what is left to decide, and how loud a contradiction is until then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.core.checks import CheckMessage, Error, Warning

from redelivery.force import InForce
from redelivery.policy import TaskPolicy

MOST_NAMES = 5


def open_decisions(state: InForce) -> Iterator[CheckMessage]:
    """Entries whose reason is still the one that was written by a program."""
    left = state.policy.open_decisions
    if not left:
        return
    named = ", ".join(f"{entry.name} (line {entry.line})" for entry in left[:MOST_NAMES])
    more = f" and {len(left) - MOST_NAMES} more" if len(left) > MOST_NAMES else ""
    yield Warning(
        f"{state.policy.where()}: {len(left)} of {len(state.policy.tasks)} tasks are open decisions: {named}{more}.",
        hint="Choose ack and guard of each, and write why as its reason; `ack_policy --strict` lists all, and exits "
        "with 1.",
        id="redelivery.W100",
    )


def contradiction(entries: Iterable[TaskPolicy], text: str, hint: str, number: int) -> CheckMessage:
    """An error; a warning while all the entries that are contradicted are open decisions.

    A project that has just written its first policy has said nothing yet that it could contradict.

    Args:
        number: the error is ``redelivery.E<number>``, the warning ``redelivery.W<100 + number>``.
    """
    entries = list(entries)
    if entries and all(entry.is_open for entry in entries):
        return Warning(text, hint=hint, id=f"redelivery.W{100 + number}")
    return Error(text, hint=hint, id=f"redelivery.E{number:03}")
