"""Run several processes side by side in a terminal, print what they say, and leave none of them behind."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial

from redelivery.testing.processes import die_with_parent

LOOK_EVERY_S = 0.1
REMIND_EVERY_S = 5


class Child:
    """One process, in a session of its own: a Ctrl-C in the terminal reaches only its supervisor."""

    def __init__(self, name: str, command: list[str], when_orphaned: signal.Signals):
        self.name = name
        self.status: int | None = None
        self._partial = b""

        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Even a supervisor that is killed leaves nothing behind (on Linux).
            preexec_fn=partial(die_with_parent, os.getpid(), when_orphaned),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.finished = False
        """Whether its output has come to its end."""
        os.set_blocking(self.process.stdout.fileno(), False)

    def read(self) -> list[str] | None:
        """Return the lines it has written since the last time, or None while there is nothing to read."""
        try:
            data = os.read(self.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data:
            self.finished = True
            lines = [self._partial] if self._partial else []
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def has_ended(self) -> bool:
        """Tell whether its main process has ended; what is left of its group then is killed."""
        if self.status is None:
            # Looked at without reaping it: while it is a zombie nobody else can get the number of its group.
            if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self.kill()
            self.status = self.process.wait()
        return True

    def terminate(self) -> None:
        """Ask its main process, and it alone, to stop: a worker then finishes the tasks that it has begun."""
        if self.status is None:
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill its whole group."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class Supervisor:
    """Starts children, prints their lines, and stops all of them when asked to or when one of them ends.

    The first SIGINT, SIGTERM or SIGHUP is a warm stop, the second kills.
    """

    def __init__(self, say: Callable[[str, str], None]):
        """`say(name, line)` prints a line."""
        self._say = say
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._requests = 0
        self._spent = 0
        self.failed = False

    def start(self, name: str, command: list[str], when_orphaned: signal.Signals = signal.SIGKILL) -> Child:
        """Start a process; `when_orphaned` is the signal it gets if this process is killed."""
        child = Child(name, command, when_orphaned)
        self._children.append(child)
        self._selector.register(child.process.stdout, selectors.EVENT_READ, child)
        return child

    def listen(self) -> None:
        """Handle signals from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame) -> None:
        self._requests += 1

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Print lines until something is true; False after so many seconds, a signal, or a child's end."""
        end = time.monotonic() + seconds
        while (
            time.monotonic() < end and not self._requests and not any(c.has_ended() for c in self._children)
        ):
            if ready():
                return True
            self._print()
        return False

    def run(self) -> None:
        """Print lines until a child ends (then `failed` is true) or a signal asks for the end."""
        while not self._requests:
            self._print()
            for child in self._children:
                if child.has_ended():
                    self._drain(child)
                    self._say(
                        "run",
                        f"{child.name} ended by itself ({describe(child.status)}): stopping the others.",
                    )
                    self.failed = True
                    return

    def stop(self, children: list[Child]) -> None:
        """Stop children warmly and wait for them, saying for whom; a second signal kills them."""
        waiting = [child for child in children if not child.has_ended()]
        if not waiting:
            return
        # The first signal has led here, however many have come since; what has killed before kills nobody else.
        asked = max(min(self._requests, 1), self._spent)
        for child in waiting:
            child.terminate()
        self._say("run", f"stopping {names(waiting)}; Ctrl-C now kills")
        begun = reminded = time.monotonic()
        while waiting:
            self._print()
            if self._requests > asked:
                self._say("run", f"killing {names(waiting)}")
                asked = self._spent = self._requests
                for child in waiting:
                    child.kill()
            if time.monotonic() - reminded > REMIND_EVERY_S:
                reminded = time.monotonic()
                self._say("run", f"waiting for {names(waiting)} since {reminded - begun:.0f} s")
            waiting = [child for child in waiting if not child.has_ended()]
        for child in children:
            self._drain(child)

    def kill_all(self) -> None:
        """Kill whatever is left; the last thing to do, whatever happened before."""
        for child in self._children:
            child.kill()
            child.process.wait()

    def _print(self) -> None:
        for key, _ in self._selector.select(LOOK_EVERY_S):
            child = key.data
            if not child.finished:
                for line in child.read() or ():
                    self._say(child.name, line)
            if child.finished:
                self._selector.unregister(key.fileobj)

    def _drain(self, child: Child) -> None:
        while not child.finished and (lines := child.read()) is not None:
            for line in lines:
                self._say(child.name, line)


def names(children: list[Child]) -> str:
    """Name children for a message: "web, worker and beat"."""
    *first, last = [child.name for child in children]
    return f"{', '.join(first)} and {last}" if first else last


def describe(status: int) -> str:
    """Say how a process ended, from its return code."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
