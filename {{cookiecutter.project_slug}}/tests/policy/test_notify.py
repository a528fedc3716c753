"""What systemd hears of a worker and of beat, on a socket that stands for systemd's."""

import os
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from redelivery import notify
from redelivery.testing import processes
from redelivery.testing.servers import RedisServer
from tests.policy.test_broker_away import PUBLISH
from tests.policy.test_processes import WORKER
from tests.policy.tools import Project

TASKS = """\
import os, time
from pathlib import Path

from celery import shared_task


@shared_task
def mail():
    Path("environment").write_text(" ".join(os.environ))
    Path("begun").touch()
    while not Path("go on").exists():
        time.sleep(0.01)


@shared_task
def count(): ...
"""


class Systemd:
    """Listens where a unit would tell systemd; ``said`` is all of it."""

    def __init__(self, address: str):
        self.address, self.said = address, ""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)

    def hears(self, text: str) -> bool:
        """Whether somebody has said this."""
        while True:
            try:
                self.said += self.socket.recv(4096).decode() + "\n"
            except BlockingIOError:
                return text in self.said

    def wait_for(self, text: str) -> None:
        """Wait until somebody says this."""
        processes.wait_until(
            lambda: self.hears(text), 60, f"{text!r} at systemd, which has heard: {self.said}"
        )


@pytest.fixture(params=["path", "abstract"])
def systemd(request, tmp_path):
    """A socket in the file system, or (with a leading @) in the abstract namespace, as systemd may choose."""
    systemd = Systemd(
        f"@{tmp_path.name}-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    )
    yield systemd
    systemd.socket.close()


@contextmanager
def started(project: Project, systemd: Systemd, *command: str):
    """Start a process as systemd would, with a watchdog of 9 s."""
    environment = {**project.environment, "NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "9000000"}
    with (project.folder / "log").open("w") as log:
        process = processes.start(
            [sys.executable, *command], cwd=project.folder, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        processes.stop(process, 30)


@contextmanager
def serving(server: RedisServer):
    """Run a Redis server."""
    server.start()
    try:
        yield
    finally:
        server.stop()


def test_worker_is_ready_when_it_consumes_and_says_what_it_drains(tmp_path, systemd):
    port = processes.free_port()
    project = Project(tmp_path, port=port)
    project.write("shop/tasks.py", TASKS)
    with started(project, systemd, *WORKER, "--loglevel", "INFO") as worker:
        systemd.wait_for("STATUS=starting")
        processes.wait_until(lambda: "Trying again" in (tmp_path / "log").read_text(), 60, "a try to connect")
        assert not systemd.hears("READY=1")
        with serving(RedisServer(port, None)):
            systemd.wait_for("READY=1\nSTATUS=consuming main: no task")
            assert project.run("-c", PUBLISH, "shop.tasks.mail").returncode == 0
            processes.wait_until((tmp_path / "begun").exists, 30, "the task")
            assert "NOTIFY_SOCKET" not in (tmp_path / "environment").read_text().split()
            systemd.wait_for("STATUS=consuming main: 1 task, longest")
            worker.send_signal(signal.SIGTERM)
            systemd.wait_for("STOPPING=1\nSTATUS=draining: 1 task, longest")
            (tmp_path / "go on").touch()
            worker.wait(30)
            log = (tmp_path / "log").read_text()
            assert "draining: 1 running, 0 returned" in log
            assert "drained in " in log


def test_beat_is_ready_when_it_has_its_schedule(tmp_path):
    systemd = Systemd(str(tmp_path / "notify"))
    with started(Project(tmp_path), systemd, "-m", "celery", "-A", "shop", "beat", "--pidfile="):
        systemd.wait_for("READY=1")


class TestWatchdog:
    """It is fed while the main process moves or drains, and left alone when it has stood still for long."""

    @pytest.fixture
    def notifier(self, monkeypatch):
        """A notifier whose clock the test sets."""
        self.now = 0.0
        monkeypatch.setattr(notify, "monotonic", lambda: self.now)
        notifier = notify.Notifier("", 30)
        notifier.consumer = SimpleNamespace(restart_count=0, broker_connection_retry_attempt=0)
        return notifier

    def test_stands_still(self, notifier):
        notifier._tick()
        assert notifier.alive()
        self.now = notify.STILL_S - 1
        assert notifier.alive()
        self.now = notify.STILL_S + 1
        assert not notifier.alive()

    @pytest.mark.parametrize("moves", ["_tick", "restart_count", "broker_connection_retry_attempt"])
    def test_moves(self, notifier, moves):
        """The event loop turns, or the consumer restarts, or it tries again to connect."""
        for self.now in range(0, 600, 50):
            if moves == "_tick":
                notifier._tick()
            else:
                setattr(notifier.consumer, moves, getattr(notifier.consumer, moves) + 1)
            assert notifier.alive()

    def test_drains(self, notifier):
        """The stop timeout of the unit ends a drain, not the watchdog."""
        notifier.draining()
        self.now = 10_000
        assert notifier.alive()

    def test_interval_is_a_third_at_most(self):
        assert notify.Notifier("", 3).pause_s == 1
        assert notify.Notifier("", 300).pause_s == notify.LOOK_EVERY_S


def test_systemd_that_does_not_listen_is_no_error(tmp_path, caplog):
    notify.Notifier(str(Path(tmp_path) / "nobody"), 0).send(READY=1)
    assert "systemd was not told" in caplog.text
