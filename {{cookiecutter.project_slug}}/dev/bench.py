"""`make bench`: what the policy costs: throughput against bare Celery, alternating in one run, and the marker's price.

Only the ratios mean something: the machine's speed and its load are in both numbers of a pair.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
QUEUE, STAGED, TASK, MARKED = "bench", "bench.staged", "bench.nothing", "bench.marked"
POLICY = f"""
[queues.{QUEUE}]
concurrency = 2

[tasks."{TASK}"]
queue        = "{QUEUE}"
ack          = "late"
guard        = "none"
time_limit_s = 60
reason       = "Does nothing at all, as often as one likes."

[tasks."{MARKED}"]
queue        = "{QUEUE}"
ack          = "late"
guard        = "marker"
time_limit_s = 60
reason       = "Only there for its marker to be measured."
"""


def make_app(kind: str, redis_url: str, directory: str):
    """Return a Celery app with one trivial late-ack task: under the policy, or with Celery's own settings."""
    from celery import Celery
    from django.conf import settings

    import redelivery

    policy_file = Path(directory) / "ack_policy.toml"
    policy_file.write_text(POLICY)
    cache = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": redis_url.replace("/0", "/1"),
    }
    settings.configure(
        ACK_POLICY_FILE=policy_file,
        INSTALLED_APPS=["redelivery"],
        CACHES={"default": cache},
        SECRET_KEY="only for the benchmark",
        DATABASES={},
    )
    app = Celery("bench", broker=redis_url, set_as_current=True)
    app.conf.update(task_ignore_result=True, accept_content=["json"], broker_connection_retry_on_startup=True)
    if kind == "policy":
        redelivery.setup(app)
    else:
        app.conf.task_default_queue = QUEUE

    @app.task(name=TASK, **({} if kind == "policy" else {"acks_late": True}))
    def nothing():
        pass

    @app.task(name=MARKED)
    def marked():
        pass

    import django

    django.setup()
    return app


def worker(kind: str, redis_url: str, directory: str, loglevel: str) -> None:
    """Run a worker of one kind; called in a process of its own."""
    app = make_app(kind, redis_url, directory)
    options = ["--concurrency", "2", "--loglevel", loglevel, "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", "--queues", QUEUE, *options])


def drain_seconds(kind: str, server, directory: str, loglevel: str) -> float:
    """Start a worker, hand it the staged messages all at once when it is ready, and return how long they took."""
    import redis

    from redelivery.testing import processes

    broker = redis.Redis.from_url(server.url(0))
    log = Path(directory) / f"{kind}.log"
    with log.open("w") as output:
        command = [sys.executable, __file__, "--worker", kind, server.url(0), directory, loglevel]
        process = processes.start(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        # Ready is said at INFO only; that it listens to the queue shows at every level.
        processes.wait_until(
            lambda: b"brpop" in client_commands(broker), 30, "the worker to wait for messages"
        )
        begun = time.perf_counter()
        broker.copy(STAGED, QUEUE)
        processes.wait_until(
            lambda: not broker.exists(QUEUE) and not broker.hlen("unacked"), 300, "the messages to be done"
        )
        return time.perf_counter() - begun
    except TimeoutError as error:
        raise SystemExit(f"{error}:\n{log.read_text()[-2000:]}") from None
    finally:
        processes.stop(process)


def client_commands(broker) -> set[bytes]:
    """Return the last command of each client of the broker."""
    return {client["cmd"].encode() for client in broker.client_list()}


def stage(app, server, tasks: int) -> None:
    """Publish the messages once and set them aside, so that each round gets the same ones."""
    import redis

    with app.pool.acquire() as connection, app.amqp.Producer(connection) as producer:
        for _ in range(tasks):
            app.send_task(TASK, queue=QUEUE, producer=producer)
    redis.Redis.from_url(server.url(0)).rename(QUEUE, STAGED)


def marker_microseconds(times: int = 2000) -> dict[str, float]:
    """Return what a marker costs a task: looked up in vain before the effect, set after it."""
    from redelivery.marker import Marker

    def median_of(action) -> float:
        taken = []
        for number in range(times):
            marker = Marker(MARKED, number)
            begun = time.perf_counter()
            action(marker)
            taken.append(time.perf_counter() - begun)
        return round(statistics.median(taken) * 1e6, 1)

    return {"lookup": median_of(Marker.is_set), "write": median_of(Marker.set)}


def compare(rounds: int, tasks: int, loglevel: str) -> dict:
    """Run both kinds in turn, each round in the other order, and return the figures."""
    from redelivery.testing.servers import redis_server

    with redis_server() as server, tempfile.TemporaryDirectory() as directory:
        stage(make_app("policy", server.url(0), directory), server, tasks)
        rates: dict[str, list[float]] = {"policy": [], "bare": []}
        for number in range(rounds):
            for kind in list(rates)[:: 1 if number % 2 else -1]:
                rates[kind].append(round(tasks / drain_seconds(kind, server, directory, loglevel)))
                print(
                    f"round {number + 1}/{rounds}: {kind} {rates[kind][-1]:.0f} tasks/s",
                    file=sys.stderr,
                    flush=True,
                )
        ratios = [round(ours / bare, 3) for ours, bare in zip(rates["policy"], rates["bare"], strict=True)]
        return {
            "tasks": tasks,
            "cores": os.cpu_count(),
            "tasks_per_second": rates,
            "ratio": {"median": round(statistics.median(ratios), 3), "each": ratios},
            "marker_us": marker_microseconds(),
        }


def main() -> None:
    """Print the figures."""
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--tasks", type=int, default=4000, help="tasks a run (default 4000)")
    parser.add_argument("--loglevel", default="WARNING", help="of both workers (default WARNING)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    figures = compare(options.rounds, options.tasks, options.loglevel)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    ratio, marker = figures["ratio"], figures["marker_us"]
    spread = f"{min(ratio['each'])} to {max(ratio['each'])}"
    print(f"policy / bare: {ratio['median']} in the median of {options.rounds} pairs ({spread})")
    print(
        f"marker: {marker['lookup']} us to look up, {marker['write']} us to write; {figures['cores']} cores"
    )


if __name__ == "__main__":
    main()
