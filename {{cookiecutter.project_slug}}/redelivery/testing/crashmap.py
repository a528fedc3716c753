"""Kill a task before every opcode of project code, deliver it again, and count the effects from outside."""

import base64
import importlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from django.conf import settings
from django.db import connections

from redelivery import policy
from redelivery.testing.case import Case
from redelivery.testing.children import Child, Report, Runner
from redelivery.testing.points import Point, Tracer
from redelivery.testing.sandbox import World, celery_app, refuse_private_stores

# A retry is a message like any other; more than this many in a row is a task that never ends.
LONGEST_CHAIN = 50
# Seconds that one run may take, whatever its time limit is: a map runs it hundreds of times.
LONGEST_RUN_S = 30


class CrashMapError(Exception):
    """The map cannot be drawn; the text says for which task, why, and what to do."""


@dataclass(frozen=True)
class Message:
    """One message of the broker, as far as a task sees it."""

    id: str
    args: tuple
    kwargs: dict
    retries: int = 0

    @classmethod
    def from_broker(cls, raw: dict) -> "Message":
        """Read what kombu wrote."""
        args, kwargs, _ = json.loads(base64.b64decode(raw["body"]))
        headers = raw["headers"]
        return cls(headers["id"], tuple(args), kwargs, headers.get("retries", 0))


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


