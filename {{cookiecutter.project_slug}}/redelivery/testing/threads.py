"""Threads that a task starts: let them run one at a time, and wait for those that it leaves behind."""

import asyncio.base_events
import concurrent.futures.thread
import math
import queue
import selectors
import sys
import threading
import time
from pathlib import Path

# A thread whose innermost Python function is in one of these modules waits for another one. So does an event loop; but
# whatever else is in `selectors` waits for a server.
_WAITING = {module.__file__ for module in (threading, queue, concurrent.futures.thread)}
# So long a thread must stand at one place, in seconds, until it is taken to wait there: in one of these modules (longer
# than a busy machine lets a thread lie idle), and elsewhere (it may wait for a bare lock, or for an answer).
_WAITING_S, _STANDING_S = 0.01, 1.0
_LOOK_S = 0.001
# States of a thread that could go on, and only other processes keep it from that: it waits for a core, or for the disk.
HELD_UP = {"R", "D"}


class Watch:
    """Tells from outside whether a thread waits for others, or has ended."""

    def __init__(self, thread: threading.Thread):
        self.thread = thread
        self.place: tuple | None = None
        self.since = 0.0

    def rests(self, standing_s: float = math.inf) -> bool:
        """Look once more; a thread rests when it has stood at one place for a while: in a function that waits.

        Elsewhere it must have stood so many seconds.
        """
        if self.thread.ident is None:  # Started, and it has not had a core yet.
            return False
        frame = sys._current_frames().get(self.thread.ident)
        if frame is None:
            return True
        state, sleeps = self.sleep()
        # One that waits for a lock sleeps once. One that was woken and then waits for the interpreter's own lock sleeps
        # again and again: on a busy machine it may lose that race for longer than it must stand here.
        place = frame, frame.f_lasti, sleeps if waits(frame) else ""
        if place != self.place or state in HELD_UP:
            self.place, self.since = place, time.monotonic()
            return False
        enough = _WAITING_S if waits(frame) else standing_s
        return time.monotonic() - self.since > enough

    def sleep(self) -> tuple[str, str]:
        """Return the state of the thread, and how often it went to sleep by itself (Linux; elsewhere nobody knows)."""
        try:
            lines = Path(f"/proc/self/task/{self.thread.native_id}/status").read_text().splitlines()
        except OSError:
            return "", ""
        said = dict(line.partition(":\t")[::2] for line in lines)
        return said.get("State", "")[:1], said.get("voluntary_ctxt_switches", "")


def waits(frame) -> bool:
    """Tell whether a thread whose innermost frame is this one waits for another thread."""
    if frame.f_code.co_filename == selectors.__file__:
        frame = frame.f_back
        return frame.f_code.co_filename == asyncio.base_events.__file__
    return frame.f_code.co_filename in _WAITING


class Turns:
    """Lets one thread at a time run project code: the next one when that one waits or ends.

    Threads take turns as they like, so a kill "before this opcode of this thread" would find the others somewhere else
    in each run. With turns each run is the same: a thread goes on only when nothing else moves, and of several that
    could go on, the one that was started first does.
    """

    def __init__(self):
        self.holder: threading.Thread | None = threading.current_thread()
        self._lock = threading.Lock()
        self._wanting: set[threading.Thread] = set()
        self._gone: threading.Thread | None = None

    def take(self, me: threading.Thread) -> None:
        """Return when it is the turn of the calling thread, which is `me`."""
        if self.holder is me:
            return
        with self._lock:
            self._wanting.add(me)
        seen, watches = None, []
        while self.holder is not me:
            time.sleep(_LOOK_S)
            with self._lock:
                alive = threading.enumerate()
                now = [self.holder, *alive, *(one in self._wanting for one in alive)]
                if now != seen:
                    seen, watches = (
                        now,
                        [Watch(one) for one in alive if one not in {*self._wanting, self._gone}],
                    )
                elif (
                    not [watch for watch in watches if not watch.rests(_STANDING_S)]
                    and self.first(alive) is me
                ):
                    self._wanting.discard(me)
                    self.holder = me

    def first(self, alive: list[threading.Thread]) -> threading.Thread:
        """Return the thread that was started first of those that want the turn."""
        return next(one for one in alive if one in self._wanting)

    def leave(self) -> None:
        """Let the other threads go on, for the calling one runs no more project code."""
        self._gone, self.holder = threading.current_thread(), None


def wait_for_threads(seconds: float) -> bool:
    """Wait until every other thread has ended or waits; return whether that came to pass within so many seconds."""
    deadline = time.monotonic() + seconds
    watches: dict[threading.Thread, Watch] = {}
    while threading.active_count() > 1:
        others = [one for one in threading.enumerate() if one is not threading.current_thread()]
        if not [one for one in others if not watches.setdefault(one, Watch(one)).rests()]:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
