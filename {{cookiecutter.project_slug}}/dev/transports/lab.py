"""A Redis, workers and a sender of one variant, and what can be seen of them from outside."""

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from redelivery.testing import processes
from redelivery.testing.servers import RedisServer
from transports import app as lab_app
from transports.variants import ROOT, Variant, clean_environment

READY_S = 60


@dataclass(frozen=True)
class Effect:
    """One line that a task wrote: `start` or `end` of a run of one message. `at` is in seconds since 1970."""

    kind: str
    number: int
    message: str
    pid: int
    at: float


@dataclass(frozen=True)
class Sent:
    """One message that the broker has taken. `at` is in seconds since 1970."""

    number: int
    message: str
    at: float


class Worker:
    """One worker: a main process and its pool, in a process group of its own."""

    def __init__(self, lab: "Lab", name: str, queues: str, concurrency: int, clock_s: float):
        self.lab, self.name = lab, name
        self.log = lab.directory / f"{name}.log"
        self.ready_file = lab.directory / "ready" / f"{name}@lab"
        arguments = ["--queues", queues, "--concurrency", str(concurrency), "--hostname", f"{name}@lab"]
        arguments = ["worker", "--loglevel", lab.loglevel, *arguments]
        self.process = lab.start_app(self.log, *arguments, environment={lab_app.CLOCK: str(clock_s)})

    def is_ready(self) -> bool:
        """Tell whether it consumes; raises RuntimeError with its log when it has ended instead."""
        if self.process.poll() is not None:
            raise RuntimeError(f"worker {self.name} ended with {self.process.returncode}:\n{self.tail()}")
        return self.ready_file.exists()

    def alive(self) -> bool:
        """Tell whether its main process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL its whole process group, as a machine that goes away does."""
        processes.kill_group(self.process)
        self.process.wait()

    def drain(self) -> None:
        """SIGTERM its main process alone, and do not wait."""
        self.process.send_signal(signal.SIGTERM)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def cpu_s(self) -> float:
        """Return the seconds of CPU that its processes have used so far."""
        return sum(map(cpu_seconds, group_of(self.process.pid)))


