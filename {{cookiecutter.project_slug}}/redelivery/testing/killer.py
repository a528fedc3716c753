"""Kill a task before every opcode of project code, deliver it again, and count the effects from outside."""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple, replace

from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from django.db import connections

from redelivery import policy
from redelivery.source import project_root
from redelivery.testing.case import Case
from redelivery.testing.children import Child, Report, Runner
from redelivery.testing.crashmap import CrashMap, CrashMapError, Kill
from redelivery.testing.messages import LONGEST_CHAIN, Message
from redelivery.testing.points import Point, Tracer
from redelivery.testing.processes import wait_for_children
from redelivery.testing.sandbox import World, celery_app, refuse_private_stores
from redelivery.testing.threads import wait_for_threads

# Seconds that one run may take, whatever its time limit is: a map runs it hundreds of times.
LONGEST_RUN_S = 30
# Seconds in which threads and processes that a task leaves behind may finish their work.
GRACE_S = 2
# A path of more opcodes than this (a few minutes) is a loop that the case can make shorter.
LONGEST_PATH = 20_000
# Threads that wait for nobody's turn may get in each other's way, on a busy machine more than once; not each time.
ATTEMPTS = 5


class PathDiffers(CrashMapError):
    """A run did not come to the point at which it was to be killed."""


