"""What is done to a worker, one scenario each: a function of a stage, which gives labs, that returns what was seen."""

import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from transports.app import POISON, QUEUES
from transports.lab import Lab, Worker, group_of
from transports.proxy import Proxy
from transports.variants import Variant

#: Seconds: the short visibility of the scenarios that wait for one, and how long a worker is given to come back.
SHORT_S, BACK_S = 4, 30
#: Seconds that a redelivery is waited for under the defaults, and under a short visibility (stock looks for expired
#: messages every 100 s, celery-redis-plus every 60 s).
DEFAULT_WAIT_S, SHORT_WAIT_S = 30, 130
POISON_WATCHED_S, DRAIN_TASK_S = 25, 6
#: How often Redis is restarted under load; seconds that it is full, and that a message may wait on a dead connection.
RESTARTS, FULL_S, HALF_OPEN_WAIT_S = 10, 30, 90


@dataclass(frozen=True)
class Stage:
    """The variant that a scenario is played with, and how often."""

    variant: Variant
    repeats: int = 3

    @contextmanager
    def lab(self, visibility_s: float = 0, sweep: bool = True, **options) -> Iterator[Lab]:
        """Give a lab; with a visibility of one's own, and `sweep` for stock to look for expired messages at once."""
        given = {}
        if visibility_s and self.variant.redelivery_transport:
            given = {"lease_s": visibility_s}
        elif visibility_s:
            given = {"visibility_timeout": visibility_s}
            if sweep and not self.variant.transport:
                given |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
        with (
            tempfile.TemporaryDirectory(prefix=f"compare-{self.variant.name}-") as directory,
            Lab(self.variant, Path(directory) / "lab", transport_options=given, **options) as lab,
        ):
            yield lab


@dataclass(frozen=True)
class Seen:
    """What came of a scenario: the cell of the table, and the figures behind it."""

    cell: str
    figures: dict


def running_task(lab: Lab, seconds: float, number: int = 1) -> str:
    """Send a task that takes so long, wait until it runs, and return its message's id."""
    message = lab.sender.work(number, seconds).message
    lab.wait(lambda: lab.starts(message), 30, "the task to start")
    return message


def owner(lab: Lab, message: str) -> Worker:
    """Return the worker that runs a message."""
    pid = lab.starts(message)[-1].pid
    return next(worker for worker in lab.workers if worker.alive() and pid in group_of(worker.process.pid))


def seconds_after_kill(lab: Lab, wait_s: float) -> float | None:
    """Kill the worker that runs a task; return the seconds until another one starts it, None if none does in time."""
    lab.start_workers(2)
    message = running_task(lab, 600)
    owner(lab, message).kill()
    return lab.within(lambda: len(lab.starts(message)) > 1, wait_s)


def kill(stage: Stage) -> Seen:
    """SIGKILL of a worker with all its processes; seconds until its task starts elsewhere, default settings."""
    taken = []
    for _ in range(stage.repeats):
        with stage.lab() as lab:
            taken.append(seconds_after_kill(lab, DEFAULT_WAIT_S))
        if taken[-1] is None:
            timeout = stage.variant.visibility_s
            return Seen(f"not within {DEFAULT_WAIT_S} s (its timeout: {timeout} s)", {"seconds": taken})
    return Seen(spread(taken, "s") + within(taken, 20), {"seconds": taken})


def kill_short(stage: Stage) -> Seen:
    """The same with a visibility (or lease) of 4 s and nothing else changed."""
    with stage.lab(visibility_s=SHORT_S, sweep=False) as lab:
        taken = seconds_after_kill(lab, SHORT_WAIT_S)
    cell = f"not within {SHORT_WAIT_S} s" if taken is None else f"{taken:.1f} s"
    return Seen(cell, {"seconds": [taken]})


def long_task(stage: Stage, drained: bool = False) -> Seen:
    """A healthy task five times longer than the visibility of 4 s, another worker idle beside it."""
    with stage.lab(visibility_s=SHORT_S) as lab:
        lab.start_workers(2)
        message = running_task(lab, 5 * SHORT_S)
        if drained:
            owner(lab, message).drain()
        lab.within(lambda: lab.ends(message), 6 * SHORT_S)
        time.sleep(SHORT_S)
        starts = len(lab.starts(message))
    return Seen(times(starts), {"starts": starts})


def long_task_in_drain(stage: Stage) -> Seen:
    """The same, its worker draining since the task's start."""
    return long_task(stage, drained=True)


def into_a_drain(stage: Stage) -> Seen:
    """A message sent 0.3 s after a worker began to drain under a long task, another worker idle: seconds to start."""
    taken = []
    for _ in range(stage.repeats):
        with stage.lab() as lab:
            (first,) = lab.start_workers(1)
            running_task(lab, DRAIN_TASK_S)
            lab.start_workers(1)
            first.drain()
            time.sleep(0.3)
            sent = [lab.sender.work(number) for number in (2, 3)]
            taken += [
                lab.wait(lambda one=one: lab.starts(one.message), 60, "a message to start")[0].at - one.at
                for one in sent
            ]
    return Seen(spread(taken, "s", highest=True) + within(taken, 1), {"seconds": taken})


