"""A broker that is away as a task retries or ends: the task waits, and its message is never dropped."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError, OperationalError
from redis import Redis

from redelivery import retry
from redelivery.testing import processes
from redelivery.testing.servers import redis_server
from tests.policy.test_processes import WORKER
from tests.policy.tools import SETTINGS, Project

TASKS = """\
import time
from pathlib import Path

from celery import shared_task

from redelivery import retry

retry.PATIENCE_S = {patience_s}


@shared_task(bind=True, {options})
def mail(self):
    if Path("sent").exists():
        return
    Path("begun").touch()
    while not Path("go on").exists():
        time.sleep(0.01)
    Path("sent").touch()
    try:
        raise OSError("not yet")
    except OSError as error:
        {then}


@shared_task
def count():
    Path("counted").touch()
"""
TIMEOUTS = """
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_timeout": 1, "socket_connect_timeout": 1, "max_retries": 1}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_max": 0.1}
"""
PUBLISH = """\
import sys
from shop import celery_app
celery_app.loader.import_default_modules()
celery_app.tasks[sys.argv[1]].delay()
"""
BY_HAND = {"options": "default_retry_delay=1", "then": "raise self.retry(exc=error)"}
AUTOMATIC = {"options": "autoretry_for=(OSError,), default_retry_delay=1", "then": "raise"}
NOT_AT_ALL = {"options": "", "then": "pass"}


class Shop:
    """A project with a worker of one process, whose one task has begun and waits to go on."""

    def __init__(self, folder, server, **task):
        self.folder, self.server = folder, server
        self.project = Project(folder, port=server.port)
        self.project.write("shop/settings.py", SETTINGS + TIMEOUTS)
        self.project.write("shop/tasks.py", TASKS.format(**task))

    def set(self, line):
        """Add a line to the settings."""
        self.project.write("shop/settings.py", SETTINGS + TIMEOUTS + line)

    @contextmanager
    def worker(self):
        command = [sys.executable, *WORKER, "--concurrency", "1", "--loglevel", "INFO"]
        with (self.folder / "log").open("w") as log:
            process = processes.start(
                command,
                cwd=self.folder,
                env=self.project.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.publish("shop.tasks.mail")
            self.wait_for_file("begun")
            yield
        finally:
            processes.stop(process, 30)

    def publish(self, task):
        assert self.project.run("-c", PUBLISH, task).returncode == 0

    @contextmanager
    def redis_away(self, way="paused"):
        """Let the task go on while Redis takes nothing, until the body has seen enough."""
        with Redis("127.0.0.1", port=self.server.port) as client:
            if way == "paused":
                self.server.process.send_signal(signal.SIGSTOP)
            else:
                client.config_set("maxmemory", 1)
            (self.folder / "go on").touch()
            try:
                yield
            finally:
                self.server.process.send_signal(signal.SIGCONT)
                client.config_set("maxmemory", 0)

    def wait_for_file(self, name):
        processes.wait_until((self.folder / name).exists, 30, f"the file {name!r}")

    def wait_for(self, text):
        processes.wait_until(lambda: text in (self.folder / "log").read_text(), 30, f"{text!r} in the log")


@pytest.fixture
def shop(tmp_path):
    """Make a `Shop`."""
    with redis_server() as server:
        yield lambda **task: Shop(tmp_path, server, **task)


@pytest.mark.parametrize(
    ("way", "call"), [("paused", BY_HAND), ("full", AUTOMATIC)], ids=["paused, by hand", "full, automatic"]
)
def test_retry_waits_for_a_broker_that_comes_back(shop, way, call):
    shop = shop(patience_s=30, **call)
    with shop.worker():
        with shop.redis_away(way):
            shop.wait_for("waits for the broker")
        shop.wait_for("will be retried")
        shop.wait_for("finished")


@pytest.mark.parametrize("call", [BY_HAND, AUTOMATIC], ids=["by hand", "automatic"])
def test_retry_that_cannot_be_published_gives_the_message_back(shop, call):
    shop = shop(patience_s=0, **call)
    with shop.worker():
        with shop.redis_away():
            shop.wait_for("its message is given back")
        shop.wait_for("redelivered=yes delivery=2 finished")


SETTLED = pytest.mark.parametrize(
    ("way", "call", "what"),
    [("paused", NOT_AT_ALL, "ack"), ("full", BY_HAND, "reject")],
    ids=["acknowledged, paused", "given back, full"],
)


@SETTLED
def test_worker_goes_on_when_a_message_cannot_be_settled(shop, way, call, what):
    """Its one process is free again, and the message is kept."""
    shop = shop(patience_s=0, **call)
    shop.set("REDELIVERY_TRANSPORT = False")
    with shop.worker():
        with shop.redis_away(way):
            shop.wait_for(f"the broker did not take its {what}")
        shop.publish("shop.tasks.count")
        shop.wait_for_file("counted")
        if what == "reject":
            assert Redis("127.0.0.1", port=shop.server.port).hlen("unacked") == 1


@SETTLED
def test_what_cannot_be_settled_is_settled_later(shop, way, call, what):
    """With leases: nothing stays held, and a message that is given back runs again."""
    shop = shop(patience_s=0, **call)
    with shop.worker():
        with shop.redis_away(way):
            shop.wait_for("finished" if what == "ack" else "its message is given back")
            # A full Valkey takes what is given back, and a full Redis does not (measured).
            if way == "paused":
                shop.wait_for("Redis does not take")
        shop.wait_for(
            f"{'redelivered=no delivery=1' if what == 'ack' else 'redelivered=yes delivery=2'} finished"
        )
        client = Redis("127.0.0.1", port=shop.server.port)
        processes.wait_until(lambda: not client.exists("unacked"), 30, "everything to be settled")


class Attempts:
    """A `Task.retry` that fails with what Celery raises for each of these reasons, and then succeeds."""

    def __init__(self, *reasons):
        self.reasons = list(reasons)

    def __call__(self, task):
        if self.reasons:
            raise Reject(self.reasons.pop(0), requeue=False)
        return "published"


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that are made, in seconds; none of them takes any time."""
    made = []
    clock = SimpleNamespace(monotonic=lambda: sum(made), sleep=made.append)
    monkeypatch.setattr(retry, "time", clock)
    return made


