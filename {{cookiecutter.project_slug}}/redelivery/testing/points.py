"""Stop a running task before one opcode of project code: the eyes of the crash map.

Lines are too coarse: `if send(): put_marker()` hides its gap from every kill between lines, so each opcode is a point.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redelivery.testing.threads import Turns

# Of the redelivery app itself only the marker takes part in a task; the rest configures, watches or tests it.
_REDELIVERY = f"{Path(__file__).resolve().parents[1]}/"
_MARKER = f"{_REDELIVERY}marker.py"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Point:
    """A place before one opcode: how many opcodes of project code ran before it, in which thread, and where it stands.

    `returned` says whether the task itself had returned, so that only a thread which it left behind was running; `run`
    is the number of the delivery: a task that retries has more than one.
    """

    index: int
    thread: str
    file: str
    function: str
    line: int
    returned: bool = False
    run: int = 0

    @property
    def where(self) -> str:
        """Say it as `file:line in function`."""
        return f"{self.file}:{self.line} in {self.function}"


class Tracer:
    """Once started, calls `reached(point)` before every opcode of project code in this thread and those that it starts.

    Project code is what lies under `root` and is not an installed library. Threads run project code one at a time (see
    `Turns`), so that the opcodes have one order.
    """

    def __init__(self, root: Path):
        self.root = f"{root.resolve()}/"
        self.reached: Callable[[Point], None] | None = None
        self.turns = Turns()
        self.count = 0
        self.returned = False
        self.names: dict[threading.Thread, str] = {}
        self.relative: dict[str, str | None] = {}

    def learn(self) -> None:
        """Decide now for every module that is loaded: a forked child would have to decide anew each time."""
        for module in list(sys.modules.values()):
            if isinstance(name := getattr(module, "__file__", None), str):
                self.relative[name] = self.path_in_project(name)

    def start(self, reached: Callable[[Point], None]) -> None:
        """Trace what this thread calls from now on, and every thread started from now on."""
        self.reached = reached
        self.turns = Turns()
        self.count = 0
        self.returned = False
        self.names = {}
        os.register_at_fork(after_in_child=self.stop)  # a process that the task forks is not the task
        on_call = self.call_tracer()
        threading.settrace(on_call)
        sys.settrace(on_call)

    def stop(self) -> None:
        """Stop tracing in this thread and for new ones."""
        sys.settrace(None)
        threading.settrace(None)

    def call_tracer(self) -> Callable:
        """Return the function that decides, as sys.settrace wants it, whether to look into a new frame.

        It is called for each function that runs, so every name that it uses is a local one.
        """
        relative, on_event, path_in_project = self.relative, self.on_event, self.path_in_project

        def on_call(frame, event, arg):
            name = frame.f_code.co_filename
            try:
                inside = relative[name]
            except KeyError:
                inside = relative[name] = path_in_project(name)
            if inside is None:
                return None
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
            return on_event

        return on_call

    def on_event(self, frame, event, arg):
        """Count an opcode, when it is this thread's turn."""
        if event == "opcode":
            self.turns.take()
            index = self.count
            self.count += 1
            code = frame.f_code
            self.reached(
                Point(
                    index,
                    self.thread_name(),
                    self.relative[code.co_filename],
                    code.co_qualname,
                    frame.f_lineno or code.co_firstlineno,
                    self.returned,
                )
            )
        return self.on_event

    def thread_name(self) -> str:
        """Return the calling thread's name, with a number where another thread had it first."""
        thread = threading.current_thread()
        if thread not in self.names:
            same = sum(other.name == thread.name for other in self.names)
            self.names[thread] = f"{thread.name} ({same + 1})" if same else thread.name
        return self.names[thread]

    def path_in_project(self, name: str) -> str | None:
        """Return the path of a source file under the root; None for what is not project code."""
        if not os.path.isabs(name):
            return None  # `<string>`, `<frozen ...>`
        real = os.path.realpath(name)
        library = real.startswith(_LIBRARIES) or "/site-packages/" in real or "/dist-packages/" in real
        own = real.startswith(_REDELIVERY) and real != _MARKER
        return real.removeprefix(self.root) if real.startswith(self.root) and not (library or own) else None
