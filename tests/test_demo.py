"""`make demo` of a generated service: the story, its verdicts, and nothing left running."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT, plain_environment


@pytest.fixture
def demo(bake, service_venv):
    """Return a function that starts `make demo` in a fresh service, in a session of its own."""

    def start(**answers):
        service = bake(**answers)
        return subprocess.Popen(
            ["make", "demo", f"VENV={service_venv}"],
            cwd=service,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=plain_environment(),
        )

    return start


def processes_in(folder: str) -> list[str]:
    """Return the command lines of all processes that have something to do with a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if folder in f"{command} {os.readlink(process / 'cwd')}" and process.name != str(os.getpid()):
                found.append(command)
        except OSError:
            continue
    return found


def folder_of(output: list[str]) -> str:
    """Return the folder that the demo said it works in."""
    return next(line for line in output if line.startswith("Starting ")).split()[-1]


@pytest.mark.slow
def test_every_verdict_holds(demo):
    """Exit status 0, the table of the README to the letter, and no process left."""
    process = demo()
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    rows = [line for line in output.splitlines() if line.endswith(("  kept", "  verdict", "  BROKEN"))]
    assert len(rows) == 5
    assert "\n".join(rows) in (ROOT / "README.md").read_text()
    assert processes_in(folder_of(output.splitlines())) == []
    assert not Path(folder_of(output.splitlines())).exists()


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_nothing_is_left_when_it_is_stopped(demo, which):
    """Stopped in the middle of a scene, by the terminal (the whole group) or by a supervisor."""
    process = demo()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "another worker is up" in line or line.startswith("task "):
            break
    os.killpg(process.pid, which)
    process.communicate(timeout=60)
    assert process.returncode != 0
    folder = folder_of(lines)
    deadline = time.monotonic() + 10
    while processes_in(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(folder) == []
    assert not Path(folder).exists()


def test_without_examples_there_is_nothing_to_play(demo):
    """It says so, and that is not a success."""
    process = demo(worked_examples="no")
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert "The demo plays the worked examples, and this service was made without them." in output