TASK = SimpleNamespace(request=None)
BROKER = OperationalError("connection refused")


def test_pauses_grow(pauses):
    assert retry.around(Attempts(*[BROKER] * 3))(TASK) == "published"
    assert pauses == [0.5, 1, 2]


def test_patience_ends(pauses):
    with pytest.raises(Reject) as caught:
        retry.around(Attempts(*[BROKER] * 99))(TASK)
    assert (caught.value.reason, caught.value.requeue, sum(pauses)) == (BROKER, True, retry.PATIENCE_S)


@pytest.mark.parametrize("reason", [EncodeError("no JSON"), TypeError("no such argument")], ids=repr)
def test_what_would_fail_for_ever_is_left_to_celery(pauses, reason):
    with pytest.raises(Reject) as caught:
        retry.around(Attempts(reason))(TASK)
    assert (caught.value.requeue, pauses) == (False, [])


def test_soft_limit_while_it_publishes(pauses):
    with pytest.raises(Reject) as caught:
        retry.around(Attempts(SoftTimeLimitExceeded()))(TASK)
    assert (caught.value.requeue, pauses) == (True, [])


def test_soft_limit_while_it_waits(monkeypatch):
    def interrupted(seconds):
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(retry.time, "sleep", interrupted)
    with pytest.raises(Reject) as caught:
        retry.around(Attempts(BROKER))(TASK)
    assert caught.value.requeue


def test_only_late_ack_tasks_have_something_to_give_back(policy_app):
    app = policy_app()
    assert app.tasks["shop.tasks.mail"].retry.__wrapped__
    assert not hasattr(app.tasks["shop.tasks.count"].retry, "__wrapped__")


def test_annotation_of_the_project_is_kept(policy_app, pauses):
    def own(method):
        return lambda self, *args, **options: attempts(self)

    attempts = Attempts(BROKER)
    task = policy_app(CELERY_TASK_ANNOTATIONS={"shop.tasks.mail": {"@retry": own}}).tasks["shop.tasks.mail"]
    assert (task.retry(), pauses) == ("published", [0.5])
