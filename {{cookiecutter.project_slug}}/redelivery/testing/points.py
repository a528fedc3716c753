"""Stop a running task before one opcode of project code: the eyes of the crash map.

Lines are too coarse: `if send(): put_marker()` hides its gap from every kill between lines, so each opcode is a point.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

from redelivery.source import is_installed
from redelivery.testing.threads import Turns

# Of the redelivery app itself only the marker takes part in a task; the rest configures, watches or tests it.
_REDELIVERY = f"{Path(__file__).resolve().parents[1]}/"
_MARKER = f"{_REDELIVERY}marker.py"

# Python 3.12 and newer: with sys.settrace a function's first run has no opcode events there (measured on 3.13.0).
_monitoring = getattr(sys, "monitoring", None)
_TOOL = 4


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
    """Once started, calls `reached(point)` before opcodes of project code in this thread and those that it starts.

    Project code is what lies under `root` and is not an installed library. Threads run project code one at a time (see
    `Turns`), so that the opcodes have one order.
    """

    def __init__(self, root: Path):
        self.root = f"{root.resolve()}/"
        self.reached: Callable[[Point], None] | None = None
        self.turns = Turns()
        self.count = 0
        self.only: int | None = None
        self.returned = False
        self.names: dict[threading.Thread, str] = {}
        self.relative: dict[str, str | None] = {}
        if _monitoring and not _monitoring.get_tool(_TOOL):
            _monitoring.use_tool_id(_TOOL, "redelivery")

    def learn(self) -> None:
        """Look at all code that is loaded now: a forked child would have to do it anew each time.

        To be called before `start`, and again when the task has had modules imported.
        """
        gc.unfreeze()  # frozen objects are not listed
        functions = [one.__code__ for one in gc.get_objects() if type(one) is FunctionType]
        gc.freeze()
        code = [one for one in functions if self.is_project(one.co_filename)]
        while _monitoring and code:
            one = code.pop()
            code += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
            _monitoring.set_local_events(_TOOL, one, _monitoring.events.INSTRUCTION)

    def start(self, reached: Callable[[Point], None], only: int | None = None) -> None:
        """Trace what this thread calls from now on, and every thread started from now on.

        `reached` is called before every opcode, or before the one with the index `only`.
        """
        self.reached, self.only = reached, only
        self.turns = Turns()
        self.count = 0
        self.returned = False
        self.names = {}
        os.register_at_fork(after_in_child=self.stop)  # a process that the task forks is not the task
        if _monitoring:
            _monitoring.register_callback(_TOOL, _monitoring.events.INSTRUCTION, self.on_instruction)
        else:
            on_call = self.call_tracer()
            threading.settrace(on_call)
            sys.settrace(on_call)

    def stop(self) -> None:
        """Stop tracing."""
        if _monitoring:
            _monitoring.register_callback(_TOOL, _monitoring.events.INSTRUCTION, None)
        else:
            sys.settrace(None)
            threading.settrace(None)

    def call_tracer(self) -> Callable:
        """Return the function that decides, as sys.settrace wants it, whether to look into a new frame.

        It is called for each function that runs, so every name that it uses is a local one.
        """
        relative, on_event, is_project = self.relative, self.on_event, self.is_project

        def on_call(frame, event, arg):
            name = frame.f_code.co_filename
            if not (relative[name] if name in relative else is_project(name)):
                return None
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
            return on_event

        return on_call

    def on_event(self, frame, event, arg):
        """Count an opcode (Python 3.11)."""
        if event == "opcode":
            self.on_opcode(frame)
        return self.on_event

    def on_instruction(self, code, offset):
        """Count an opcode (Python 3.12 and newer), but in a thread that `threading` does not know (yet).

        Python 3.11 has no events there, and asking for the current thread would make up another one.
        """
        if threading.get_ident() in {thread.ident for thread in threading.enumerate()}:
            self.on_opcode(sys._getframe(1))

    def on_opcode(self, frame) -> None:
        """Count an opcode, when it is this thread's turn."""
        thread = threading.current_thread()
        self.turns.take(thread)
        if thread not in self.names:
            self.name_thread(thread)
        index = self.count
        self.count += 1
        if self.only is None or index == self.only:
            self.reached(self.point(index, frame))

    def point(self, index: int, frame) -> Point:
        """Return the point at which a frame stands."""
        code = frame.f_code
        return Point(
            index,
            self.names[threading.current_thread()],
            self.relative[code.co_filename],
            code.co_qualname,
            frame.f_lineno or code.co_firstlineno,
            self.returned,
        )

    def name_thread(self, thread: threading.Thread) -> None:
        """Name a thread that is new here, with a number where another one had its name before."""
        same = sum(other.name == thread.name for other in self.names)
        self.names[thread] = f"{thread.name} ({same + 1})" if same else thread.name

    def is_project(self, name: str) -> bool:
        """Tell whether a source file is project code, and remember its path below the root."""
        if name not in self.relative:
            real = os.path.realpath(name) if os.path.isabs(name) else ""  # else `<string>`, `<frozen ...>`
            own = real.startswith(_REDELIVERY) and real != _MARKER
            inside = real.startswith(self.root) and not is_installed(real) and not own
            self.relative[name] = real.removeprefix(self.root) if inside else None
        return self.relative[name] is not None
