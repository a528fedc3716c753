"""Kill a task before every opcode of project code, deliver it again, and count the effects from outside.

The process that does this must have no threads: a fork copies only the one that forks.
"""

import base64
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
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
from redelivery.testing.points import Point, Tracer
from redelivery.testing.sandbox import World, celery_app, refuse_private_stores

# A retry is a message like any other; more than this many in a row is a task that never ends.
LONGEST_CHAIN = 50


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
    """Delivers the messages of one task in forked children, and kills them where it is told."""

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
        self.root = Path(settings.BASE_DIR)
        self.tracer = Tracer(self.root)
        self.run_task = build_tracer(self.task.name, self.task, app=self.task.app)

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
        end = self.deliver(message, record=True)
        self.deliver_retries()
        once = self.count(message)
        if not once:
            raise CrashMapError(
                f"{self.entry.name}: a whole run had no effect that {type(self.case).__name__}.effects() counts; it "
                f"ended as {end['state']} {end.get('error', '')}. Mend the case, or the task."
            )
        if not end["points"]:
            raise CrashMapError(f"{self.entry.name}: it ran no code under {self.root}; is BASE_DIR right?")
        if self.entry.ack == "late":
            self.deliver(message, redelivered=True)
            self.deliver_retries()
        return [Point(*point) for point in end["points"]], once, self.count(message)

    def rehearse(self) -> None:
        """Run once to learn which modules the task imports on its way, and import them here.

        Otherwise each of the hundreds of children would import them anew.
        """
        for name in self.deliver(self.fresh_message(), record=True).get("modules", []):
            if name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)
        self.tracer.learn()

    def kill(self, path: list[Point], position: int) -> Kill:
        """Kill a run before a point of its path; then, where the task acknowledges late, deliver the message again."""
        point = path[position]
        message = self.fresh_message()
        end = self.deliver(message, kill_at=point)
        if end["state"] != "KILLED" or end["at"] != [point.file, point.function, point.line]:
            ended = end["state"] != "KILLED"
            there = f"it ended as {end['state']}" if ended else "it was at {0}:{2} in {1}".format(*end["at"])
            raise CrashMapError(
                f"{self.entry.name}: its path differs from run to run: opcode {point.index} of {point.thread} was at "
                f"{point.where}, this time {there}. A crash map needs one path: fix what the task draws at random, or "
                "takes from the clock or from threads that race, in the case's prepare()."
            )
        killed = self.count(message)
        if self.entry.ack == "late":
            self.deliver(message, redelivered=True)
        self.deliver_retries()
        return Kill(position, point, killed, self.count(message), end["in_transaction"])

    def fresh_message(self) -> Message:
        """Empty the world, prepare it, and return the message of a new call."""
        self.world.empty()
        message = Message(str(uuid.uuid4()), tuple(self.case.prepare(self.world)), {})
        self.world.waiting_messages()  # what the preparation itself published is not this test's
        return message

    def count(self, message: Message) -> int:
        """Count the effects of a call."""
        return self.case.effects(self.world, message.args)

    def deliver_retries(self) -> None:
        """Deliver what the task published for itself (retries), at once and until nothing waits."""
        for _ in range(LONGEST_CHAIN):
            raw = [
                message
                for message in self.world.waiting_messages()
                if message["headers"]["task"] == self.entry.name
            ]
            if not raw:
                return
            for message in map(Message.from_broker, raw):
                self.deliver(message)
        raise CrashMapError(
            f"{self.entry.name}: still retrying after {LONGEST_CHAIN} deliveries; does the case let it end?"
        )

    def deliver(
        self,
        message: Message,
        *,
        redelivered: bool = False,
        record: bool = False,
        kill_at: Point | None = None,
    ) -> dict:
        """Run the task once in a forked child and return how it ended: its state, and what was asked for."""
        child = self.fork(
            message, redelivered, lambda report: self.watch(report, record, kill_at), tell_modules=record
        )
        return child.end(self.entry.time_limit_s, self.entry.name)

    def watch(
        self, report: Callable[[dict], None], record: bool, kill_at: Point | None
    ) -> Callable[[Point], None] | None:
        """Return what a child does at each point."""
        if record:
            return lambda point: report({"point": list(asdict(point).values())})
        if kill_at is None:
            return None

        def reached(point: Point) -> None:
            if point.index == kill_at.index and point.thread == kill_at.thread:
                open_ones = [each.in_atomic_block for each in connections.all(initialized_only=True)]
                at = [point.file, point.function, point.line]
                report({"state": "KILLED", "at": at, "in_transaction": any(open_ones)})
                os.kill(os.getpid(), signal.SIGKILL)

        return reached

    def fork(self, message: Message, redelivered: bool, make_watch, *, tell_modules: bool = False) -> "Child":
        """Fork a child that delivers a message and reports through a pipe.

        It touches as little memory as it can: each page is copied when it is touched (measured: most of a kill's time).
        """
        self.world.close()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return Child(pid, reading)
        try:
            os.close(reading)
            gc.disable()

            def report(what: dict) -> None:
                os.write(writing, json.dumps(what).encode() + b"\n")

            end = self.run(message, redelivered, make_watch(report))
            report({**end, "modules": list(sys.modules)} if tell_modules else end)
        except BaseException:
            report({"state": "BROKEN", "error": traceback.format_exc()})
        finally:
            os._exit(0)

    def run(self, message: Message, redelivered: bool, reached: Callable[[Point], None] | None) -> dict:
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
            _, info, _, _ = self.run_task(message.id, message.args, message.kwargs, request)
        except (Ignore, Reject) as answer:
            return {"state": type(answer).__name__.upper()}
        finally:
            self.tracer.stop()
        return {"state": info.state, "error": repr(info.retval)} if info else {"state": "SUCCESS"}


class Child:
    """A forked child that delivers one message."""

    def __init__(self, pid: int, pipe: int):
        self.pid = pid
        self.pipe = pipe
        self.text = b""
        self.closed = False

    def read(self, seconds: float) -> bool:
        """Read what the child reported meanwhile; tell whether anything came, or the end, within so many seconds."""
        ready, _, _ = select.select([self.pipe], [], [], max(0, seconds))
        if ready:
            part = os.read(self.pipe, 1 << 16)
            self.text += part
            self.closed = not part
        return bool(ready)

    def reports(self) -> list[dict]:
        """Return the whole reports received so far."""
        return [json.loads(line) for line in self.text.split(b"\n")[:-1]]

    def end(self, seconds: float, name: str) -> dict:
        """Wait for the end, reap the child and return its last report, with all its points under `points`."""
        deadline = time.monotonic() + seconds
        try:
            while not self.closed and time.monotonic() < deadline:
                self.read(deadline - time.monotonic())
        finally:
            if not self.closed:
                os.kill(self.pid, signal.SIGKILL)
            os.close(self.pipe)
            os.waitpid(self.pid, 0)
        if not self.closed:
            raise CrashMapError(
                f"{name}: one run did not end within its time limit of {seconds:g} s. A crash map runs it hundreds of "
                "times: let the case prepare a short one."
            )
        reports = self.reports()
        last = reports.pop() if reports and "state" in reports[-1] else {"state": "DIED"}
        if last["state"] == "BROKEN":
            raise CrashMapError(f"{name}: the test itself failed in the child:\n{last['error']}")
        return {**last, "points": [report["point"] for report in reports if "point" in report]}
