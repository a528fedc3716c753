"""`make storm`, `make bench` and `make compare` of a generated service, in their short forms."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import plain_environment
from test_demo import processes_in

CRP_PYTHON = os.environ.get("CRP_PYTHON")


@pytest.fixture
def start(bake, service_venv):
    """Return a function that starts a target of a fresh service, in a session and a temporary folder of its own."""

    def run(target: str, arguments: str) -> tuple[subprocess.Popen, Path]:
        service = bake()
        temporary = service.parent / "temporary"
        temporary.mkdir()
        process = subprocess.Popen(
            ["make", target, f"VENV={service_venv}", f"ARGS={arguments}"],
            cwd=service,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=plain_environment(
                TMPDIR=str(temporary), **({"CRP_PYTHON": CRP_PYTHON} if CRP_PYTHON else {})
            ),
        )
        return process, temporary

    return run


@pytest.fixture
def figures(start):
    """Return a function that runs a target with `--json` and returns its figures; nothing may be left of it."""

    def run(target: str, arguments: str) -> dict:
        process, temporary = start(target, f"--json {arguments}")
        out, err = process.communicate(timeout=3600)
        assert process.returncode == 0, out + err
        assert processes_in(str(temporary)) == [] and list(temporary.iterdir()) == []
        print(out)
        return json.loads(out)

    return run


@pytest.mark.slow
def test_short_storm(figures):
    """Ten kills and a restart of Redis: this service's transport loses nothing."""
    storm = figures("storm", "--kills 10 --restart-every 5 --variants stock,ours")
    stock, ours = storm["tolls"]
    assert [stock["variant"], ours["variant"]] == ["stock", "ours"]
    for toll in (stock, ours):
        assert (toll["kills"], toll["redis_restarts"]) == (10, 2)
        # At 50 a second for the 10 to 20 s that ten kills take; a sender that stood still would show.
        assert toll["sent"] > 300
    assert (ours["lost"], ours["held"], ours["crashed_workers"]) == (0, 0, 0)
    assert ours["extra_starts"] <= 10 * 2 and ours["unrecorded"] == 0
    assert ours["longest_wait_s"] < 60


@pytest.mark.slow
def test_short_bench(figures):
    """Every measurement yields figures of both; how they compare is for `make bench` on a quiet machine to say."""
    sizes = "--tasks 300 --singles 10 --loaded-s 1 --load 50"
    only = "throughput,idle-1-worker,idle-3-queues,loaded,marker"
    bench = figures("bench", f"--rounds 1 {sizes} --only {only} --variants stock,ours")
    assert list(bench["figures"]) == ["throughput", "idle, 1 worker", "idle, 3 queues", "loaded"]
    for measured in bench["figures"].values():
        assert measured.keys() == {"stock", "ours"}
        assert all(value > 0 for rounds in measured.values() for one in rounds for value in one.values())
    assert {one["target"].split(":")[0] for one in bench["targets"]} == {
        "throughput, messages_per_s",
        "loaded, p99_ms",
        "idle, 1 worker, p50_ms",
    }
    assert bench["marker_us"].keys() == {"lookup", "write"}


@pytest.mark.slow
def test_short_comparison(figures):
    """What ours promises, ours does, and stock kombu does not: else there would be no need of ours."""
    arguments = "--repeats 1 --kills 0 --only kill,drain,undecodable --variants stock,ours"
    check_comparison(figures("compare", arguments)["seen"])


@pytest.mark.slow
def test_side_by_side(figures):
    """All scenarios, celery-redis-plus beside the others: half an hour, so only where one asks for it."""
    if not CRP_PYTHON:
        pytest.skip("CRP_PYTHON is not set: the Python of an environment that `make crp` made in a service")
    seen = figures("compare", "--repeats 2 --kills 50")["seen"]
    check_comparison(seen)
    for scenario in seen.values():
        assert scenario.keys() == {"stock", "ours", "crp"}
    assert (
        seen["long"]["ours"]["starts"]
        == seen["long-drain"]["ours"]["starts"]
        == 1
        < seen["long"]["stock"]["starts"]
    )
    assert (seen["away"]["ours"]["starts"], seen["away"]["ours"]["alive"]) == (1, 4)
    assert (seen["restarts"]["ours"]["alive"], seen["restarts"]["ours"]["lost"]) == (10, 0)
    assert max(seen["half-open"]["ours"]["seconds"]) < 30
    assert seen["restart"]["ours"]["alive"] and seen["restart"]["ours"]["back"]
    assert seen["full"]["ours"]["alive"] and seen["full"]["ours"]["drained"]
    assert seen["poison"]["ours"]["starts"] == 4 and seen["poison"]["ours"]["parked"]
    assert seen["poison"]["ours"]["neighbours"] == 20
    assert not seen["poison"]["stock"]["parked"]
    assert seen["unknown"]["ours"]["kept"] and not seen["unknown"]["stock"]["kept"]
    assert (
        seen["storm"]["ours"]["lost"] == seen["storm"]["ours"]["held"] == 0 < seen["storm"]["stock"]["lost"]
    )


def check_comparison(seen: dict) -> None:
    """Check what both forms of the comparison have."""
    assert max(seen["kill"]["ours"]["seconds"]) < 20
    assert seen["kill"]["stock"]["seconds"] == [None]
    # Stock's is a matter of luck: its last BRPOP takes one message along in two drains of three.
    assert max(seen["drain"]["ours"]["seconds"]) < 2
    assert seen["undecodable"]["ours"] == {
        "cell": "worker alive, the next one runs; it is kept",
        "alive": True,
        "started": True,
        "kept": True,
    }
    assert not seen["undecodable"]["stock"]["alive"]


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_nothing_is_left_when_it_is_stopped(start, which):
    """Stopped in the middle of a storm, by the terminal (the whole group) or by a supervisor."""
    process, temporary = start("storm", "--kills 100 --variants stock")
    for line in process.stderr:
        if "/100 kills" in line:
            break
    assert processes_in(str(temporary))
    os.killpg(process.pid, which)
    process.communicate(timeout=60)
    assert process.returncode != 0
    deadline = time.monotonic() + 10
    while processes_in(str(temporary)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(str(temporary)) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "arguments", "says"),
    [
        ("storm", "--variants stock,nats", "there is no 'nats'; choose from stock, policy, ours, crp."),
        ("storm", "--kills 0", "--kills, --workers, --concurrency and --restart-every must be 1 or more"),
        ("bench", "--only speed", "--only: there is no speed; choose from marker, throughput,"),
        ("compare", "--only war", "--only: there is no war; choose from kill,"),
        ("compare", "--write nothing.md", "--write: nothing.md is not a file"),
    ],
)
def test_bad_argument_is_one_sentence(start, target, arguments, says):
    """It names the option and what it may be; nothing is started."""
    process, _ = start(target, arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 and out == ""
    assert says in err and "Traceback" not in err