def redis_restart(stage: Stage) -> Seen:
    """SIGKILL of Redis (append-only file on) under a running task, back 1 s later: the worker and the task's runs."""
    with stage.lab(durable=True) as lab:
        (worker,) = lab.start_workers(1)
        message = running_task(lab, 5)
        lab.restart_redis(down_s=1)
        time.sleep(5)
        after = lab.sender.work(2)
        back = lab.within(lambda: lab.starts(after.message) or not worker.alive(), BACK_S)
        if worker.alive():
            time.sleep(2)
        alive, starts = worker.alive(), len(lab.starts(message))
        left = bool(lab.held({message}))
    cell = (
        "worker consumes again"
        if alive and back is not None
        else "worker alive and deaf"
        if alive
        else "worker exits"
    )
    cell += f"; task ran {times(starts)}" + ("; its message stays behind" if left else "")
    return Seen(cell, {"alive": alive, "back": back is not None, "starts": starts, "left": left})


def restarts(stage: Stage) -> Seen:
    """Redis killed and restarted ten times under load (append-only file on): who lives, and what is lost."""
    with stage.lab(durable=True, visibility_s=SHORT_S) as lab:
        workers, alive = lab.start_workers(2), 0
        for round_ in range(RESTARTS):
            for number in range(40):
                lab.sender.work(100 * round_ + number, 0.05)
            lab.restart_redis(down_s=0.5)
            after = lab.sender.work(100 * round_ + 99)
            lab.within(lambda after=after: lab.starts(after.message), BACK_S)
            alive += all(worker.alive() for worker in workers)
            workers = [worker if worker.alive() else lab.start_worker() for worker in workers]
        sent = {one.message for one in lab.sender.sent}
        lab.within(lambda: sent <= {one.message for one in lab.ends()}, SHORT_WAIT_S)
        missing = sent - {one.message for one in lab.ends()}
        lost = len(missing) - len(lab.held(missing))
    return Seen(
        f"workers alive {alive} of {RESTARTS}; {lost} of {len(sent)} lost, {len(missing) - lost} held",
        {"alive": alive, "lost": lost, "held": len(missing) - lost, "sent": len(sent)},
    )


def redis_away(stage: Stage) -> Seen:
    """Redis stopped (SIGSTOP) for three times the visibility of 4 s under four running tasks: starts of each."""
    once = alive = most = 0
    for _ in range(stage.repeats):
        with stage.lab(visibility_s=SHORT_S) as lab:
            workers = lab.start_workers(2)
            messages = [running_task(lab, 5 * SHORT_S, number) for number in range(4)]
            lab.server.process.send_signal(signal.SIGSTOP)
            time.sleep(3 * SHORT_S)
            lab.server.process.send_signal(signal.SIGCONT)
            lab.within(lambda: all(map(lab.ends, messages)), 4 * SHORT_S)  # noqa: B023
            time.sleep(2 * SHORT_S)
            starts = max(len(lab.starts(message)) for message in messages)
            once, most = once + (starts == 1), max(most, starts)
            alive += sum(worker.alive() for worker in workers)
    rounds = stage.repeats
    return Seen(
        f"{times(most)} at most, each once in {once} of {rounds}; {alive} of {2 * rounds} workers alive",
        {"once": once, "starts": most, "alive": alive},
    )


def half_open(stage: Stage) -> Seen:
    """All connections of a worker go dead under a running task, and new ones work: seconds until it takes a message."""
    taken, starts = [], 0
    for _ in range(stage.repeats):
        with stage.lab() as lab, closing(Proxy(lab.server.port)) as proxy:
            lab.use_broker(f"redis://127.0.0.1:{proxy.port}/0")
            lab.start_workers(1)
            message = running_task(lab, 5)
            proxy.swallow()
            after = lab.sender.work(2)
            taken.append(lab.within(lambda: lab.starts(after.message), HALF_OPEN_WAIT_S))  # noqa: B023
            lab.within(lambda: lab.ends(message), BACK_S)  # noqa: B023
            time.sleep(2)
            starts = max(starts, len(lab.starts(message)))
        if taken[-1] is None:
            return Seen(f"not within {HALF_OPEN_WAIT_S} s", {"seconds": taken, "starts": starts})
    cell = f"{spread(taken, 's')}{within(taken, BACK_S)}; task ran {times(starts)}"
    return Seen(cell, {"seconds": taken, "starts": starts})


def redis_full(stage: Stage) -> Seen:
    """A Redis at its memory limit for 30 s, messages waiting; then the limit is lifted."""
    with stage.lab() as lab:
        (worker,) = lab.start_workers(1)
        running_task(lab, 2)
        sent = [lab.sender.work(number, 0.5) for number in range(2, 22)]
        lab.client().config_set("maxmemory", 1)
        time.sleep(FULL_S)
        lab.client().config_set("maxmemory", 0)
        done = lab.within(
            lambda: {one.message for one in sent} <= {one.message for one in lab.ends()}, BACK_S
        )
        alive = worker.alive()
    cell = ("worker alive" if alive else "worker exits") + (", queue drained" if done is not None else "")
    return Seen(cell, {"alive": alive, "drained": done is not None})


