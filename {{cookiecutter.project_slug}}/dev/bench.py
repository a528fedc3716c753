"""`make bench`: this service's transport against stock kombu (and celery-redis-plus), alternating in one run.

Throughput, latency idle and loaded, with several workers and several queues, CPU for each message, and what a marker
costs. Only the ratios mean something: the machine's speed and its load are in both numbers of a pair.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dev")]

from transports import marker, variants  # noqa: E402
from transports.app import NOTHING, QUEUES  # noqa: E402
from transports.lab import Lab, Worker, cpu_seconds  # noqa: E402
from transports.report import Progress, interruptible, machine, made_by, markdown, table, write_between  # noqa: E402
from transports.variants import Variant  # noqa: E402

STAGED = "lab.staged"
#: Seconds between two messages to an idle worker, at random, so that nothing beats with anyone's timer.
IDLE_GAP_S = (0.01, 0.05)
#: Workers that wait idle while CPU is counted, and the messages a second that they share.
MANY_WORKERS, CPU_RATE = 32, 20


@dataclass(frozen=True)
class Size:
    """How much is measured: messages to drain, messages to idle workers, load, and seconds."""

    tasks: int
    singles: int
    load: float
    loaded_s: float
    cpu_s: float


@dataclass(frozen=True)
class Target:
    """What ours is meant to reach against another variant; the value is a ratio, or with `less` a difference."""

    measurement: str
    figure: str
    against: str
    limit: float
    at_least: bool = False
    less: bool = False

    def value(self, ours: float, other: float) -> float:
        """Return what one pair says."""
        return ours - other if self.less else ours / other if other else float("inf")

    def met(self, value: float) -> bool:
        """Tell whether a value reaches the target."""
        return value >= self.limit if self.at_least else value <= self.limit

    def words(self) -> str:
        """Return the target in words."""
        sign, side = ("-", " ms") if self.less else ("/", "")
        return f"ours {sign} {self.against} {'>=' if self.at_least else '<='} {self.limit:g}{side}"


TARGETS = (
    Target("throughput", "messages_per_s", "stock", 1.2, at_least=True),
    Target("throughput", "messages_per_s", "crp", 0.9, at_least=True),
    Target("loaded", "p99_ms", "stock", 1.2),
    Target("idle, 1 worker", "p50_ms", "stock", 2, less=True),
    Target("idle, 8 workers", "p50_ms", "stock", 2, less=True),
)


def throughput(lab: Lab, size: Size) -> dict[str, float]:
    """Hand a waiting worker all messages at once, and time it until the last is acknowledged.

    The CPU that this takes, in the worker and in Redis, depends less on what else the machine does than the time.
    """
    queue, unacked = keys(lab.variant)
    lab.sender.send(NOTHING, times=size.tasks)
    client = lab.client()
    client.rename(queue, STAGED)
    (worker,) = lab.start_workers(1)
    begun, spent_before = time.perf_counter(), sum(spent(lab, [worker]))
    client.rename(STAGED, queue)
    lab.wait(lambda: not client.exists(queue, unacked), 300, "the messages to be done", worker)
    seconds = time.perf_counter() - begun
    used_ms = (sum(spent(lab, [worker])) - spent_before) * 1000
    return {"messages_per_s": size.tasks / seconds, "cpu_ms_per_message": used_ms / size.tasks}


def keys(variant: Variant) -> tuple[str, str]:
    """Return the keys of a queue and of its unacknowledged messages."""
    if variant.transport:
        return f"queue:{QUEUES[0]}", f"messages_index:{QUEUES[0]}"
    return QUEUES[0], "unacked"


def idle(lab: Lab, size: Size, workers: int = 1, queues: int = 1) -> dict[str, float]:
    """Send single messages to workers that have nothing to do; each time from the publishing to the task's start."""
    names = QUEUES[:queues]
    lab.start_workers(workers, ",".join(names), concurrency=1)
    for number in range(size.singles):
        time.sleep(random.uniform(*IDLE_GAP_S))
        one = lab.sender.work(number, queue=names[number % queues])
        lab.wait(lambda one=one: lab.starts(one.message), 30, "a message to start")
    return latencies(lab)


