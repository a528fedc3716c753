"""Kill real workers on a real Redis, in the middle of real tasks, and count runs and effects.

`python -m redelivery.testing.kills [TASK ...]` prints what came of it as JSON. Every task is held twice in each worker,
once just before its effect and once just after it, by the opcode that the crash map found; then the event strikes.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from django.db import connections

from redelivery import policy
from redelivery.testing import processes
from redelivery.testing.case import Case, all_cases
from redelivery.testing.crashmap import Kill
from redelivery.testing.killer import Killer
from redelivery.testing.messages import Message
from redelivery.testing.promises import AFTER, BEFORE
from redelivery.testing.sandbox import World, celery_app, sandbox

# Limits of the test's own, in seconds. Only the worker that takes over after a kill has a short visibility timeout:
# what the first one holds must not come back because the machine is slow.
TIME_LIMIT_S, NO_LIMIT_S = 8, 600
VISIBILITY_S, TAKE_OVER_VISIBILITY_S = 600, 6


@dataclass(frozen=True)
class Outcome:
    """What came of one event for one held task: how often it ran and how many effects were seen from outside."""

    task: str
    event: str
    held: str
    runs: int
    effects: int
    foretold: int


@dataclass(frozen=True)
class Held:
    """One message whose first run is held at a point."""

    case: Case
    phase: str
    kill: Kill
    once: int
    args: tuple | dict
    id: str


class Worker:
    """A worker process of the test's own."""

    def __init__(self, world: World, directory: Path, time_limit_s: float, visibility_s: float, slots: int):
        self.log = directory / f"worker-{uuid4().hex[:8]}.log"
        queues = ",".join(policy.current().queues)
        command = [
            sys.executable,
            "-m",
            "redelivery.testing.worker",
            str(directory),
            str(time_limit_s),
            str(visibility_s),
        ]
        command += ["--queues", queues, "--concurrency", str(slots), "--hostname", f"{uuid4().hex[:8]}@test"]
        environment = {**world.addresses.environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self.log.open("w") as log:
            self.process = processes.start(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    @property
    def pid(self) -> int:
        """The main process."""
        return self.process.pid

    def children(self) -> list[int]:
        """Return the process ids of the pool's children."""
        found = []
        for pid in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
            with suppress(FileNotFoundError, ProcessLookupError):
                if int(processes.stat_fields(pid)[1]) == self.pid:
                    found.append(pid)
        return found

    def text(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-3000:]


class Strike:
    """One event on one worker that holds every task before and after its effect."""

    def __init__(self, world: World, held: list[Held], directory: Path):
        self.world, self.held, self.directory = world, held, directory
        self.workers: list[Worker] = []
        for folder in ("hold", "held"):
            (directory / folder).mkdir(parents=True)
        (directory / "starts").touch()

    def start_worker(self, time_limit_s: float = NO_LIMIT_S) -> None:
        """Start the worker that is to hold the tasks."""
        self.workers.append(
            Worker(self.world, self.directory, time_limit_s, VISIBILITY_S, max(2, len(self.held)))
        )

    def take_over(self) -> None:
        """Start a worker that takes over what another one has left."""
        self.workers.append(Worker(self.world, self.directory, NO_LIMIT_S, TAKE_OVER_VISIBILITY_S, 2))

    def wait(self, true: Callable[[], object], what: str, seconds: float = 90) -> None:
        """Wait, and show the workers' logs when it was in vain."""
        try:
            processes.wait_until(lambda: true() or self.refused(), seconds, what)
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.logs()}") from None
        if self.refused():
            raise RuntimeError(f"a worker refused to start:\n{self.logs()}")

    def refused(self) -> bool:
        """Tell whether a worker ended in a way in which no event ends it."""
        return any(worker.process.poll() not in (None, 0, -signal.SIGKILL) for worker in self.workers)

    def logs(self) -> str:
        """Return the ends of all workers' logs."""
        return "\n".join(worker.text() for worker in self.workers)

    def publish(self) -> None:
        """Order the holds, then publish the messages."""
        for one in self.held:
            (self.directory / "hold" / one.id).write_text(
                json.dumps([one.kill.point.run, one.kill.point.index])
            )
        for one in self.held:
            args, kwargs = Message.to(one.case.task, one.args).decoded()
            celery_app().tasks[one.case.task].apply_async(args, kwargs, task_id=one.id)
        self.wait(self.all_held, f"{len(self.held)} tasks to be held in the worker")

    def all_held(self) -> bool:
        """Tell whether every message is held."""
        return len(list((self.directory / "held").iterdir())) == len(self.held)

    def release(self) -> None:
        """Let the held runs go on."""
        (self.directory / "release").touch()

    def settle(self) -> None:
        """Wait until nothing waits and nothing is held by a worker: what has not come back by then never will."""
        self.wait(self.quiet, "the broker to be empty")

    def quiet(self) -> bool:
        """Tell whether the broker holds no message, twice in a row."""
        if self.world.unacknowledged():
            return False
        time.sleep(0.5)
        return not self.world.unacknowledged()

    def end(self) -> None:
        """End exactly the workers that were started."""
        self.release()
        for worker in self.workers:
            processes.stop(worker.process, seconds=20)

    def starts(self) -> Counter:
        """Return how often each message was started."""
        return Counter((self.directory / "starts").read_text().split())


def sigterm_main(strike: Strike) -> None:
    """SIGTERM to the main process alone: a warm shutdown."""
    worker = strike.workers[0]
    os.kill(worker.pid, signal.SIGTERM)
    time.sleep(1)
    strike.release()
    strike.wait(lambda: worker.process.poll() is not None, "the worker to drain")
    if strike.world.unacknowledged():  # what the task has published itself, or what it should not have left
        strike.take_over()


def sigterm_all(strike: Strike) -> None:
    """SIGTERM to the main process and its children, as systemd's default stop sends it."""
    worker = strike.workers[0]
    for pid in [worker.pid, *worker.children()]:
        os.kill(pid, signal.SIGTERM)
    strike.wait(lambda: worker.process.poll() is not None, "the worker to end")
    strike.release()
    strike.take_over()


def sigkill_child(strike: Strike) -> None:
    """SIGKILL to the pool children that run the tasks, as the kernel sends it when memory is short."""
    for file in (strike.directory / "held").iterdir():
        os.kill(int(file.read_text()), signal.SIGKILL)
    strike.release()


def sigkill_group(strike: Strike) -> None:
    """SIGKILL to all processes of the worker: a power cut, or a stop that took too long."""
    processes.kill_group(strike.workers[0].process)
    strike.workers[0].process.wait()
    strike.release()
    strike.take_over()


def hard_limit(strike: Strike) -> None:
    """The hard time limit passes while the task is held."""
    pids = [int(file.read_text()) for file in (strike.directory / "held").iterdir()]
    strike.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the hard limit to kill")
    strike.release()


EVENTS: dict[str, Callable[[Strike], None]] = {
    "SIGTERM to main": sigterm_main,
    "SIGTERM to main and children": sigterm_all,
    "SIGKILL of the pool child": sigkill_child,
    "SIGKILL of the group": sigkill_group,
    "hard time limit": hard_limit,
}


def effect_kills(killer: Killer) -> tuple[int, dict[str, Kill]]:
    """Return the effects of a whole run, and the kills just before and just after the effect."""
    path, once, _ = killer.whole_run()
    before, after = killer.around_the_effect(path)
    killer.close()
    return once, {BEFORE: before, AFTER: after} if after else {BEFORE: before}


def batches(world: World, places: dict[str, tuple[int, dict[str, Kill]]]) -> list[list[tuple]]:
    """Return what can be held at the same time: (case, phase, kill, effects of a whole run).

    On SQLite an open transaction locks out every other writer, so what is held inside of one is alone.
    """
    cases = all_cases()
    together, alone = [], []
    sqlite = any(connection.vendor == "sqlite" for connection in connections.all())
    for task, (once, kills) in places.items():
        for phase, kill in kills.items():
            one = (cases[task], phase, kill, once)
            alone.append([one]) if sqlite and kill.in_transaction else together.append(one)
    return [together, *alone] if together else alone


@contextmanager
def struck(world: World, batch: list[tuple], event: str):
    """Give a worker in which every task of a batch is held, ready for the event; end it afterwards."""
    world.empty()
    held = [
        Held(case, phase, kill, once, case.prepare(world), str(uuid4())) for case, phase, kill, once in batch
    ]
    world.waiting_messages()
    world.close()
    strike = Strike(world, held, Path(world.addresses.directory) / f"strike-{uuid4().hex[:8]}")
    try:
        strike.start_worker(TIME_LIMIT_S if event == "hard time limit" else NO_LIMIT_S)
        strike.publish()
        yield strike
    finally:
        strike.end()


def strike_all(world: World, tasks: list[str]) -> list[Outcome]:
    """Try every event on every task, held before and after its effect."""
    cases = all_cases()
    places = {task: effect_kills(Killer(cases[task], world)) for task in tasks}
    outcomes = []
    for batch in batches(world, places):
        for event, happen in EVENTS.items():
            with struck(world, batch, event) as strike:
                happen(strike)
                strike.settle()
            outcomes += [outcome(world, one, event, strike.starts()[one.id]) for one in strike.held]
    return outcomes


def outcome(world: World, one: Held, event: str, runs: int) -> Outcome:
    """Count the effects of one message, and say what the crash map foretold."""
    foretold = (
        one.kill.redelivered if runs > 1 else one.once if event == "SIGTERM to main" else one.kill.killed
    )
    return Outcome(one.case.task, event, one.phase, runs, one.case.effects(world, one.args), foretold)


def main() -> None:
    """Print the outcomes as JSON."""
    import django

    django.setup()
    logging.disable(logging.CRITICAL)
    tasks = sys.argv[1:] or [task for task in policy.current().tasks if task in all_cases()]
    with sandbox() as world:
        outcomes = strike_all(world, tasks)
    print(json.dumps([asdict(outcome) for outcome in outcomes]))


if __name__ == "__main__":
    main()