def poison(stage: Stage) -> Seen:
    """A task that kills its own process, and twenty neighbours."""
    with stage.lab() as lab:
        lab.start_workers(1)
        message = lab.sender.send(POISON, 0).message
        sent = {lab.sender.work(number).message for number in range(1, 21)}
        time.sleep(POISON_WATCHED_S)
        starts = len(lab.starts(message))
        parked = "redelivery.parked" in lab.held({message}).values() or in_database(lab, message)
        done = len(sent & {one.message for one in lab.ends()})
        gone = not parked and not lab.held({message})
    end = "then parked" if parked else "then gone" if gone else "and goes on"
    return Seen(
        f"{starts} starts in {POISON_WATCHED_S} s, {end}; {done} of 20 neighbours done",
        {"starts": starts, "parked": parked, "neighbours": done},
    )


def in_database(lab: Lab, text: str) -> bool:
    """Tell whether the lab's database has this text anywhere (a parked message is moved there)."""
    return any(text.encode() in file.read_bytes() for file in lab.directory.glob("lab.sqlite3*"))


def undecodable(stage: Stage) -> Seen:
    """A message that is not JSON, and one behind it."""
    with stage.lab() as lab:
        (worker,) = lab.start_workers(1)
        client, text = lab.client(), "not JSON: 5f0c"
        if stage.variant.transport:
            client.hset("message:5f0c", mapping={"payload": text, "routing_key": QUEUES[0], "priority": 0})
            client.zadd(f"queue:{QUEUES[0]}", {"5f0c": 0})
        else:
            client.lpush(QUEUES[0], text)
        after = lab.sender.work(1)
        lab.within(lambda: lab.starts(after.message) or not worker.alive(), 10)
        time.sleep(1)
        alive, started = worker.alive(), bool(lab.starts(after.message))
        kept = bool(lab.held({text})) or in_database(lab, text)
    cell = ("worker alive" if alive else "worker exits") + (
        ", the next one runs" if started else ", the next one waits"
    )
    return Seen(
        f"{cell}; it is {'kept' if kept else 'gone'}", {"alive": alive, "started": started, "kept": kept}
    )


def unknown_task(stage: Stage) -> Seen:
    """A message for a task that the worker does not know, as an older release sees it."""
    with stage.lab() as lab:
        (worker,) = lab.start_workers(1)
        message = lab.sender.send("lab.unknown", 0).message
        after = lab.sender.work(1)
        lab.within(lambda: lab.starts(after.message), 10)
        time.sleep(2)
        kept = bool(lab.held({message})) or in_database(lab, message)
        alive = worker.alive()
    return Seen(
        f"{'kept' if kept else 'gone'}, {'worker alive' if alive else 'worker exits'}",
        {"kept": kept, "alive": alive},
    )


def spread(values: list[float], unit: str, highest: bool = False) -> str:
    """Return the median of some values, with the lowest and highest, or the highest alone."""
    low, high = min(values), max(values)
    around = f"at most {high:.2f}" if highest else f"{low:.1f} to {high:.1f}"
    return f"{statistics.median(values):.{2 if highest else 1}f} {unit} ({around})"


def within(values: list[float], limit_s: float) -> str:
    """Return how many of several values are below a limit."""
    return f", {sum(value < limit_s for value in values)} of {len(values)} in less than {limit_s} s"


def times(count: int) -> str:
    """Return a count of runs in words."""
    return "once" if count == 1 else f"{count} times"


#: Name on the command line, words in the table, and the scenario itself.
SCENARIOS: dict[str, tuple[str, Callable[[Stage], Seen]]] = {
    "kill": ("SIGKILL of a worker: its task starts elsewhere after", kill),
    "kill-short": (f"the same, visibility (lease) {SHORT_S} s", kill_short),
    "long": (f"healthy task of {5 * SHORT_S} s, visibility (lease) {SHORT_S} s: it runs", long_task),
    "long-drain": ("the same in a draining worker: it runs", long_task_in_drain),
    "away": (
        f"Redis stopped for {3 * SHORT_S} s under 4 tasks, visibility (lease) {SHORT_S} s: they run",
        redis_away,
    ),
    "drain": ("message sent into a drain, another worker idle: starts after", into_a_drain),
    "restart": ("Redis killed and restarted under a running task", redis_restart),
    "restarts": (f"the same {RESTARTS} times under load, visibility (lease) {SHORT_S} s", restarts),
    "full": (f"Redis at its memory limit for {FULL_S} s", redis_full),
    "half-open": ("connections go dead under a task, new ones work: takes a message after", half_open),
    "poison": ("task that kills its process", poison),
    "undecodable": ("message that is not JSON", undecodable),
    "unknown": ("message for a task that is not known", unknown_task),
}