def latencies(lab: Lab) -> dict[str, float]:
    """Return the median and the 99th percentile of the times from publishing to start, in milliseconds."""
    first = {}
    for effect in lab.starts():
        first.setdefault(effect.message, effect.at)
    taken = sorted((first[one.message] - one.at) * 1000 for one in lab.sender.sent)
    return {"p50_ms": taken[len(taken) // 2], "p99_ms": taken[int(len(taken) * 0.99)]}


def loaded(lab: Lab, size: Size) -> dict[str, float]:
    """Send at a steady rate to one worker with two processes."""
    (worker,) = lab.start_workers(1)
    steady(lab, size.load, size.loaded_s)
    lab.wait(lambda: len(lab.starts()) >= len(lab.sender.sent), 120, "the messages to start", worker)
    return latencies(lab)


def steady(lab: Lab, rate: float, seconds: float) -> int:
    """Send so many messages a second for so long, and return how many that were."""
    begun, messages = time.monotonic(), int(rate * seconds)
    for number in range(messages):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        lab.sender.work(number)
    return messages


def cpu(lab: Lab, size: Size) -> dict[str, float]:
    """Return the CPU that a message costs while many workers wait, in all of them and in Redis, in milliseconds."""
    workers = lab.start_workers(MANY_WORKERS, concurrency=1)
    idle_begun = spent(lab, workers)
    time.sleep(size.cpu_s)
    busy_begun = spent(lab, workers)
    messages = steady(lab, CPU_RATE, size.cpu_s)
    lab.wait(lambda: len(lab.starts()) >= messages, 60, "the messages to start")
    busy_ended = spent(lab, workers)

    def for_each(part: int) -> float:
        idle_s = busy_begun[part] - idle_begun[part]
        return max(0.0, busy_ended[part] - busy_begun[part] - idle_s) * 1000 / messages

    return {
        "workers_ms_per_message": for_each(0),
        "redis_ms_per_message": for_each(1),
        "workers_idle_percent": (busy_begun[0] - idle_begun[0]) / size.cpu_s * 100,
        "redis_idle_percent": (busy_begun[1] - idle_begun[1]) / size.cpu_s * 100,
    }


def spent(lab: Lab, workers: list[Worker]) -> tuple[float, float]:
    """Return the seconds of CPU that workers and Redis have used so far."""
    return sum(worker.cpu_s() for worker in workers), cpu_seconds(lab.server.process.pid)


@dataclass(frozen=True)
class Measurement:
    """One thing to measure, and whether once for each variant is enough."""

    name: str
    measure: Callable[[Lab, Size], dict[str, float]]
    once: bool = False


MEASUREMENTS = (
    Measurement("throughput", throughput),
    Measurement("idle, 1 worker", idle),
    Measurement("idle, 8 workers", lambda lab, size: idle(lab, size, workers=8)),
    Measurement("idle, 3 queues", lambda lab, size: idle(lab, size, queues=3)),
    Measurement("loaded", loaded),
    Measurement(f"CPU, {MANY_WORKERS} workers", cpu, once=True),
)


def measure(options: argparse.Namespace, progress: Progress) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Measure everything, the variants in turn, each round in the other order: measurement -> variant -> rounds."""
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    for one in options.measurements:
        rounds = 1 if one.once else options.rounds
        found = figures[one.name] = {variant.name: [] for variant in options.chosen}
        progress.begin(one.name)
        for number in range(rounds):
            for variant in options.chosen[:: -1 if number % 2 else 1]:
                with (
                    tempfile.TemporaryDirectory(prefix=f"bench-{variant.name}-") as directory,
                    Lab(variant, Path(directory) / "lab", loglevel=options.loglevel) as lab,
                ):
                    result = one.measure(lab, options.size)
                found[variant.name].append({name: round(value, 3) for name, value in result.items()})
                values = ", ".join(f"{name} {value:.1f}" for name, value in result.items())
                progress.line(f"round {number + 1}/{rounds}, {variant.name}: {values}")
    return figures


def compare(figures: dict) -> list[dict]:
    """Return for each target what the pairs say: the median, all of them, and whether it is met."""
    compared = []
    for target in TARGETS:
        found = figures.get(target.measurement, {})
        pairs = zip(found.get("ours", ()), found.get(target.against, ()), strict=False)
        values = [round(target.value(a[target.figure], b[target.figure]), 3) for a, b in pairs]
        if values:
            median = round(statistics.median(values), 3)
            words = f"{target.measurement}, {target.figure}: {target.words()}"
            compared.append({"target": words, "median": median, "each": values, "met": target.met(median)})
    return compared


def rows_of(figures: dict, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the figures as rows: one for each figure, a column for each variant."""
    names = [variant.name for variant in options.chosen]
    rows = [("median (lowest to highest)", *names)]
    for measurement, found in figures.items():
        for figure in found[names[0]][0]:
            cells = [spread([one[figure] for one in found[name]]) for name in names]
            rows.append((f"{measurement}: {figure}", *cells))
    return rows


def rows_of_targets(compared: list[dict]) -> list[tuple[str, ...]]:
    """Return the targets as rows."""
    rows = [("target", "median of the pairs (lowest to highest)", "")]
    for one in compared:
        rows.append((one["target"], spread([one["median"], *one["each"]]), "met" if one["met"] else "MISSED"))
    return rows


def show(figures: dict, compared: list[dict], options: argparse.Namespace) -> str:
    """Return the figures and the targets for a terminal."""
    parts = [
        table(
            [
                *rows_of(figures, options),
                *((f"{name} skipped: {why}",) for name, why in options.skipped.items()),
            ]
        )
    ]
    if compared:
        parts.append(table(rows_of_targets(compared)))
    return "\n\n".join(parts)


def spread(values: list[float]) -> str:
    """Return the median and the spread of some values."""
    digits = 0 if max(values) >= 100 else 2
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options, with `chosen`, `skipped`, `measurements` and `size`."""
    words = ["marker", *(one.name.replace(", ", "-").replace(" ", "-") for one in MEASUREMENTS)]
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--tasks", type=int, default=4000, help="messages to drain in a run (default 4000)")
    parser.add_argument(
        "--singles", type=int, default=150, help="messages to idle workers in a run (default 150)"
    )
    parser.add_argument("--load", type=float, default=300, help="messages a second when loaded (default 300)")
    parser.add_argument("--loaded-s", type=float, default=8, help="seconds of load in a run (default 8)")
    parser.add_argument(
        "--cpu-s", type=float, default=10, help="seconds for which CPU is counted (default 10)"
    )
    parser.add_argument("--loglevel", default="WARNING", help="of all workers (default WARNING)")
    parser.add_argument("--only", default=",".join(words), help=f"some of {','.join(words)} (default all)")
    parser.add_argument(
        "--variants",
        default="stock,ours,crp",
        help=f"which ones: {', '.join(variants.VARIANTS)} (default stock,ours,crp; what is not installed is skipped)",
    )
    parser.add_argument("--write", type=Path, help="put the tables into this file, between its marks")
    parser.add_argument("--strict", action="store_true", help="exit status 1 when a target is missed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else arguments
    if min(options.rounds, options.tasks, options.singles) < 1:
        parser.error("--rounds, --tasks and --singles must be 1 or more")
    if min(options.load, options.loaded_s, options.cpu_s) <= 0:
        parser.error("--load, --loaded-s and --cpu-s must be above 0")
    if options.write and not options.write.is_file():
        parser.error(f"--write: {options.write} is not a file")
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(words):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; choose from {', '.join(words)}")
    options.marker = "marker" in wanted
    options.measurements = [one for word, one in zip(words[1:], MEASUREMENTS, strict=True) if word in wanted]
    options.size = Size(options.tasks, options.singles, options.load, options.loaded_s, options.cpu_s)
    try:
        options.chosen, options.skipped = variants.chosen(options.variants)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Measure, print the figures, and return the exit status."""
    options = parse()
    before, begun = machine(), time.monotonic()
    figures = measure(options, Progress())
    compared = compare(figures)
    marker_us = marker.microseconds() if options.marker else {}
    if options.json:
        settings = {name: getattr(options, name) for name in ("rounds", "tasks", "singles", "load", "only")}
        print(
            json.dumps(
                {
                    "options": settings,
                    "cores": os.cpu_count(),
                    "figures": figures,
                    "targets": compared,
                    "skipped": options.skipped,
                    "marker_us": marker_us,
                },
                indent=1,
            )
        )
    else:
        if figures:
            print(show(figures, compared, options))
        if marker_us:
            print(f"\nmarker: {marker_us['lookup']} us to look up, {marker_us['write']} us to write")
        print(f"({before} before, {machine()} after, {time.monotonic() - begun:.0f} s)")
    if options.write:
        names = [variant.name for variant in options.chosen]
        made = made_by("bench", options.arguments, variants.python_of("crp", names))
        tables = [markdown(rows_of(figures, options)), markdown(rows_of_targets(compared))]
        write_between(options.write, "bench", "\n\n".join([*tables, f"By {made}; {before}."]))
    return 1 if options.strict and not all(one["met"] for one in compared) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(interruptible(main, "bench"))
