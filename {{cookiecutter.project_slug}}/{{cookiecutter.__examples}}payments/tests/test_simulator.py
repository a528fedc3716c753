"""The simulated provider as a program, and how `make run` finds out whether it is needed."""

import http.client
import json
import select
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from payments.providers import development
from payments.testing import PROGRAM, Simulator
from redelivery.testing import processes
from redelivery.testing.processes import free_port, wait_until


@pytest.fixture
def simulator(tmp_path):
    """One whose books lie in a path with a space."""
    (folder := tmp_path / "the books").mkdir()
    running = Simulator(folder)
    running.start()
    yield running
    running.stop()


def program(*arguments) -> tuple[int, str]:
    """Run the program to its end; return its exit status and what it said."""
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def charge(port: int, amount: int) -> tuple[int, dict]:
    """Ask for money with one key."""
    response = asked(port, amount).getresponse()
    return response.status, json.loads(response.read())


def asked(port: int, amount: int) -> http.client.HTTPConnection:
    """Ask for money with one key, and return the connection on which the answer would come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/charges", json.dumps({"amount": amount}), {"Idempotency-Key": "k"})
    return connection


def test_knows_its_charges_again_after_a_restart(simulator):
    first = charge(simulator.port, 100)[1]
    simulator.stop()
    command = [sys.executable, str(PROGRAM), str(simulator.port), str(simulator.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as again:
        assert "the books" in again.stdout.readline()
        assert charge(simulator.port, 100) == (200, {**first, "replayed": True})
        assert charge(simulator.port, 101) == (400, {"error": "key was used with another body"})
        again.terminate()
    assert len(simulator.charges()) == 1


def test_slow_one_charges_when_the_sender_has_gone(simulator):
    """However long that waits: a slow answer is never one that just came in time."""
    simulator.behave("slow", slow_s=0)
    connection = asked(simulator.port, 100)
    wait_until(simulator.calls, 30, "the call")
    assert select.select([connection.sock], [], [], 0.5)[0] == [] and simulator.charges() == []
    connection.close()
    wait_until(simulator.charges, 30, "the charge")


def test_kills_before_it_answers(simulator):
    """A sender that got its answer could write it down before it dies."""
    sender = processes.start(["sleep", "60"])
    try:
        simulator.behave("accept", kill=sender.pid, hold=True)
        with closing(asked(simulator.port, 100)) as connection:
            assert sender.wait(30) == -signal.SIGKILL and len(simulator.charges()) == 1
            assert select.select([connection.sock], [], [], 0)[0] == []
    finally:
        processes.stop(sender)


class TestRefusals:
    """One sentence, and no traceback."""

    def test_port_that_is_taken(self, simulator, tmp_path):
        status, said = program(simulator.port, tmp_path / "other")
        assert status == 1 and said.startswith(
            f"The simulated provider cannot listen on port {simulator.port} of"
        )
        assert said.count("\n") == 1

    def test_books_that_cannot_be_written(self, tmp_path):
        (tmp_path / "ledger.jsonl").mkdir()
        status, said = program(free_port(), tmp_path)
        assert status == 1 and said.startswith(f"The simulated provider cannot use its books in {tmp_path}: ")
        assert said.count("\n") == 1

    def test_books_that_are_none(self, tmp_path):
        (tmp_path / "ledger.jsonl").write_text("half a li")
        assert program(free_port(), tmp_path)[0] == 1

    @pytest.mark.parametrize("arguments", [(), ("http", "x"), ("99999999", "x"), ("1", "x", "y")])
    def test_arguments(self, arguments, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        status, said = program(*arguments)
        assert status in (1, 2) and said.count("\n") == 1


class TestBesideMakeRun:
    """Started only if the simulated one is asked for, here, and not there yet."""

    @pytest.fixture(autouse=True)
    def simulated(self, monkeypatch):
        monkeypatch.setenv("PAYMENT_PROVIDER", "simulated")
        monkeypatch.setenv("PAYMENT_TIMEOUT_S", "5")

    def test_started(self, tmp_path, monkeypatch):
        port = free_port()
        monkeypatch.setenv("PAYMENT_SIMULATOR_URL", f"http://127.0.0.1:{port}")
        books = tmp_path / f"provider-{port}"
        assert development.command(tmp_path) == [sys.executable, str(PROGRAM), str(port), str(books)]
        assert books.is_dir()

    def test_there_already(self, simulator, tmp_path, monkeypatch):
        monkeypatch.setenv("PAYMENT_SIMULATOR_URL", simulator.url)
        assert development.command(tmp_path) is None

    def test_elsewhere(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PAYMENT_SIMULATOR_URL", "http://example.com:8899")
        assert development.command(tmp_path) is None

    def test_another_provider(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PAYMENT_PROVIDER", "stripe")
        monkeypatch.setenv("STRIPE_API_KEY", "sk_test_1")
        assert development.command(tmp_path) is None
