"""`make storm`: SIGKILL workers and Redis under load, and count what became of every message.

For each variant: a Redis that writes every command to disk, workers, a sender of numbered messages. Every one to two
seconds a random worker is killed with all its processes and replaced; Redis is killed and restarted in between. Tasks
write their starts and ends to a file outside. Exit status 1 if a message was lost or ran too often under `ours`, or
if a long storm cost stock Celery nothing: then it was no storm, and proves nothing.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dev")]

from transports import variants  # noqa: E402
from transports.lab import Lab, Sent, runs  # noqa: E402
from transports.report import Progress, interruptible, table  # noqa: E402

#: So many kills cost stock Celery at least one message (measured: 0.6 a kill), or they were not under load.
LONG_STORM_KILLS = 50
#: Seconds between two kills, and that Redis is down for.
BETWEEN_S, DOWN_S = (1.0, 2.0), (0.1, 1.0)
#: Seconds that a variant has at most, after the storm, to get back what killed workers held: its visibility, the
#: interval in which it looks (celery-redis-plus: 60 s), and some.
SETTLE_S = 90


@dataclass(frozen=True)
class Toll:
    """What a storm did to one variant's messages. Times are in seconds."""

    variant: str
    kills: int
    redis_restarts: int
    sent: int
    #: Never finished, and in no key of Redis any more.
    lost: int
    #: Started more than once (one message, by its id).
    run_twice: int
    #: Starts beyond the first, of all messages.
    extra_starts: int
    #: Never finished, and still in Redis when the time to settle was over.
    held: int
    #: Second and further starts for which no interrupted delivery is on record; only ours keeps records.
    unrecorded: int | None
    #: Workers that ended although nobody killed them.
    crashed_workers: int
    #: From the publishing to the end of the first complete run; of all messages that have one.
    longest_wait_s: float
    median_wait_s: float
    storm_s: float
    settle_s: float
    held_in: dict
    lost_numbers: list


