"""What each guard promises, as data: the tests compare with it, and the documentation's tables are printed from it."""

from dataclasses import dataclass

from redelivery.policy import TaskPolicy

BEFORE, AFTER = "before the effect", "after the effect"


@dataclass(frozen=True)
class Promise:
    """Counts of effects that a guard allows, without any gap declared.

    `killed`: after a kill at any opcode and, with late acknowledgement, one redelivery. `completed`: after a whole run
    whose message came back. `twins`: two deliveries held before the effect and let go together. `second_message`: the
    same call published twice.
    """

    killed: frozenset[int]
    completed: frozenset[int]
    twins: frozenset[int]
    second_message: frozenset[int]


def counts(*numbers: int) -> frozenset[int]:
    """Return a set of counts."""
    return frozenset(numbers)


PROMISES = {
    "none": Promise(counts(1, 2), counts(1, 2), counts(1, 2), counts(1, 2)),
    "marker": Promise(counts(1), counts(1), counts(1), counts(1)),
    "transaction": Promise(counts(1), counts(1), counts(1), counts(1)),
    "claim": Promise(counts(0, 1), counts(1), counts(1), counts(1)),
    "lost-ok": Promise(counts(1), counts(1), counts(1, 2), counts(1, 2)),
}

# The counts seen on the plain example of each guard, gaps included; each test run sees exactly these again.
MEASURED: dict[str, dict[str, frozenset[int]]] = {
    guard: dict(zip(("killed", "completed", "twins", "second_message"), map(frozenset, numbers), strict=True))
    for guard, numbers in {
        "none": ({1, 2}, {2}, {2}, {2}),
        "marker": ({1, 2}, {1}, {2}, {1}),
        "transaction": ({1}, {1}, {1}, {1}),
        "claim": ({0, 1}, {1}, {1}, {1}),
        "lost-ok": ({0, 1}, {1}, {2}, {2}),
    }.items()
}

# What a declared gap lets through, and where it must then be seen.
GAPS = {
    "killed": ("killed", 2),
    "lost": ("killed", 0),
    "two deliveries": ("twins", 2),
    "cache flushed": ("flushed_cache", 2),
}

# How often a held task starts, by how it is acknowledged: measured with Celery 5.7 on Redis, and by each test run.
RUNS = {
    "SIGTERM to main": {"early": 1, "late": 1},
    "SIGTERM to main and children": {"early": 1, "late": 2},
    "SIGKILL of the pool child": {"early": 1, "late": 2},
    "SIGKILL of the group": {"early": 1, "late": 2},
    "hard time limit": {"early": 1, "late": 2},
}


def runs(event: str, ack: str, counted: bool) -> int:
    """Return how often a held task starts; `counted` says whether the transport of `redelivery.broker` is on.

    Without it a hard time limit acknowledges the message, as in stock Celery.
    """
    return 1 if event == "hard time limit" and not counted else RUNS[event][ack]


# Effects after a second run, killed before and after the effect.
AFTER_SECOND_RUN = {"none": (1, 2), "marker": (1, 2), "transaction": (1, 1), "claim": (0, 1)}


def expected_effects(guard: str, event: str, held: str) -> int:
    """Return the effects that the documentation's table prints for a guard's plain example."""
    if event == "SIGTERM to main":
        return 1  # the drain lets it finish
    ack = "early" if guard == "lost-ok" else "late"
    before, after = AFTER_SECOND_RUN[guard] if RUNS[event][ack] == 2 else (0, 1)
    return before if held == BEFORE else after


def gap_kinds(entry: TaskPolicy) -> set[str]:
    """Return the kinds of gap that a task declares."""
    return {kind for kind in GAPS for gap in entry.gaps if gap.startswith(kind)}


def faults(entry: TaskPolicy, what: str, seen: dict[str, int]) -> list[str]:
    """Compare counts that were seen with what the policy declares for a task; return what does not fit, in words.

    `what` is the experiment (`killed`, `completed`, `twins`, `second_message`, `flushed_cache`), `seen` the counts by
    place.
    """
    declared = {number for kind in gap_kinds(entry) for place, number in [GAPS[kind]] if place == what}
    promised = PROMISES[entry.guard]
    allowed = (promised.second_message if what == "flushed_cache" else getattr(promised, what)) | declared
    found = [
        f"{place}: {number} effects, but guard {entry.guard!r} and the declared gaps allow {sorted(allowed)}"
        for place, number in seen.items()
        if number not in allowed
    ]
    missing = declared - set(seen.values())
    return found + [
        f"a gap is declared that lets {number} effects through ({what}), but none was seen"
        for number in missing
    ]


def guard_table() -> str:
    """Return the documentation's table of guards (Markdown): what was measured on a plain example of each."""
    lines = [
        "| guard | killed at any opcode, delivered again | whole run, delivered again | two at once | two messages |",
        "|---|---|---|---|---|",
    ]
    for guard, measured in MEASURED.items():
        texts = [" or ".join(map(str, sorted(numbers))) for numbers in measured.values()]
        lines.append(f"| `{guard}` | {' | '.join(texts)} |")
    return "\n".join(lines)


def kill_table() -> str:
    """Return the documentation's table of real kills (Markdown): runs, effects killed before, effects killed after."""
    guards = list(PROMISES)
    lines = [
        "| event | " + " | ".join(f"`{guard}`" for guard in guards) + " |",
        "|---" * (len(guards) + 1) + "|",
    ]
    for event, runs in RUNS.items():
        cells = []
        for guard in guards:
            ack = "early" if guard == "lost-ok" else "late"
            before, after = (expected_effects(guard, event, held) for held in (BEFORE, AFTER))
            cells.append(f"{runs[ack]} run{'s' if runs[ack] > 1 else ''}: {before}, {after}")
        lines.append(f"| {event} | {' | '.join(cells)} |")
    return "\n".join(lines)