class Sender:
    """A process that publishes with the variant's own client."""

    def __init__(self, lab: "Lab"):
        self.lab = lab
        self.log = lab.directory / "sender.log"
        self.process = lab.start_app(
            self.log, "send", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lock = threading.Lock()
        #: What `work` has sent.
        self.sent: list[Sent] = []

    def send(self, task: str, *args, queue: str = lab_app.QUEUES[0], times: int = 1, **options) -> Sent:
        """Publish a message (or the same one several times), and return the last once the broker has taken it."""
        try:
            with self.lock:
                self.process.stdin.write(json.dumps([task, args, queue, options, times]) + "\n")
                answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the sender ended:\n{self.log.read_text()[-3000:]}")
        return Sent(*json.loads(answer))

    def work(self, number: int, seconds: float = 0, **options) -> Sent:
        """Publish one numbered message whose task takes so many seconds."""
        self.sent.append(self.send(lab_app.WORK, number, seconds, **options))
        return self.sent[-1]


class Lab:
    """Everything that one variant needs, in a directory and on a Redis of its own; use it with `with`.

    `durable` writes each command to disk before it is answered (appendonly, appendfsync always), so that what the
    sender was told survives a SIGKILL of Redis. `transport_options` are laid over the variant's own;
    `time_limit_s` is the policy's for each of the tasks. `server` is another Redis than a plain one, `broker` another
    URL than its own, `loglevel` the workers'.
    """

    def __init__(
        self,
        variant: Variant,
        directory: Path,
        durable: bool = False,
        transport_options: dict | None = None,
        time_limit_s: int = 60,
        server: RedisServer | None = None,
        broker: str = "",
        loglevel: str = "INFO",
    ):
        self.variant, self.directory, self.loglevel = variant, directory, loglevel
        for folder in ("ready", "temporary"):
            (directory / folder).mkdir(parents=True)
        self.data = directory / "redis" if durable else None
        if durable:
            self.data.mkdir()
        options = ("--appendfsync", "always") if durable else ()
        self.server = server or RedisServer(processes.free_port(), self.data, options)
        self.workers: list[Worker] = []
        self.stack = ExitStack()
        self._effects_read, self._effects = 0, []
        lab_app.write_policy(directory, time_limit_s)
        spec = {
            "variant": variant.name,
            "broker": broker or self.server.url(0),
            "directory": str(directory),
            "root": str(ROOT),
            "policy": variant.policy,
            "redelivery_transport": variant.redelivery_transport,
            "transport": variant.transport,
            "transport_options": transport_options or {},
        }
        self.spec = directory / "spec.json"
        self.spec.write_text(json.dumps(spec))

    def __enter__(self) -> "Lab":
        self.server.start()
        self.stack.callback(lambda: self.server.stop())
        try:
            if self.variant.policy:
                log = self.directory / "migrate.log"
                if status := self.start_app(log, "migrate").wait():
                    said = log.read_text()[-3000:]
                    raise RuntimeError(f"the lab's database cannot be made, status {status}:\n{said}")
            self.sender = Sender(self)
            self.stack.callback(processes.stop, self.sender.process, 2)
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exception) -> None:
        for worker in self.workers:
            if worker.alive():
                worker.kill()
        self.stack.close()

    def start_app(
        self, log: Path, *arguments: str, environment: dict[str, str] | None = None, **options
    ) -> subprocess.Popen:
        """Start the lab's app in the variant's Python; what it says goes to a file."""
        command = [self.variant.python, str(Path(lab_app.__file__)), str(self.spec), *arguments]
        # What a killed process leaves in its temporary folder goes with the lab's.
        temporary = {"TMPDIR": str(self.directory / "temporary")}
        environment = clean_environment() | temporary | (environment or {})
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
        with log.open("a") as output:
            if options["stdout"] == subprocess.DEVNULL:
                options["stdout"] = output
            return processes.start(command, stderr=output, env=environment, cwd=self.directory, **options)

    def start_worker(
        self, queues: str = lab_app.QUEUES[0], concurrency: int = 2, clock_s: float = 0
    ) -> Worker:
        """Start a worker, whose clock may be ahead by so many seconds, and return it at once."""
        worker = Worker(self, f"w{len(self.workers) + 1}", queues, concurrency, clock_s)
        self.workers.append(worker)
        return worker

    def use_broker(self, url: str) -> None:
        """Have the workers that are started from now on use another URL; the sender keeps its own."""
        spec = {**json.loads(self.spec.read_text()), "broker": url}
        self.spec = self.directory / "spec-of-workers.json"
        self.spec.write_text(json.dumps(spec))

    def start_workers(
        self, count: int = 1, queues: str = lab_app.QUEUES[0], concurrency: int = 2
    ) -> list[Worker]:
        """Start so many workers and return them once all of them wait for messages."""
        started = [self.start_worker(queues, concurrency) for _ in range(count)]
        for worker in started:
            self.wait(worker.is_ready, READY_S + 3 * count, f"worker {worker.name} to be ready", worker)
        time.sleep(0.5)  # "ready" is said just before the first look at the queue
        return started

    def within(self, true, seconds: float) -> float | None:
        """Return the seconds until something came true, or None when it did not in so many."""
        begun = time.monotonic()
        with suppress(TimeoutError):
            processes.wait_until(true, seconds, "it")
            return time.monotonic() - begun
        return None

    def wait(self, true, seconds: float, what: str, worker: Worker | None = None):
        """Wait for something to come true; raises RuntimeError with a worker's log when it was in vain."""
        try:
            return processes.wait_until(true, seconds, f"{what} ({self.variant.name})")
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{worker.tail() if worker else ''}") from None

    def restart_redis(self, down_s: float) -> None:
        """SIGKILL the Redis server and start it again after so many seconds, on its port and its data."""
        processes.kill_group(self.server.process)
        self.server.stop()
        time.sleep(down_s)
        self.server.start()
        self.wait(self.answers, 30, "Redis to answer again")

    def client(self) -> redis.Redis:
        """Return a client of the lab's Redis."""
        return redis.Redis.from_url(self.server.url(0), socket_timeout=10)

    def answers(self) -> bool:
        """Tell whether Redis answers, its data loaded."""
        with suppress(redis.RedisError):
            return self.client().ping()
        return False

    def effects(self) -> list[Effect]:
        """Return all effects so far, in their order."""
        with suppress(FileNotFoundError), (self.directory / "effects").open() as file:
            file.seek(self._effects_read)
            whole = file.read()
            whole = whole[: whole.rfind("\n") + 1]
            self._effects_read += len(whole.encode())
            self._effects += [Effect(*json.loads(line)) for line in whole.splitlines()]
        return self._effects

    def starts(self, message: str | None = None) -> list[Effect]:
        """Return the starts of one message (by its id), or of all of them."""
        return [one for one in self.effects() if one.kind == "start" and message in (None, one.message)]

    def ends(self, message: str | None = None) -> list[Effect]:
        """Return the ends of one message's runs (by its id), or of all runs."""
        return [one for one in self.effects() if one.kind == "end" and message in (None, one.message)]

    def held(self, messages: set[str]) -> dict[str, str]:
        """Return where in Redis each of these messages still is: message id -> key."""
        client, found = self.client(), {}
        for key in client.scan_iter(count=1000):
            text = content(client, key)
            for message in messages - found.keys():
                if message.encode() in text:
                    found[message] = key.decode()
        return found

    def recorded(self) -> Counter:
        """Return how many interrupted deliveries of each message are on record, on the way to the database or in it.

        In this order, so that one which is moved meanwhile is not missed.
        """
        on_the_way = self.client().lrange("redelivery.kills", 0, -1)
        found = Counter(json.loads(item)["task_id"] for item in on_the_way)
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(self.directory / "lab.sqlite3")) as rows,
        ):
            found.update(dict(rows.execute("SELECT task_id, count(*) FROM redelivery_kill GROUP BY task_id")))
        return found


def content(client: redis.Redis, key: bytes) -> bytes:
    """Return all that a key holds, one value after the other."""
    read = {
        b"list": lambda: client.lrange(key, 0, -1),
        b"hash": lambda: client.hvals(key),
        b"zset": lambda: client.zrange(key, 0, -1),
        b"set": lambda: list(client.smembers(key)),
        b"string": lambda: [client.get(key) or b""],
    }.get(client.type(key), list)
    return b"\n".join(read())


def runs(effects: list[Effect]) -> dict[str, list[Effect]]:
    """Return the effects of each message, by its id."""
    found = defaultdict(list)
    for effect in effects:
        found[effect.message].append(effect)
    return found


def group_of(leader: int) -> list[int]:
    """Return the processes of a group (Linux)."""
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if entry.isdigit() and os.getpgid(int(entry)) == leader:
                found.append(int(entry))
    return found


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that a process has used (Linux); 0 when it is gone."""
    try:
        fields = processes.stat_fields(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