class Publisher(threading.Thread):
    """Sends numbered messages at a steady rate until it is told to stop; `sent` is what the broker has taken."""

    def __init__(self, lab: Lab, rate: float, seconds: float):
        super().__init__(daemon=True)
        self.lab, self.rate, self.seconds = lab, rate, seconds
        self.sent: list[Sent] = []
        self.stopped = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Send; what a Redis that was down has delayed is caught up with."""
        begun = time.monotonic()
        with suppress(Exception):
            while not self.stopped.is_set():
                number = len(self.sent) + 1
                if self.stopped.wait(max(0.0, begun + number / self.rate - time.monotonic())):
                    return
                try:
                    self.sent.append(self.lab.sender.work(number, self.seconds))
                except Exception as error:
                    self.failure = error
                    raise

    def finish(self) -> list[Sent]:
        """Stop, and return what was sent; raises what ended it before."""
        self.stopped.set()
        self.join(30)
        if self.failure:
            raise self.failure
        return self.sent


class Storm:
    """One storm over one variant."""

    def __init__(self, lab: Lab, options: argparse.Namespace, progress: Progress):
        self.lab, self.options, self.progress = lab, options, progress
        self.random = random.Random(options.seed)
        self.crashed = self.restarts = 0

    def run(self) -> Toll:
        """Storm, wait until the messages are done, and count."""
        options = self.options
        workers = self.lab.start_workers(options.workers, concurrency=options.concurrency)
        begun = time.monotonic()
        publisher = Publisher(self.lab, options.rate, options.task_s)
        publisher.start()
        for number in range(1, options.kills + 1):
            time.sleep(self.random.uniform(*BETWEEN_S))
            self.kill_one(workers)
            if number % options.restart_every == 0:
                self.lab.restart_redis(self.random.uniform(*DOWN_S))
                self.restarts += 1
            self.progress.say(f"{number}/{options.kills} kills, {len(publisher.sent)} messages sent")
        sent = publisher.finish()
        storm_s = time.monotonic() - begun
        settle_s = self.settle(workers, {one.message for one in sent})
        return self.count(sent, storm_s, settle_s)

    def kill_one(self, workers: list) -> None:
        """Kill a random worker, replace it, and replace those that have ended by themselves."""
        victim = self.random.choice(workers)
        self.replace_crashed(workers)
        victim.kill()
        workers[workers.index(victim) if victim in workers else 0] = self.lab.start_worker(
            concurrency=self.options.concurrency
        )

    def replace_crashed(self, workers: list) -> None:
        """Replace workers that have ended although nobody killed them, as a supervisor does, and count them."""
        for index, worker in enumerate(workers):
            if not worker.alive():
                self.crashed += 1
                workers[index] = self.lab.start_worker(concurrency=self.options.concurrency)

    def settle(self, workers: list, messages: set[str]) -> float:
        """Wait until every message is done or in no key of Redis any more; return the seconds that took."""
        begun, absent_since = time.monotonic(), None
        while (waited := time.monotonic() - begun) < self.options.settle:
            self.replace_crashed(workers)
            missing = messages - self.done()
            if not missing:
                break
            if self.lab.held(missing):
                absent_since = None
            elif absent_since is None:
                absent_since = waited
            elif waited - absent_since > self.options.task_s + 5:
                break  # in no key, and no run of it is going on: lost
            self.progress.say(f"{len(missing)} messages not done yet, {waited:.0f} s after the storm")
            time.sleep(0.5)
        return time.monotonic() - begun

    def done(self) -> set[str]:
        """Return the messages that a task has finished with."""
        return {effect.message for effect in self.lab.ends()}

    def count(self, sent: list[Sent], storm_s: float, settle_s: float) -> Toll:
        """Return what became of the messages."""
        by_message = runs(self.lab.effects())
        done = self.done()
        missing = {one.message for one in sent} - done
        held = self.lab.held(missing)
        starts = [sum(effect.kind == "start" for effect in by_message.get(one.message, ())) for one in sent]
        waits = sorted(
            next(effect.at for effect in by_message[one.message] if effect.kind == "end") - one.at
            for one in sent
            if one.message in done
        )
        places = list(held.values())
        recorded = self.lab.recorded()
        unrecorded = sum(
            max(0, count - 1 - recorded[one.message]) for one, count in zip(sent, starts, strict=True)
        )
        return Toll(
            variant=self.lab.variant.name,
            kills=self.options.kills,
            redis_restarts=self.restarts,
            sent=len(sent),
            lost=len(missing) - len(held),
            run_twice=sum(count > 1 for count in starts),
            extra_starts=sum(max(0, count - 1) for count in starts),
            held=len(held),
            unrecorded=unrecorded if self.lab.variant.redelivery_transport else None,
            crashed_workers=self.crashed,
            longest_wait_s=round(waits[-1], 1) if waits else 0.0,
            median_wait_s=round(waits[len(waits) // 2], 3) if waits else 0.0,
            storm_s=round(storm_s, 1),
            settle_s=round(settle_s, 1),
            held_in={key: places.count(key) for key in sorted(set(places))},
            lost_numbers=[one.number for one in sent if one.message in missing - held.keys()],
        )


def verdicts(tolls: list[Toll], concurrency: int) -> list[str]:
    """Return what is wrong with the outcome, a sentence each; empty when every promise was kept."""
    wrong = []
    for toll in tolls:
        if toll.variant == "ours":
            allowed = toll.kills * concurrency
            if toll.lost:
                wrong.append(f"ours lost {toll.lost} of {toll.sent} messages; it must lose none.")
            if toll.held:
                wrong.append(
                    f"ours still holds {toll.held} messages after {toll.settle_s:.0f} s: {toll.held_in}."
                )
            if toll.extra_starts > allowed:
                wrong.append(
                    f"ours started messages {toll.extra_starts} times too often; {toll.kills} kills of "
                    f"{concurrency} processes explain {allowed}."
                )
            if toll.unrecorded:
                wrong.append(f"ours has no record of {toll.unrecorded} interrupted deliveries.")
            if toll.crashed_workers:
                wrong.append(f"{toll.crashed_workers} of ours' workers ended although nobody killed them.")
        if toll.variant == "stock" and toll.kills >= LONG_STORM_KILLS and not toll.lost:
            wrong.append(f"stock Celery lost nothing in {toll.kills} kills: this storm proves nothing.")
    return wrong


def storm(options: argparse.Namespace, progress: Progress) -> list[Toll]:
    """Run the storm over each variant in turn and return the tolls."""
    tolls = []
    for variant in options.chosen:
        with tempfile.TemporaryDirectory(prefix=f"storm-{variant.name}-") as directory:
            # Without it stock Celery would hold for an hour what a killed worker had taken, and the storm would
            # have to wait for it; ours has a lease of its own.
            short = {"visibility_timeout": options.visibility}
            if variant.name == "stock":
                short |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
            mine = {} if variant.policy else short
            lab = Lab(variant, Path(directory) / "lab", durable=True, transport_options=mine)
            progress.begin(f"{variant.name}: {variant.words}")
            with lab:
                toll = Storm(lab, options, progress).run()
            tolls.append(toll)
            progress.end(f"{toll.sent} sent, {toll.lost} lost, {toll.run_twice} run twice, {toll.held} held")
    return tolls


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options; `chosen` holds the variants that can run, `skipped` why others cannot."""
    parser = argparse.ArgumentParser(
        prog="make storm ARGS=", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=20, help="worker kills for each variant (default 20)")
    parser.add_argument("--rate", type=float, default=50, help="messages a second (default 50)")
    parser.add_argument("--workers", type=int, default=2, help="workers at a time (default 2)")
    parser.add_argument("--concurrency", type=int, default=2, help="processes of a worker (default 2)")
    parser.add_argument("--task-s", type=float, default=0.02, help="seconds that a task takes (default 0.02)")
    parser.add_argument(
        "--restart-every", type=int, default=10, help="kills for each restart of Redis (default 10)"
    )
    parser.add_argument(
        "--visibility",
        type=float,
        default=10,
        help="visibility timeout of stock and crp in seconds, so that the end can be waited for (default 10)",
    )
    parser.add_argument(
        "--settle", type=float, default=SETTLE_S, help=f"seconds to wait at the end (default {SETTLE_S})"
    )
    parser.add_argument(
        "--variants",
        default="stock,ours,crp",
        help=f"which ones: {', '.join(variants.VARIANTS)} (default stock,ours,crp; what is not installed is skipped)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random kills (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if min(options.kills, options.workers, options.concurrency, options.restart_every) < 1:
        parser.error("--kills, --workers, --concurrency and --restart-every must be 1 or more")
    if min(options.rate, options.visibility) <= 0 or min(options.task_s, options.settle) < 0:
        parser.error("--rate and --visibility must be above 0, --task-s and --settle not below it")
    try:
        options.chosen, options.skipped = variants.chosen(options.variants)
    except ValueError as error:
        parser.error(str(error))
    return options


def show(tolls: list[Toll], options: argparse.Namespace) -> str:
    """Return the outcome as a table."""
    head = ("variant", "kills", "Redis restarts", "sent", "lost", "run twice", "still held")
    rows = [(*head, "crashed workers", "longest wait", "median wait")]
    for toll in tolls:
        counts = (toll.kills, toll.redis_restarts, toll.sent, toll.lost, toll.run_twice, toll.held)
        waits = (f"{toll.longest_wait_s} s", f"{toll.median_wait_s} s")
        rows.append((toll.variant, *map(str, (*counts, toll.crashed_workers)), *waits))
    rows += [(name, f"skipped: {why}") for name, why in options.skipped.items()]
    return table(rows)


def main() -> int:
    """Run the storm, print what came of it, and return the exit status."""
    options = parse()
    progress = Progress()
    begun = time.monotonic()
    tolls = storm(options, progress)
    wrong = verdicts(tolls, options.concurrency)
    if options.json:
        settings = {
            key: value for key, value in vars(options).items() if key not in ("chosen", "json", "skipped")
        }
        figures = {"tolls": [asdict(toll) for toll in tolls], "skipped": options.skipped, "wrong": wrong}
        print(json.dumps({"options": settings, "cores": os.cpu_count(), **figures}, indent=1))
    else:
        print(show(tolls, options))
        print("\n".join(wrong) or "Every promise was kept.")
        print(
            f"(seed {options.seed}, {options.rate:g} messages/s, {options.workers} workers of {options.concurrency} "
            f"processes, {os.cpu_count()} cores, {time.monotonic() - begun:.0f} s)"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(interruptible(main, "storm"))
