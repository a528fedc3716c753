"""The experiments of `make prove`, in a short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def prove(*arguments: str) -> subprocess.CompletedProcess:
    """Run an experiment in processes of its own; it starts its own servers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "service.settings"}
    return subprocess.run(
        [sys.executable, "-m", "payments.proofs", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )


# Between two kills lie so many opcodes; a prime, so that no loop is always met at the same place.
STRIDE = 97


@pytest.mark.parametrize("afterwards", ["readable", "unreadable", "forgotten"])
def test_killed_under_every_behaviour_nothing_ends_wrongly(afterwards):
    done = prove("behaviours", "--stride", str(STRIDE), "--afterwards", afterwards, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    assert len(results) == 12
    for result in results:
        assert result["kills"] >= 5 and result["twins"]["calls"] == 1, result
        assert not any("WRONG" in end for end in [*result["ends"], result["twins"]["end"]]), result
        if afterwards != "forgotten":
            assert set(result["ends"]) == {"rejected" if result["behaviour"] == "reject" else "sent"}, result
    # What nobody can tell any more is with a person, and is not sent again.
    assert (afterwards == "forgotten") == any("with a person" in result["ends"] for result in results)


def test_storm():
    done = prove("storm", "--payments", "40", "--workers", "3", "--kills", "5", "--share", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "books and rows agree" in done.stdout


def test_killed_at_the_middle_send():
    done = prove("fiftieth", "--payments", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'sending': 1" in done.stdout and "charges                  20" in done.stdout


def test_stopped_past_its_limits():
    done = prove("stopped")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "late answer              worker: attempt 1: Accepted" in done.stdout
    assert "state overwritten        False" in done.stdout


def test_unknown_name():
    done = prove("nothing")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(
        "Say which one: behaviours, storm"
    )
