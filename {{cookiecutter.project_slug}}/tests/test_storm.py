"""The counting behind `make storm`, `make bench` and `make compare`: what is lost must be seen to be lost."""

import json
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dev"))

import bench
import compare
import storm
from transports import variants
from transports.lab import Lab
from transports.report import Progress, markdown, table, write_between

TOLL = storm.Toll(
    variant="ours",
    kills=100,
    redis_restarts=10,
    sent=5000,
    lost=0,
    run_twice=20,
    extra_starts=20,
    held=0,
    unrecorded=0,
    crashed_workers=0,
    longest_wait_s=20.0,
    median_wait_s=0.1,
    storm_s=150.0,
    settle_s=1.0,
    held_in={},
    lost_numbers=[],
)


def test_every_message_is_accounted_for(tmp_path):
    """Done, run twice, popped and gone, still in the queue, taken and not acknowledged: each counts as what it is."""
    with Lab(variants.VARIANTS["stock"], tmp_path / "lab") as lab:
        sent = [lab.sender.work(number) for number in range(1, 6)]
        client = lab.client()
        once, twice, lost, _waiting, unacked = sent
        for one in (once, twice, lost):
            assert one.message.encode() in client.rpop("lab")
        last = client.lpop("lab")
        assert unacked.message.encode() in last
        client.hset("unacked", "a tag", json.dumps([last.decode(), "lab", "lab"]))
        lines = [
            ("start", once),
            ("end", once),
            ("start", twice),
            ("start", twice),
            ("end", twice),
            ("start", lost),
        ]
        now = time.time()
        with (lab.directory / "effects").open("w") as file:
            file.writelines(json.dumps([kind, one.number, one.message, 1, now]) + "\n" for kind, one in lines)
            file.write('["end", 3, "half a li')
        options = Namespace(seed=1, kills=7, task_s=0, settle=1, concurrency=1)
        toll = storm.Storm(lab, options, Progress()).count(sent, 1, 1)
    assert (toll.sent, toll.lost, toll.run_twice, toll.extra_starts, toll.held) == (5, 1, 1, 1, 2)
    assert toll.lost_numbers == [3]
    assert toll.held_in == {"lab": 1, "unacked": 1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"lost": 1}, "ours lost 1 of 5000 messages"),
        ({"held": 2, "held_in": {"unacked": 2}}, "ours still holds 2 messages"),
        ({"extra_starts": 201}, "100 kills of 2 processes explain 200"),
        ({"unrecorded": 3}, "ours has no record of 3 interrupted deliveries"),
        ({"crashed_workers": 1}, "1 of ours' workers ended although nobody killed them"),
        ({"variant": "stock", "lost": 3, "held": 4, "crashed_workers": 5}, ""),
        ({"variant": "stock"}, "stock Celery lost nothing in 100 kills: this storm proves nothing"),
        ({"variant": "stock", "kills": 10}, ""),
    ],
)
def test_verdict_of_a_storm(changes, says):
    """Ours must keep every promise; stock must lose something, or a long storm was none."""
    wrong = storm.verdicts([replace(TOLL, **changes)], concurrency=2)
    assert len(wrong) == bool(says) and says in "".join(wrong)


def test_targets_compare_pairs():
    """The median of the pairs is what counts, not the pair of the medians, and a difference is no ratio."""
    figures = {
        "throughput": {
            "ours": [{"messages_per_s": value} for value in (120, 300, 90)],
            "stock": [{"messages_per_s": value} for value in (100, 200, 100)],
        },
        "idle, 8 workers": {"ours": [{"p50_ms": 5.5}], "stock": [{"p50_ms": 3.0}]},
    }
    rate, idle = bench.compare(figures)
    assert (rate["median"], rate["each"], rate["met"]) == (1.2, [1.2, 1.5, 0.9], True)
    assert (idle["median"], idle["met"]) == (2.5, False)


@pytest.mark.parametrize("command", [storm, bench, compare])
def test_what_cannot_be_compared_is_refused(command, capsys):
    """An unknown variant is one sentence, and so is one that is named alone and not installed."""
    with pytest.raises(SystemExit):
        command.parse(["--variants", "stock,nats"])
    assert "there is no 'nats'; choose from stock, policy, ours, crp." in capsys.readouterr().err


def test_what_is_not_installed_is_skipped_and_said(monkeypatch, tmp_path):
    """The others are compared all the same."""
    away = replace(variants.VARIANTS["crp"], python=str(tmp_path / "python"))
    monkeypatch.setitem(variants.VARIANTS, "crp", away)
    options = storm.parse(["--variants", "stock,crp"])
    assert [one.name for one in options.chosen] == ["stock"]
    assert "crp      skipped: " in storm.show([replace(TOLL, variant="stock")], options)
    with pytest.raises(ValueError, match="make crp"):
        variants.chosen("crp")


def test_table_is_written_between_its_marks(tmp_path):
    """What stands around it stays; a file without marks is an error."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n")
    write_between(page, "bench", "new")
    write_between(page, "bench", markdown([("a", "b"), ("1", "2")]))
    table_of_two = "| a | b |\n|---|---|\n| 1 | 2 |"
    assert page.read_text() == f"before\n<!-- bench: begin -->\n{table_of_two}\n<!-- bench: end -->\nafter\n"
    with pytest.raises(RuntimeError, match="has no lines <!-- comparison: begin -->"):
        write_between(page, "comparison", "new")


def test_long_row_does_not_widen_the_table():
    """A reason that goes on for a line leaves the columns as they are."""
    assert table([("a", "b"), ("1", "2"), ("crp skipped: a long reason",)]).splitlines()[1] == "1  2"
