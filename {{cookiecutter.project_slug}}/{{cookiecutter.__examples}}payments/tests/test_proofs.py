"""The experiments of `make prove`, in a short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str) -> subprocess.Popen:
    """Start an experiment in processes of its own; it starts its own servers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "service.settings"}
    return subprocess.Popen(
        [sys.executable, "-m", "payments.proofs", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def prove(*arguments: str) -> str:
    """Run an experiment, which must hold, and return what it printed."""
    process = start(*arguments)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    return output


# Most of their time they wait for limits to pass: all at once. `make prove` has the service's own times, and full size.
HASTE = ("--dead-after", "9")
EXPERIMENTS = {
    "storm": ("--payments", "30", "--workers", "2", "--kills", "4", "--share", "0.2"),
    "fiftieth": ("--payments", "20"),
    "stopped": (),
}


@pytest.fixture(scope="module")
def experiments():
    """Those with real workers, started together."""
    started = {name: start(name, *HASTE, *more) for name, more in EXPERIMENTS.items()}
    yield started
    for process in started.values():
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("storm", ["kills                    4", "books and rows agree"]),
        ("fiftieth", ["'sending': 1", "charges                  20"]),
        (
            "stopped",
            ["late answer              worker: attempt 1: Accepted", "state overwritten        False"],
        ),
    ],
)
def test_with_real_workers(experiments, name, shown):
    """Whatever dies or stands still: the provider's books and the rows agree, and nobody is charged twice."""
    output = experiments[name].communicate(timeout=400)[0]
    assert experiments[name].returncode == 0, output
    assert all(each in output for each in shown), output


# How many opcodes lie between two kills; a prime, so that no loop is always met at the same place.
STRIDE = "397"
BEHAVIOURS = ("accept", "reject", "error after", "drop before", "slow")


def test_killed_while_the_provider_misbehaves_nothing_ends_wrongly():
    """What nobody can tell any more is with a person, and is not sent again."""
    results = json.loads(prove("behaviours", "--stride", STRIDE, "--only", *BEHAVIOURS, "--json"))
    assert len(results) == 3 * len(BEHAVIOURS)
    people = set()
    for result in results:
        assert result["kills"] >= 2 and result["twins"]["calls"] == 1, result
        assert not any("WRONG" in end for end in [*result["ends"], result["twins"]["end"]]), result
        if result["afterwards"] != "forgotten":
            assert set(result["ends"]) == {"rejected" if result["behaviour"] == "reject" else "sent"}, result
        if "with a person" in result["ends"]:
            people.add(result["afterwards"])
    assert people == {"forgotten"}


def test_unknown_name():
    process = start("nothing")
    assert process.communicate()[0].startswith("Say which one: behaviours, storm") and process.returncode == 2
