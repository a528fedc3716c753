"""Stop a running task before one opcode of project code: the eyes of the crash map.

Lines are too coarse: `if send(): put_marker()` hides its gap from every kill between lines, so each opcode is a point.
"""

import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Of the redelivery app itself only the marker takes part in a task; the rest configures, watches or tests it.
_REDELIVERY = str(Path(__file__).parents[1]) + "/"
_MARKER = _REDELIVERY + "marker.py"
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True)
class Point:
    """A place before one opcode: the thread's name, how many opcodes that thread ran before, and the source line."""

    thread: str
    index: int
    file: str
    function: str
    line: int

    @property
    def where(self) -> str:
        """Say it as `file:line in function`."""
        return f"{self.file}:{self.line} in {self.function}"


class Tracer:
    """Once started, calls `reached(point)` before every opcode of project code in this thread and those that it starts.

    Project code is what lies under `root` and is not an installed library. Opcodes are counted for each thread apart,
    because the order in which threads take turns differs from run to run while each one's own path does not.
    """

    def __init__(self, root: Path):
        self.root = f"{root.resolve()}/"
        self.reached: Callable[[Point], None] | None = None
        self.of_thread = threading.local()
        self.is_project: dict[str, bool] = {}

    def learn(self) -> None:
        """Decide now for every module that is loaded: a forked child would have to decide anew each time."""
        for module in list(sys.modules.values()):
            if name := getattr(module, "__file__", None):
                self.is_project[name] = self.belongs(name)

    def start(self, reached: Callable[[Point], None]) -> None:
        """Trace what this thread calls from now on, and every thread started from now on."""
        self.reached = reached
        threading.settrace(self.on_call)
        sys.settrace(self.on_call)

    def stop(self) -> None:
        """Stop tracing in this thread and for new ones."""
        sys.settrace(None)
        threading.settrace(None)

    def on_call(self, frame, event, arg):
        """Decide, as sys.settrace wants it, whether to look into a new frame."""
        name = frame.f_code.co_filename
        if name not in self.is_project:
            self.is_project[name] = self.belongs(name)
        if not self.is_project[name]:
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self.on_event

    def on_event(self, frame, event, arg):
        """Count an opcode."""
        if event == "opcode":
            index = self.of_thread.__dict__.setdefault("count", 0)
            self.of_thread.count = index + 1
            code = frame.f_code
            thread = threading.current_thread().name
            file = code.co_filename.removeprefix(self.root)
            self.reached(Point(thread, index, file, code.co_qualname, frame.f_lineno or code.co_firstlineno))
        return self.on_event

    def belongs(self, name: str) -> bool:
        """Tell whether a source file is project code."""
        outside = name.startswith(_LIBRARIES) or "/site-packages/" in name
        return (
            name.startswith(self.root)
            and not outside
            and (name == _MARKER or not name.startswith(_REDELIVERY))
        )
