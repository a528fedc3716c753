"""`manage.py run`: everything starts, and nothing is left behind, however it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from django.conf import settings

from redelivery.testing.processes import free_port, stat_fields, wait_until
from service import own
from service.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for left-over processes in /proc")
needs_examples = pytest.mark.skipif("onboarding" not in own.APPS, reason="needs the worked examples")


class Run:
    """A `manage.py run` on ports and files of its own."""

    def __init__(self, folder: Path, port: int | None = None, **variables: str):
        self.mark = f"RUN_TEST={uuid.uuid4()}"
        self.folder = folder
        self.port = port or free_port()
        self.log = folder / f"log-{self.mark[-8:]}"
        self.redis_port = free_port()
        redis = f"redis://127.0.0.1:{self.redis_port}"
        environment = {
            **os.environ,
            "DEBUG": "true",
            "SECRET_KEY": "only for this test",
            "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
            "BROKER_URL": f"{redis}/0",
            "CACHE_URL": f"{redis}/1",
            "PAYMENT_SIMULATOR_URL": f"http://127.0.0.1:{free_port()}",
            "RUN_TEST": self.mark.removeprefix("RUN_TEST="),
            **variables,
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "run", str(self.port), "--state", str(folder / "state")],
                cwd=settings.BASE_DIR,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.log.read_text()

    def processes(self) -> dict[int, str]:
        """Return pid and command line of every process that this run has started and that still lives.

        They have its mark in their environment. Redis writes over that, but it works in a folder of this run.
        """
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = self.mark.encode() in (entry / "environ").read_bytes()
                if marked or (entry / "cwd").readlink().is_relative_to(self.folder):
                    command = (entry / "cmdline").read_bytes()
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode()
        return found

    def kill(self, name: str) -> None:
        """SIGKILL the main process of the worker or of Redis (which shows its address as its command)."""
        word = {"worker": " worker ", "redis": f":{self.redis_port}"}[name]
        found = [pid for pid, command in self.processes().items() if word in command]
        [main] = [pid for pid in found if int(stat_fields(pid)[1]) == self.process.pid]
        os.kill(main, signal.SIGKILL)

    def open(self, path: str, opener=urllib.request, **data: str):
        body = urllib.parse.urlencode(data).encode() if data else None
        return opener.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=5)

    def wait_ready(self) -> None:
        """Wait until all servers answer and the worker is ready."""

        def ready() -> bool:
            assert self.process.poll() is None, self.text()
            try:
                return json.load(self.open("/healthz"))["status"] == "ok" and " ready." in self.text()
            except (OSError, urllib.error.URLError):
                return False

        wait_until(ready, 60, "web and worker")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(tmp_path):
    """Start runs, and end them whatever happens."""
    started = []

    def start(**options) -> Run:
        started.append(Run(tmp_path, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def sign_up(one: Run) -> None:
    """Sign up as a browser does."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    browser.urlopen = browser.open
    page = one.open("/signup/", browser).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[1]
    one.open("/signup/", browser, csrfmiddlewaretoken=token, name="Zoë", email="zoe@example.org")


def test_starts_everything_and_one_ctrl_c_stops_it(run):
    one = run()
    one.wait_ready()
    one.interrupt()
    assert one.process.wait(60) == 0
    assert one.processes() == {}
    for name in ("web", "worker", "beat", "run", *own.DEVELOPMENT):
        assert re.search(rf"^{name} *\| ", one.text(), re.MULTILINE)
    assert "stopping web, worker and beat" in one.text()


@pytest.mark.parametrize("victim", ["worker", "redis"])
def test_when_one_dies_the_others_are_stopped(run, victim):
    one = run()
    one.wait_ready()
    one.kill(victim)
    assert one.process.wait(60) == 1
    assert one.processes() == {}
    assert "ended by itself (killed by SIGKILL)" in one.text()


def test_killed_itself_it_leaves_nothing_behind(run):
    one = run()
    one.wait_ready()
    one.process.kill()
    wait_until(lambda: not one.processes(), 10, "the end of all processes")


