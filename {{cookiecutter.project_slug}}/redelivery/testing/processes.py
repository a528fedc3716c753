"""Start a process that ends with the test that started it, find a free port, wait for something to come true."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on right now.

    Below those that a kernel gives to outgoing connections (Linux: from 32768): one of them could take it before the
    server does. And by chance, so that tests side by side, which look at once, find different ones.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux; elsewhere nothing).

    `parent` is the process id that the parent has read before the fork. If it has died since, no signal would come, and
    this process, which has done nothing yet, is killed at once.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of what its killed children leave running (Linux; elsewhere nothing)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> set[int]:
    """Return the process ids of this process's children, those that ended unreaped included (Linux; elsewhere none)."""
    found: set[int] = set()
    with suppress(FileNotFoundError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(FileNotFoundError), open(f"/proc/self/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    return found


def stat_fields(pid: int) -> list[str]:
    """Return what Linux says of a process after its name: state, parent's process id and so on; see proc(5).

    Raises FileNotFoundError or ProcessLookupError when it is gone.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits to be reaped."""
    try:
        return stat_fields(pid)[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for_children(seconds: float) -> bool:
    """Wait until every child of this process has ended; return whether that came to pass within so many seconds."""
    deadline = time.monotonic() + seconds
    while not all(map(has_ended, own_children())):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def reap_orphans(known: set[int], seconds: float) -> None:
    """Wait for the children that are not known: at most so many seconds, then they are killed."""
    deadline = time.monotonic() + seconds
    while orphans := own_children() - known:  # again, because the orphans' own children come here, too
        for pid in orphans:
            with suppress(ProcessLookupError, ChildProcessError):
                if not has_ended(pid) and time.monotonic() >= deadline:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def start(command: list[str], **options) -> subprocess.Popen:
    """Start a command in a process group of its own and return it.

    On Linux the kernel kills it when the starting thread dies, so that even a SIGKILLed test run leaves nothing behind.
    Options are those of `subprocess.Popen`.
    """
    orphaned = partial(die_with_parent, os.getpid())
    return subprocess.Popen(command, start_new_session=True, preexec_fn=orphaned, **options)


def stop(process: subprocess.Popen, seconds: float = 10) -> int:
    """Ask a started process to end, kill its group after so many seconds, and return its exit status."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    kill_group(process)
    return process.wait()


def kill_group(process: subprocess.Popen) -> None:
    """SIGKILL every process of the group that the started process leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(true: Callable[[], object], seconds: float, what: str):
    """Return the first true answer of a function; raise TimeoutError, which names `what`, after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        answer = true()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)


def listens(port: int) -> bool:
    """Tell whether something accepts connections on this port of 127.0.0.1."""
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0
