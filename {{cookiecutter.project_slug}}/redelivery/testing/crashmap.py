"""What a crash map is: what came of a kill before every opcode that a task runs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from redelivery.testing.points import Point


class CrashMapError(Exception):
    """The map cannot be drawn; the text says for which task, why, and what to do."""


@dataclass
class Kill:
    """What came of a kill before one point of the path: effects seen then, and after the message was delivered again.

    `in_transaction` says whether the task had a database transaction open there.
    """

    position: int
    point: Point
    killed: int
    redelivered: int
    in_transaction: bool


@dataclass
class CrashMap:
    """All kills of one task, in the order of its path, and the numbers of a run that nobody killed.

    `once` counts the effects of one whole run; `completed` those after a whole run whose message came back all the same
    (killed after the task returned, before it was acknowledged).
    """

    task: str
    ack: str
    guard: str
    path: list[Point] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    once: int = 0
    completed: int = 0
    seconds: float = 0.0

    def by_line(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Fold onto lines: the smallest and the largest final count of effects for each (file, line)."""
        folded: dict[tuple[str, int], tuple[int, int]] = {}
        for kill in self.kills:
            place = (kill.point.file, kill.point.line)
            low, high = folded.get(place, (kill.redelivered, kill.redelivered))
            folded[place] = min(low, kill.redelivered), max(high, kill.redelivered)
        return folded

    def places(self, effects: Callable[[int], bool]) -> list[str]:
        """Return the source places, each once, whose final count of effects satisfies a condition."""
        return list(dict.fromkeys(kill.point.where for kill in self.kills if effects(kill.redelivered)))

    def as_json(self) -> dict:
        """Return plain data."""
        return {
            "task": self.task,
            "ack": self.ack,
            "guard": self.guard,
            "once": self.once,
            "completed": self.completed,
            "seconds": round(self.seconds, 2),
            "points": [
                {**asdict(k.point), "killed": k.killed, "redelivered": k.redelivered} for k in self.kills
            ],
        }