class Killer:
    """Delivers the messages of one task in forked children, and kills them where it is told. Close it at the end."""

    def __init__(self, case: Case, world: World):
        refuse_private_stores()
        self.case = case
        self.world = world
        self.tasks = celery_app().tasks
        if case.task not in policy.current().tasks or case.task not in self.tasks:
            where = "registered with Celery (is its module imported?)"
            raise CrashMapError(
                f"{case.task}: no task of this name is "
                f"{where if case.task in policy.current().tasks else 'in the ack policy'}."
            )
        self.entry = policy.current().tasks[case.task]
        self.longest_run_s = min(self.entry.time_limit_s, LONGEST_RUN_S)
        self.grace_s = GRACE_S
        self.root = project_root()
        self.tracer = Tracer(self.root)
        self.tracer.learn()
        self.run_task = {case.task: self.traced(case.task)}
        self.runner = Runner(self.answer, world.close)
        self.forker = Runner(self.answer_kill, world.close)

    def close(self) -> None:
        """End the child that delivers, and the one that forks those to be killed."""
        self.runner.stop()
        self.forker.stop()

    def draw(self, part: int, parts: int, progress: Callable[[int], None]) -> CrashMap:
        """Return every `parts`-th kill of the map, from number `part` on; `progress(kills of all parts)` after each."""
        begun = time.monotonic()
        crash_map = CrashMap(self.entry.name, self.entry.ack, self.entry.guard)
        crash_map.path, crash_map.once, crash_map.completed = self.settled_run()
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

    def settled_run(self) -> tuple[list[Point], int, int]:
        """Return what two whole runs in a row agree on; with one thread there is nothing to agree on."""
        found = self.whole_run()
        for _ in range(ATTEMPTS):
            if not self.several_threads(found[0]):
                break
            before, found = found, self.whole_run()
            if before == found:
                break
        return found

    def several_threads(self, path: list[Point]) -> bool:
        """Tell whether a task runs code in more than one thread, or leaves one behind."""
        return len({point.thread for point in path}) > 1 or not self.grace_s

    def whole_run(self) -> tuple[list[Point], int, int]:
        """Run once unharmed; return the points of its path and the effects, then and after one more delivery."""
        self.rehearse()
        path: list[Point] = []
        waiting, ends, mine = [self.fresh_message()], [], []
        while waiting:
            message, *waiting = waiting
            if message.task == self.entry.name:
                end, points = self.record(message)
                # What never ends is at another place each time.
                path += [replace(p, run=len(ends)) for p in points if not (p.returned and end.get("last"))]
                mine.append(message)
            else:
                end = self.ask(message)
            ends.append(end)
            waiting = self.follows(message, end) + waiting
            if len(ends) > LONGEST_CHAIN or len(path) > LONGEST_PATH:
                raise self.endless(end)
        once = self.count()
        if not once:
            raise CrashMapError(
                f"{self.entry.name}: a whole run had no effect that {type(self.case).__name__}.effects() counts; it "
                f"ended as {ends[-1]['state']} {ends[-1].get('error', '')}. Mend the case, or the task."
            )
        if not path:
            raise CrashMapError(
                f"{self.entry.name}: it ran no code under {self.root}. Let BASE_DIR in the settings be the folder that "
                "holds the project's code."
            )
        if self.entry.ack == "late":
            self.deliver([mine[-1].again()])
        return path, once, self.count()

    def rehearse(self) -> None:
        """Run once to learn what the task imports on its way, and import it here; and whether it leaves things running.

        Otherwise each of the hundreds of children would import anew, or wait for what never ends.
        """
        end, _ = self.record(self.fresh_message())
        for name in end.get("modules", []):
            if name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)
        self.tracer.learn()
        if end.get("last"):
            self.grace_s = 0

    def record(self, message: Message) -> tuple[dict, list[Point]]:
        """Deliver a message; return how it ended and all points of its path."""

        def body(report: Report) -> dict:
            end = self.run(message, reached=lambda point: report({"point": astuple(point)}))
            return {**end, "modules": list(sys.modules)}

        child = self.child(body)
        end = self.end_of(child)
        return end, points_of(child)

    def kill(self, path: list[Point], position: int) -> Kill:
        """Kill a run before a point of its path; then, where the task acknowledges late, deliver the message again."""
        attempts = ATTEMPTS if self.several_threads(path) else 1
        while True:
            try:
                return self.kill_once(path[position], position)
            except PathDiffers:
                attempts -= 1
                if not attempts:
                    raise

    def kill_once(self, point: Point, position: int) -> Kill:
        """Kill a run before a point, if it comes there."""
        message, *waiting = self.before(point)
        end = self.killed_at(message, point)
        if end.get("at") != list(astuple(replace(point, run=0))):
            raise self.path_differs(point, f"it ended as {end['state']}", end.get("at"))
        killed = self.count()
        acknowledged = self.entry.ack == "early" or point.returned
        self.deliver([*([] if acknowledged else [message.again()]), *waiting, *self.published()])
        return Kill(position, point, killed, self.count(), end["in_transaction"])

    def killed_at(self, message: Message, point: Point) -> dict:
        """Deliver a message in a child that is killed before a point; return what it reported there, or how it ended.

        It is forked by a child that does nothing else. What has been forked shares its memory page by page, and whoever
        writes on a page first pays for it: the case and the database would do so here, after each fork.
        """
        question = {"message": asdict(message), "point": asdict(point)}
        answer = self.forker.ask(question, 2 * (self.longest_run_s + self.grace_s))
        if answer is None:
            raise self.too_long([])
        if "refused" in answer:
            raise CrashMapError(answer["refused"])
        return answer.get("end") or self.checked(answer)

    def answer_kill(self, question: dict) -> dict:
        """Kill a child as a question says; called in the child that forks."""
        child = self.stop_at(
            Message(**question["message"]),
            Point(**question["point"]),
            lambda: os.kill(os.getpid(), signal.SIGKILL),
        )
        try:
            return {"end": self.end_of(child, stopped=True)}
        except CrashMapError as error:
            return {"refused": str(error)}

    def before(self, point: Point) -> list[Message]:
        """Make a new call, deliver what comes before a point's run, and return what waits then, its message first."""
        waiting = self.deliver([self.fresh_message()], most=point.run)
        if not waiting or waiting[0].task != self.entry.name:
            raise self.path_differs(point, f"the message of delivery {point.run + 1} was not there")
        return waiting

    def stop_at(self, message: Message, point: Point, action: Callable[[], None]) -> Child:
        """Deliver a message in a child that reports when it is before a point (`at`), and then does something."""

        def body(report: Report) -> dict:
            def reached(here: Point) -> None:
                in_transaction = any(one.in_atomic_block for one in connections.all(initialized_only=True))
                report({"state": "STOPPED", "at": astuple(here), "in_transaction": in_transaction})
                action()

            return self.run(message, reached, point.index)

        return self.child(body)

    def child(self, body: Callable[[Report], dict]) -> Child:
        """Fork a child."""
        self.world.close()
        return Child(body)

    def end_of(self, child: Child, *, stopped: bool = False) -> dict:
        """Wait for the end of a child's run (`stopped`: or for its stop at a point), and return what it reported then.

        Not for the end of its pipe: a process that the task has started may hold that open for long.
        """

        def ends() -> list[dict]:
            return [state for state in child.states if stopped or "at" not in state]

        in_time = child.read_until(
            lambda: ends() or len(child.reports) > LONGEST_PATH, self.longest_run_s + self.grace_s
        )
        child.end(0 if ends() and ends()[0].get("last") else self.grace_s)
        if not ends() and (not in_time or len(child.reports) > LONGEST_PATH):
            raise self.too_long(points_of(child))
        return self.checked([*ends(), {"state": "DIED", "error": "(its process ended)"}][0])

    def fresh_message(self) -> Message:
        """Empty the world, prepare it, and return the message of a new call."""
        self.world.empty()
        self.arguments = self.of_case("prepare", self.world)
        self.world.waiting_messages()  # what the preparation itself published is not this test's
        try:
            return Message.to(self.entry.name, self.arguments)
        except TypeError as error:
            raise CrashMapError(f"{self.entry.name}: {type(self.case).__name__}.prepare(): {error}") from None

    def count(self) -> int:
        """Count the effects of the last call."""
        effects = self.of_case("effects", self.world, self.arguments)
        if not isinstance(effects, int):
            counted = f"{self.entry.name}: {type(self.case).__name__}.effects()"
            raise CrashMapError(f"{counted}: it must return a whole number, not {effects!r}")
        return effects

    def of_case(self, method: str, *arguments):
        """Call a method of the case; what it raises is its author's to mend."""
        try:
            return getattr(self.case, method)(*arguments)
        except Exception as error:
            line = error.__traceback__.tb_next
            place = f" (line {line.tb_lineno} of {line.tb_frame.f_code.co_filename})" if line else ""
            raise CrashMapError(
                f"{self.entry.name}: {type(self.case).__name__}.{method}() failed{place}: {error!r}"
            ) from error

    def published(self) -> list[Message]:
        """Take from the broker what the task has published: retries, and other tasks."""
        messages = map(Message.from_broker, self.world.waiting_messages())
        return [one for one in messages if one.task in self.tasks and not one.task.startswith("celery.")]

    def deliver(self, waiting: list[Message], most: int | None = None) -> list[Message]:
        """Deliver messages, and what they publish, until nothing waits or so many are delivered; return what waits."""
        done = 0
        while waiting and done != most:
            message, *waiting = waiting
            end = self.ask(message)
            waiting = self.follows(message, end) + waiting
            done += 1
            if done > LONGEST_CHAIN:
                raise self.endless(end)
        return waiting

    def follows(self, message: Message, end: dict) -> list[Message]:
        """Return the messages that wait after a delivery: itself, if it goes back, and what it published."""
        entry = policy.current().tasks.get(message.task)
        lost = end["state"] == "DIED" and entry is not None and entry.ack == "late"
        return [*([message.again()] if lost or end["state"] == "REQUEUED" else []), *self.published()]

    def ask(self, message: Message) -> dict:
        """Run a task once, whole, in the child that is there for that; return how it ended."""
        end = self.runner.ask(asdict(message), self.longest_run_s + self.grace_s)
        if end is None:
            raise self.too_long([])
        return self.checked(end)

    def answer(self, question: dict) -> dict:
        """Deliver the message of a question; called in the child."""
        try:
            return self.run(Message(**question))
        finally:
            self.world.close()

    def run(
        self, message: Message, reached: Callable[[Point], None] | None = None, only: int | None = None
    ) -> dict:
        """Run a task as a worker would, and wait for what it leaves running; say how it ended.

        `last` is true when something still runs, so that this process is no place for another run.
        """
        if reached:
            self.tracer.start(reached, only)
        try:
            end = self.outcome(message)
        finally:
            self.tracer.returned = True
            self.tracer.turns.leave()
            settled = wait_for_threads(self.grace_s) and wait_for_children(self.grace_s)
            self.tracer.stop()
        return {**end, "last": not settled}

    def outcome(self, message: Message) -> dict:
        """Run a task through Celery's own tracer, so that bind, retry and autoretry count."""
        entry = policy.current().tasks.get(message.task)
        request = {
            "id": message.id,
            "root_id": message.id,
            "task": message.task,
            "retries": message.retries,
            "delivery_info": {
                "exchange": "",
                "routing_key": entry.queue if entry else "celery",
                "redelivered": message.redelivered,
            },
            "hostname": "crashmap",
            "is_eager": False,
        }
        run_task = self.run_task.get(message.task) or self.traced(message.task)
        try:
            _, info, _, _ = run_task(message.id, *message.decoded(), request)
        except Ignore:
            return {"state": "IGNORED"}
        except Reject as answer:
            return {"state": "REQUEUED" if answer.requeue else "REJECTED"}
        except (SystemExit, KeyboardInterrupt) as error:  # billiard reports them as a failure of the task
            return {"state": "FAILURE", "error": repr(error)}
        return {"state": info.state, "error": repr(info.retval)} if info else {"state": "SUCCESS"}

    def traced(self, name: str) -> Callable:
        """Return what Celery's worker calls to run a task."""
        return build_tracer(name, self.tasks[name], app=self.tasks[name].app)

    def checked(self, end: dict) -> dict:
        """Return how a run ended; raises CrashMapError where the test itself is broken."""
        if end["state"] == "BROKEN":
            raise CrashMapError(f"{self.entry.name}: the test itself failed in the child:\n{end['error']}")
        return end

    def path_differs(self, point: Point, ended: str, at: list | None = None) -> PathDiffers:
        """Return the error of a run that did not come to a point."""
        there = f"{Point(*at).thread} was at {Point(*at).where}" if at else ended
        return PathDiffers(
            f"{self.entry.name}: its path differs from run to run: at opcode {point.index} {point.thread} was at "
            f"{point.where}, this time {there}. A crash map needs one path: let the case's prepare() fix what the task "
            "draws at random, takes from the clock, or leaves to threads that race."
        )

    def too_long(self, points: list[Point]) -> CrashMapError:
        """Return the error of a run that does not end."""
        was = f"; it was last at {points[-1].where}" if points else ""
        how = (
            f"ran more than {LONGEST_PATH} opcodes"
            if len(points) > LONGEST_PATH
            else f"did not end within {self.longest_run_s} s"
        )
        return CrashMapError(
            f"{self.entry.name}: one run {how}{was}. A crash map runs it once for each opcode: let the case prepare a "
            "shorter one."
        )

    def endless(self, end: dict) -> CrashMapError:
        """Return the error of a task that comes back without end."""
        return CrashMapError(
            f"{self.entry.name}: it still comes back after {LONGEST_CHAIN} deliveries; the last one ended as "
            f"{end['state']} {end.get('error', '')}. Does the case let it end?"
        )


def points_of(child: Child) -> list[Point]:
    """Return the points that a child has reported."""
    return [Point(*report["point"]) for report in child.reports if "point" in report]
