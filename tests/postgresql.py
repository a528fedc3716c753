"""A PostgreSQL of a test's own, in a temporary folder, on a free port of 127.0.0.1."""

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUPERUSER = "shop"
# Nothing here outlives the tests, so nothing has to survive a power cut.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
START_S = 30
PR_SET_PDEATHSIG = 1


class NoPostgresql(Exception):
    """There is no PostgreSQL to run; the text says why."""


def programs() -> Path:
    """Return the folder of the newest installed server; raises NoPostgresql."""
    if path := shutil.which("initdb"):
        return Path(path).resolve().parent
    found = [initdb.parent for initdb in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found:
        raise NoPostgresql("PostgreSQL is not installed")
    return max(found, key=lambda folder: float(folder.parent.name))


def other_user() -> dict:
    """Return the options of `subprocess` for a user that is not root, whom PostgreSQL refuses; none otherwise."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise NoPostgresql("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


@contextlib.contextmanager
def postgresql():
    """Run a server; gives the URL of an empty database. Raises NoPostgresql, or RuntimeError with its output."""
    bin, user = programs(), other_user()
    # Not below pytest's folder, into which only its owner may look.
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        if user:
            os.chown(folder, user["user"], user["group"])
        options = {**user, "cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": folder}}
        data = ["-D", f"{folder}/data"]
        initdb = [bin / "initdb", *data, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--no-sync"]
        run(initdb, options)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        settings = (f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *FAST)
        command = [bin / "postgres", *data, *(word for setting in settings for word in ("-c", setting))]
        with open(f"{folder}/log", "wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            server = subprocess.Popen(command, preexec_fn=end_with_the_tests, **streams, **options)
        try:
            address = ["-h", "127.0.0.1", "-p", str(port), "-U", SUPERUSER]
            wait_for([bin / "pg_isready", *address], server, options, Path(folder, "log"))
            run([bin / "createdb", *address, "shop"], options)
            yield f"postgres://{SUPERUSER}@127.0.0.1:{port}/shop"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once, also when somebody is connected
            server.wait(START_S)


def end_with_the_tests() -> None:
    """Have the kernel end this process when the tests are killed, on Linux; called after the user has changed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def run(command: list, options: dict) -> None:
    """Run a program to its end; raise RuntimeError with its output when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}")


def wait_for(ready: list, server: subprocess.Popen, options: dict, log: Path) -> None:
    """Wait until the server answers; raise RuntimeError with its log when it does not."""
    end = time.monotonic() + START_S
    while subprocess.run(ready, stdout=subprocess.DEVNULL, **options).returncode != 0:
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"PostgreSQL does not answer:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)