def test_web_port_that_is_taken_ends_it(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        one = run(port=taken.getsockname()[1])
        assert one.process.wait(60) == 1
    assert "web ended by itself (exit status 1)" in one.text()
    assert one.processes() == {}


@pytest.mark.skipif("payments" not in own.APPS, reason="needs the worked examples")
def test_port_of_the_provider_that_is_taken_by_something_else_ends_it(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one = run(PAYMENT_SIMULATOR_URL=f"http://127.0.0.1:{port}", PAYMENT_TIMEOUT_S="0.5")
        assert one.process.wait(60) == 1
    assert (
        f"CommandError: PAYMENT_SIMULATOR_URL names port {port}, where something answers that is no"
        in one.text()
    )
    assert one.processes() == {}


def test_refuses_production(run):
    one = run(DEBUG="false", SECRET_KEY="0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert one.process.wait(30) == 1
    assert "for development" in one.text()
    assert "Traceback" not in one.text()


@pytest.mark.parametrize("port", ["99999999", "0", "http", "localhost:"])
def test_refuses_a_port_that_is_none(run, port):
    """One sentence, and nothing is started: runserver's reloader would outlive its server."""
    one = run(port=port)
    assert one.process.wait(30) == 1
    assert one.text() == f"CommandError: {port!r} is no [address:]port with a port from 1 to 65535.\n"


def test_refuses_a_second_one_beside_the_first(run):
    """They would share a Redis and a beat's schedule; what is asked to run elsewhere may."""
    first = run()
    first.wait_ready()
    second = run()
    assert second.process.wait(30) == 1
    assert second.text().startswith("CommandError: another `run` is at work in")
    assert first.process.poll() is None


@needs_examples
def test_ctrl_c_waits_for_a_task_and_says_so(run, mail_server):
    mail_server.forget()
    mail_server.behave(data="sleep 8")
    one = run(EMAIL_URL=f"smtp://127.0.0.1:{mail_server.port}")
    one.wait_ready()
    sign_up(one)
    wait_until(mail_server.events, 10, "the mail")
    one.interrupt()
    assert one.process.wait(60) == 0
    assert re.search(r"the worker finishes onboarding.tasks.send_welcome_email\[", one.text())
    assert re.search(r"^worker \|.*finished", one.text(), re.MULTILINE)
    assert one.processes() == {}
    mail_server.behave()


def test_supervisor_that_was_killed_before_its_child_began(monkeypatch):
    """The child sees another parent than the one that it was made for, and ends."""
    supervisor = Supervisor(lambda name, line: None)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    child = supervisor.start("worker", ["sleep", "60"])
    try:
        wait_until(child.has_ended, 30, "its end")
        assert child.status == -signal.SIGKILL
    finally:
        supervisor.kill_all()


def test_second_ctrl_c_kills_although_it_comes_before_the_stop_begins():
    """Between the first one and the stop the supervisor asks the worker what it runs."""
    said = []
    supervisor = Supervisor(lambda name, line: said.append(line))
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    child = supervisor.start("worker", [sys.executable, "-c", deaf])
    try:
        assert supervisor.wait_until(lambda: "deaf" in said, 30)
        supervisor._on_signal(signal.SIGINT, None)
        supervisor._on_signal(signal.SIGINT, None)
        supervisor.stop([child])
    finally:
        supervisor.kill_all()
    assert "killing worker" in said and child.status == -signal.SIGKILL


@needs_examples
def test_second_ctrl_c_kills(run, mail_server):
    mail_server.forget()
    mail_server.behave(data="hold")
    one = run(EMAIL_URL=f"smtp://127.0.0.1:{mail_server.port}", EMAIL_TIMEOUT="50")
    one.wait_ready()
    sign_up(one)
    wait_until(mail_server.events, 10, "the mail")
    one.interrupt()
    wait_until(lambda: "stopping web" in one.text(), 10, "the warm stop")
    time.sleep(1)
    assert one.process.poll() is None
    one.interrupt()
    one.process.wait(10)
    assert "killing worker" in one.text()
    assert one.processes() == {}
    mail_server.behave()
