"""A small project with real workers on a Redis of its own, whose one late-ack task does what its argument says."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

from redis import Redis

from redelivery.testing import processes
from tests.policy.tools import CELERY, SETTINGS, Project

POLICY = """\
[queues.main]
concurrency = 2

[tasks."shop.tasks.work"]
queue             = "main"
ack               = "late"
guard             = "none"
time_limit_s      = 5
soft_time_limit_s = 2
crash_retries     = {crash_retries}
reason            = "Does what the test wants, as often as it likes."

[tasks."shop.tasks.patient"]
queue         = "main"
ack           = "late"
guard         = "none"
time_limit_s  = 600
crash_retries = {crash_retries}
reason        = "Does what the test wants, as often as it likes."

[tasks."shop.tasks.early"]
queue        = "main"
ack          = "early"
guard        = "lost-ok"
time_limit_s = 600
reason       = "Does what the test wants, and may be lost."
gaps         = ["lost when it is killed"]
"""
TASKS = """\
import os
import signal
import time
from pathlib import Path

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded


def begin(task):
    with open("starts", "a") as file:
        file.write(f"{task.request.id}\\n")


def wait():
    Path(f"child {os.getpid()}").touch()
    while not Path("go on").exists():
        time.sleep(0.02)


def kill_the_child():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_worker():
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)


def run_into_the_hard_limit():
    while True:
        try:
            time.sleep(60)
        except SoftTimeLimitExceeded:
            pass


def exit_from_it():
    raise SystemExit(3)


# Do this in the first run only.
def once(what):
    try:
        Path("was here").touch(exist_ok=False)
    except FileExistsError:
        return
    what()


def exit_from_it_once():
    once(exit_from_it)


def kill_the_child_once():
    once(kill_the_child)


def end_at_the_soft_limit():
    time.sleep(60)


def nothing():
    pass


def do(task, what):
    begin(task)
    if what == "retry" and not task.request.retries:
        raise task.retry(countdown=0)
    globals().get(what, nothing)()


@shared_task(bind=True, name="shop.tasks.work")
def work(self, what="nothing"):
    do(self, what)


@shared_task(bind=True, name="shop.tasks.patient")
def patient(self, what="nothing"):
    do(self, what)


@shared_task(bind=True, name="shop.tasks.early")
def early(self, what="nothing"):
    do(self, what)
"""
RELEASE = """
REDELIVERY_RELEASE = "r7"
"""
SHORT_LEASE = """
from celery.signals import worker_init


@worker_init.connect
def shorten(**kwargs):
    app.conf.broker_transport_options = {{**app.conf.broker_transport_options, "lease_s": {lease_s}}}
"""
PUBLISH = """\
import json
import sys
from shop import celery_app
celery_app.loader.import_default_modules()
for name, what, times in json.loads(sys.argv[1]):
    for _ in range(times):
        print(celery_app.tasks[name].delay(what).id)
"""
WORKER = [
    "-m",
    "celery",
    "-A",
    "shop",
    "worker",
    "--without-gossip",
    "--without-mingle",
    "--loglevel",
    "INFO",
]


class Shop:
    """The project, its Redis and its workers. Everything that was started ends with the test."""

    def __init__(
        self, folder: Path, server, transport: bool = True, crash_retries: int = 3, lease_s: float = 12
    ):
        self.folder, self.server = folder, server
        self.project = Project(folder, POLICY.format(crash_retries=crash_retries), server.port)
        self.project.write("shop/settings.py", SETTINGS + f"REDELIVERY_TRANSPORT = {transport}" + RELEASE)
        self.project.write("shop/celery.py", CELERY + SHORT_LEASE.format(lease_s=lease_s))
        self.project.write("shop/tasks.py", TASKS)
        self.workers: list[subprocess.Popen] = []
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *arguments: str) -> str:
        """Run a command of the project and return what it prints."""
        done = self.project.run("manage.py", *arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start_worker(self, *more: str) -> subprocess.Popen:
        """Start a worker in a process group of its own."""
        name = f"w{len(self.workers)}@here"
        with (self.folder / "log").open("a") as log:
            process = processes.start(
                [sys.executable, *WORKER, "--hostname", name, *more],
                cwd=self.folder,
                env=self.project.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.workers.append(process)
        return process

    @contextmanager
    def worker(self, *more: str):
        """Run a worker for the body."""
        process = self.start_worker(*more)
        try:
            yield process
        finally:
            processes.stop(process, 30)

    def keep_a_worker(self) -> subprocess.Popen:
        """Start another worker if the last one is dead."""
        if not self.workers or self.workers[-1].poll() is not None:
            self.start_worker()
        return self.workers[-1]

    def end(self) -> None:
        """End every worker."""
        for process in self.workers:
            processes.kill_group(process)
            process.wait()

    def shell(self, code: str) -> str:
        """Run code in a process of the project; returns what it prints."""
        done = self.project.run("-c", f"from shop import celery_app; import django; django.setup(); {code}")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def revoke(self, task_id: str) -> None:
        """Have a task revoked and its process ended."""
        self.shell(f"celery_app.control.revoke({task_id!r}, terminate=True)")

    def publish(self, *calls: tuple) -> list[str]:
        """Publish (task, what, how often) each; returns the ids."""
        calls = [[f"shop.tasks.{task}", what, *(times or [1])] for task, what, *times in calls]
        done = self.project.run("-c", PUBLISH, json.dumps(calls))
        assert done.returncode == 0, done.stdout
        return done.stdout.split()

    def starts(self, task_id: str | None = None) -> int:
        """How often a task was started; without an id, all of them together."""
        file = self.folder / "starts"
        ids = file.read_text().split() if file.exists() else []
        return ids.count(task_id) if task_id else len(ids)

    def children(self) -> list[int]:
        """The pool processes in which a task waits."""
        return [int(file.name.split()[1]) for file in self.folder.glob("child *")]

    def go_on(self) -> None:
        """Let what waits go on."""
        (self.folder / "go on").touch()

    def log(self) -> str:
        """What all workers have logged."""
        return (self.folder / "log").read_text()

    def wait_for(self, true, what: str, seconds: float = 60):
        """Wait for something; the log is shown when it was in vain."""
        try:
            return processes.wait_until(true, seconds, what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log()[-6000:]}") from None

    def rows(self, table: str, *columns: str) -> list[tuple]:
        """Rows of the project's database, in the order in which they came."""
        with closing(sqlite3.connect(self.folder / "db.sqlite3", timeout=20)) as database:
            return list(database.execute(f"SELECT {', '.join(columns)} FROM redelivery_{table} ORDER BY id"))

    def kills(self, *columns: str) -> list[tuple]:
        """The records of kills."""
        return self.rows("kill", *columns)

    def quiet(self) -> bool:
        """Whether no message waits, and none is held."""
        with Redis("127.0.0.1", port=self.server.port) as client:
            return not client.llen("main") and not client.hlen("unacked")

    def left_in_redis(self) -> int:
        """How many records are not in the database yet."""
        with Redis("127.0.0.1", port=self.server.port) as client:
            return client.llen("redelivery.kills") + client.llen("redelivery.parked")

    def template_message(self) -> str:
        """The text of a message as Celery writes it."""
        self.shell("celery_app.send_task('shop.tasks.work', queue='elsewhere')")
        with Redis("127.0.0.1", port=self.server.port) as client:
            return client.rpop("elsewhere").decode()


def terminate(*pids: int) -> None:
    """SIGTERM to processes, as systemd's default stop sends it."""
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