class Killer:
    """Delivers the messages of one task in forked children, and kills them where it is told. Close it at the end."""

    def __init__(self, case: Case, world: World):
        refuse_private_stores()
        self.case = case
        self.world = world
        self.entry = policy.current().tasks[case.task]
        self.task = celery_app().tasks.get(case.task)
        if self.task is None:
            raise CrashMapError(
                f"{case.task}: no task of this name is registered with Celery; is its module imported?"
            )
        self.longest_run_s = min(self.entry.time_limit_s, LONGEST_RUN_S)
        self.root = Path(settings.BASE_DIR)
        self.tracer = Tracer(self.root)
        self.run_task = build_tracer(self.task.name, self.task, app=self.task.app)
        self.runner = Runner(self.answer)

    def close(self) -> None:
        """End the child that delivers."""
        self.runner.stop()

    def draw(self, part: int, parts: int, progress: Callable[[int], None]) -> CrashMap:
        """Return every `parts`-th kill of the map, from number `part` on; `progress(kills of all parts)` after each."""
        begun = time.monotonic()
        crash_map = CrashMap(self.entry.name, self.entry.ack, self.entry.guard)
        crash_map.path, crash_map.once, crash_map.completed = self.whole_run()
        for position in range(part, len(crash_map.path), parts):
            crash_map.kills.append(self.kill(crash_map.path, position))
            progress(len(crash_map.path))
        crash_map.seconds = time.monotonic() - begun
        return crash_map

    def around_the_effect(self, path: list[Point]) -> tuple[Kill, Kill | None]:
        """Return the last kill before the effect and the first one after it (None: the effect is the path's last step).

        They are found by halving; the map tries all points.
        """
        first, last = self.kill(path, 0), self.kill(path, len(path) - 1)
        if not last.killed:
            return last, None
        while last.position - first.position > 1:
            middle = self.kill(path, (first.position + last.position) // 2)
            first, last = (first, middle) if middle.killed else (middle, last)
        return first, last

    def whole_run(self) -> tuple[list[Point], int, int]:
        """Run once unharmed; return the points of its path and the effects, then and after one more delivery."""
        self.rehearse()
        message = self.fresh_message()
        end, path = self.record(message)
        self.deliver_what_waits(message)
        once = self.count(message)
        if not once:
            raise CrashMapError(
                f"{self.entry.name}: a whole run had no effect that {type(self.case).__name__}.effects() counts; it "
                f"ended as {end['state']} {end.get('error', '')}. Mend the case, or the task."
            )
        if not path:
            raise CrashMapError(f"{self.entry.name}: it ran no code under {self.root}; is BASE_DIR right?")
        self.redeliver(message)
        return path, once, self.count(message)

    def rehearse(self) -> None:
        """Run once to learn which modules the task imports on its way, and import them here.

        Otherwise each of the hundreds of children would import them anew.
        """
        message = self.fresh_message()
        end = self.end_of(Child(lambda report: {**self.run(message), "modules": list(sys.modules)}))
        for name in end.get("modules", []):
            if name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)
        self.tracer.learn()

    def record(self, message: Message) -> tuple[dict, list[Point]]:
        """Deliver a message; return how it ended and all points of its path."""

        def body(report: Report) -> dict:
            return self.run(message, reached=lambda point: report({"point": list(asdict(point).values())}))

        child = Child(body)
        end = self.end_of(child)
        return end, [Point(*report["point"]) for report in child.reports if "point" in report]

    def kill(self, path: list[Point], position: int) -> Kill:
        """Kill a run before a point of its path; then, where the task acknowledges late, deliver the message again."""
        point = path[position]
        message = self.fresh_message()
        end = self.end_of(
            self.stop_at(message, point, lambda: os.kill(os.getpid(), signal.SIGKILL)), stopped=True
        )
        if end.get("at") != [point.file, point.function, point.line]:
            there = (
                "it was at {0}:{2} in {1}".format(*end["at"])
                if "at" in end
                else f"it ended as {end['state']}"
            )
            raise CrashMapError(
                f"{self.entry.name}: its path differs from run to run: opcode {point.index} of {point.thread} was at "
                f"{point.where}, this time {there}. A crash map needs one path: fix what the task draws at random, or "
                "takes from the clock or from threads that race, in the case's prepare()."
            )
        killed = self.count(message)
        self.redeliver(message)
        return Kill(position, point, killed, self.count(message), end["in_transaction"])

    def stop_at(
        self, message: Message, point: Point, action: Callable[[], None], redelivered: bool = False
    ) -> Child:
        """Deliver a message in a child that reports when it is before a point (`at`), and then does something."""

        def body(report: Report) -> dict:
            def reached(here: Point) -> None:
                if here.index == point.index and here.thread == point.thread:
                    in_transaction = any(
                        each.in_atomic_block for each in connections.all(initialized_only=True)
                    )
                    at = [here.file, here.function, here.line]
                    report({"state": "STOPPED", "at": at, "in_transaction": in_transaction})
                    action()

            return self.run(message, redelivered, reached)

        self.world.close()
        return Child(body)

    def end_of(self, child: Child, *, stopped: bool = False) -> dict:
        """Wait for the end of a child's run (`stopped`: or for its stop at a point), and return what it reported then.

        Not for the end of its pipe: a process that the task has started may hold that open for long.
        """

        def states() -> list[dict]:
            return [
                report for report in child.reports if "state" in report and (stopped or "at" not in report)
            ]

        in_time = child.read_until(states, self.longest_run_s)
        child.end()
        if not in_time:
            raise self.too_long()
        return self.checked([*states(), {"state": "DIED"}][0])

    def fresh_message(self) -> Message:
        """Empty the world, prepare it, and return the message of a new call."""
        self.world.empty()
        message = Message(str(uuid.uuid4()), tuple(self.case.prepare(self.world)), {})
        self.world.waiting_messages()  # what the preparation itself published is not this test's
        self.world.close()
        return message

    def count(self, message: Message) -> int:
        """Count the effects of a call."""
        return self.case.effects(self.world, message.args)

    def redeliver(self, message: Message) -> None:
        """Deliver what the broker would: the message again, if it was not acknowledged, and what the task published."""
        if self.entry.ack == "late":
            self.deliver(message, redelivered=True)
        self.deliver_what_waits(message)

    def deliver_what_waits(self, message: Message) -> None:
        """Deliver what the task published for itself (retries), at once and until nothing waits."""
        for _ in range(LONGEST_CHAIN):
            mine = [raw for raw in self.world.waiting_messages() if raw["headers"]["task"] == self.entry.name]
            if not mine:
                return
            for retry in map(Message.from_broker, mine):
                self.deliver(retry)
        raise self.endless()

    def deliver(self, message: Message, redelivered: bool = False) -> None:
        """Run the task once, whole, in the child that is there for that; again while it sends its message back."""
        self.world.close()
        for _ in range(LONGEST_CHAIN):
            end = self.runner.ask(
                {"message": asdict(message), "redelivered": redelivered}, self.longest_run_s
            )
            if end is None:
                raise self.too_long()
            if self.checked(end)["state"] != "REQUEUED":
                return
            redelivered = True
        raise self.endless()

    def answer(self, question: dict) -> dict:
        """Deliver the message of a question; called in the child."""
        try:
            return self.run(Message(**question["message"]), question["redelivered"])
        finally:
            self.world.close()

    def run(
        self,
        message: Message,
        redelivered: bool = False,
        reached: Callable[[Point], None] | None = None,
    ) -> dict:
        """Run the task as a worker would, through Celery's own tracer, so that bind, retry and autoretry count."""
        request = {
            "id": message.id,
            "root_id": message.id,
            "task": self.task.name,
            "retries": message.retries,
            "delivery_info": {"exchange": "", "routing_key": self.entry.queue, "redelivered": redelivered},
            "hostname": "crashmap",
            "is_eager": False,
        }
        if reached:
            self.tracer.start(reached)
        try:
            _, info, _, _ = self.run_task(message.id, tuple(message.args), message.kwargs, request)
        except Ignore:
            return {"state": "IGNORED"}
        except Reject as answer:
            return {"state": "REQUEUED" if answer.requeue else "REJECTED"}
        finally:
            self.tracer.stop()
        return {"state": info.state, "error": repr(info.retval)} if info else {"state": "SUCCESS"}

    def checked(self, end: dict) -> dict:
        """Return how a run ended; raises CrashMapError where the test itself is broken."""
        if end["state"] == "BROKEN":
            raise CrashMapError(f"{self.entry.name}: the test itself failed in the child:\n{end['error']}")
        return end

    def too_long(self) -> CrashMapError:
        """Return the error of a run that does not end."""
        return CrashMapError(
            f"{self.entry.name}: one run did not end within {self.longest_run_s} s. A crash map runs it hundreds of "
            "times: let the case prepare a short one."
        )

    def endless(self) -> CrashMapError:
        """Return the error of a task that comes back without end."""
        return CrashMapError(
            f"{self.entry.name}: it still comes back after {LONGEST_CHAIN} deliveries; does the case let it end?"
        )
