"""Forked children that run a task and report through a pipe: one that may be killed, and one that delivers many.

The process that forks must have no threads: a fork copies only the one that forks.
"""

import gc
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import ClassVar

from redelivery.testing.processes import adopt_orphans, die_with_parent, own_children, reap_orphans

Report = Callable[[dict], None]


class Child:
    """A forked child that runs `body(report)` and reports what that returns; `reports` are all its reports so far,
    `states` those that say how it ended or stopped.

    A body that raises reports `{"state": "BROKEN"}`. The child touches as little memory as it can, because each page is
    copied when it is touched (measured: two thirds of the time of a kill). What it prints goes to stderr.
    """

    living: ClassVar[set[int]] = set()

    def __init__(self, body: Callable[[Report], dict]):
        adopt_orphans()
        self.known = own_children()
        self.reports: list[dict] = []
        self.states: list[dict] = []
        self.closed = False
        self._partial = b""
        self._pipe, writing = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            self.living.add(self.pid)
            return
        try:
            os.close(self._pipe)
            die_with_parent(parent)
            os.dup2(2, 1)
            gc.disable()

            def report(what: dict) -> None:
                os.write(writing, json.dumps(what).encode() + b"\n")

            report(body(report))
        except BaseException:
            report({"state": "BROKEN", "error": traceback.format_exc()})
        finally:
            os._exit(0)

    def read(self, seconds: float) -> bool:
        """Take in what it reported; return whether anything came, its end included, within so many seconds."""
        ready, _, _ = select.select([self._pipe], [], [], max(0, seconds))
        if ready:
            part = os.read(self._pipe, 1 << 16)
            *lines, self._partial = (self._partial + part).split(b"\n")
            reports = [json.loads(line) for line in lines]
            self.reports += reports
            self.states += [report for report in reports if "state" in report]
            self.closed = not part
        return bool(ready)

    def read_until(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Take in reports until there are enough or it has ended; return False if neither comes in so many seconds."""
        deadline = time.monotonic() + seconds
        while not (self.closed or enough()):
            if not self.read(deadline - time.monotonic()):
                return False
        return True

    def end(self, grace: float = 0) -> None:
        """Kill it if it still runs, and reap it; what it started has so many seconds to end by itself."""
        os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        os.close(self._pipe)
        os.waitpid(self.pid, 0)
        self.living.discard(self.pid)
        reap_orphans(self.known | self.living, grace)


class Runner:
    """A child that answers one question after another, as a worker's pool process runs one message after another.

    Forking for each delivery would double the time of a crash map. `before_fork` is called before the child is forked:
    at the first question, and at the next one after it has ended.
    """

    def __init__(self, answer: Callable[[dict], dict], before_fork: Callable[[], None] = lambda: None):
        self._answer = answer
        self._before_fork = before_fork
        self._child: Child | None = None

    def ask(self, question: dict, seconds: float) -> dict | None:
        """Return the answer to a question; None when it takes longer. A child that dies answers `{"state": "DIED"}`.

        An answer with a true `last` ends the child.
        """
        if self._child is None:
            self._start()
        child, answered = self._child, len(self._child.reports)
        try:
            os.write(self._questions, json.dumps(question).encode() + b"\n")
        except BrokenPipeError:  # it has died since its last answer
            self.stop()
            return self.ask(question, seconds)
        in_time = child.read_until(lambda: len(child.reports) > answered, seconds)
        answer = child.reports[answered] if len(child.reports) > answered else None
        if answer is None or answer.get("last"):
            self.stop()
        return answer or ({"state": "DIED"} if in_time else None)

    def stop(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            os.close(self._questions)
            self._child = None

    def _start(self) -> None:
        self._before_fork()
        reading, self._questions = os.pipe()
        self._child = Child(lambda report: self._serve(reading, report))
        os.close(reading)

    def _serve(self, reading: int, report: Report) -> dict:
        os.close(self._questions)
        gc.enable()
        with os.fdopen(reading) as questions:
            for question in questions:
                report(self._answer(json.loads(question)))
        return {"state": "ENDED"}
