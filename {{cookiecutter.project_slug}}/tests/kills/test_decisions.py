"""What becomes of an interrupted delivery, and what is recorded of it: decided from the message alone."""

import base64
import json
import logging
import signal
from types import SimpleNamespace

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import SoftTimeLimitExceeded

from redelivery import kills, policy
from redelivery.request import Request, cause_of

TASK = "shop.tasks.mail"


def payload(*args, task=TASK, headers=(), **properties):
    """A message as kombu writes it."""
    body = base64.b64encode(json.dumps([args, {}, {}]).encode()).decode()
    return {
        "body": body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": "id-1", **dict(headers)},
        "properties": {
            "delivery_tag": "tag-1",
            "delivery_info": {"exchange": "", "routing_key": "main"},
            "body_encoding": "base64",
            "priority": 3,
            **properties,
        },
    }


def judge(message, cause="worker gone"):
    """The text to put back, the record, and the parked item, decoded where there is one."""
    one = kills.Interrupted(message, "tag-1", "main\x06\x163", "one@here:12:abc:r7", cause)
    return [json.loads(text) if text else None for text in kills.judge(one)]


@pytest.fixture(autouse=True)
def shop(policy_app):
    """A policy in which ``mail`` may crash three times, by default."""
    return policy_app()


def test_first_crash(settings):
    message = payload("Zoë", 7)
    again, record, parked = judge(message)
    assert parked is None
    assert again["headers"]["redelivery"] == {"deliveries": 1, "crashes": 1}
    assert again["headers"]["redelivered"] and again["properties"]["delivery_info"]["redelivered"]
    assert (again["body"], again["properties"]["priority"]) == (message["body"], 3)
    assert "redelivery" not in message["headers"]  # the caller's is as it was
    digest = kills.digest_of(["Zoë", 7], {})
    assert record.pop("time") > 0
    assert record == {
        "message": "tag-1",
        "delivery": 1,
        "task": TASK,
        "task_id": "id-1",
        "args_digest": digest,
        "worker": "one@here",
        "release": "r7",
        "cause": "worker gone",
        "outcome": "redelivered",
    }
    assert "Zo" not in json.dumps(record) and len(digest) == 64


def test_parked_after_so_many_crashes():
    message = payload()
    for starts in range(1, 10):
        again, record, parked = judge(message)
        assert record["delivery"] == starts
        if parked:
            break
        message = again
    assert starts == policy.DEFAULT_CRASH_RETRIES + 1
    assert record["outcome"] == "parked" and "4 times (crash_retries = 3)" in parked["reason"]
    assert json.loads(parked["raw"]) == again


def test_no_crash_retries(policy_app, tmp_path):
    from tests.policy.tools import POLICY

    policy_app(POLICY.replace('guard        = "marker"', 'guard        = "marker"\ncrash_retries = 0'))
    assert judge(payload())[2]


def test_given_back_by_the_task_is_a_delivery_and_no_crash():
    again, record, parked = judge(payload(), "")
    assert (record, parked) == (None, None)
    assert again["headers"]["redelivery"] == {"deliveries": 1, "crashes": 0}


@pytest.mark.parametrize(
    "header", [None, 7, [], {"deliveries": "9", "crashes": -1}, {"crashes": True}], ids=repr
)
def test_nonsense_in_the_header_counts_as_nothing(header):
    again, _, _ = judge(payload(headers={"redelivery": header}))
    assert again["headers"]["redelivery"] == {"deliveries": 1, "crashes": 1}


def test_body_that_is_no_json_has_a_digest_all_the_same():
    _, record, _ = judge({**payload(), "body": "?"})
    assert len(record["args_digest"]) == 64


def test_digest_does_not_depend_on_the_order_of_names():
    assert kills.digest_of([], {"a": 1, "b": 2}) == kills.digest_of([], {"b": 2, "a": 1})
    assert kills.digest_of([1], {}) != kills.digest_of(["1"], {})


def test_retry_keeps_the_crashes_and_begins_its_deliveries_anew(shop, monkeypatch):
    again, _, _ = judge(payload())
    sent = {}
    monkeypatch.setattr(shop, "send_task", lambda name, *args, **options: sent.update(options))
    shop.tasks[TASK].apply_async((), retries=1, headers={**again["headers"], "own": 1})
    assert sent["headers"]["redelivery"] == {"deliveries": 0, "crashes": 1}
    assert sent["headers"]["own"] == 1 and "redelivered" not in sent["headers"]


@pytest.mark.parametrize(
    ("headers", "redelivered", "number"),
    [
        ({}, False, 1),
        ({"redelivery": {"deliveries": 2, "crashes": 1}}, True, 3),
        ({"x-delivery-count": 1}, True, 2),
        ({}, True, None),
    ],
)
def test_number_of_a_delivery(headers, redelivered, number):
    assert kills.delivery(headers, redelivered) == number


def test_one_line_for_what_is_parked(caplog):
    item = kills.parked(json.dumps(payload()), key="main\x06\x163", reason="why", worker="one@here:1:a:r7")
    with caplog.at_level(logging.ERROR, "redelivery"):
        kills.log_parked(item)
        kills.log_parked(json.dumps({**json.loads(item), "raw": "no\njson"}))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "shop.tasks.mail[id-1] is parked until an operator replays or discards it: why (queue main, worker one@here)"
    )
    assert second.startswith("unreadable message[-] is parked")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (WorkerLostError("Worker exited: signal 9 (SIGKILL) Job: 0."), "child killed by signal 9 (SIGKILL)"),
        (WorkerLostError("Worker exited prematurely: exitcode 70 Job: 3."), "child exited with 70"),
        (WorkerLostError("Worker exited prematurely: exitcode 0 Job: 3."), "child exited with 0"),
        (WorkerLostError("gone"), "child lost"),
        (SystemExit(-(256 - signal.SIGTERM)), "child killed by signal 15 (SIGTERM)"),
        (SystemExit(3), "child exited with 3"),
        (SystemExit("text"), "child exited with 1"),
        (SystemExit(), "child exited with 0"),
        (TimeLimitExceeded(60), "hard time limit"),
        (SoftTimeLimitExceeded(60), ""),
        (ValueError("no"), ""),
    ],
    ids=repr,
)
def test_cause(error, cause):
    assert cause_of(error) == cause


def test_one_kill_that_is_told_twice_is_one_record(monkeypatch):
    """As Celery tells a hard limit; where the broker counts no deliveries, the database cannot tell the two apart."""
    request, recorded = Request.__new__(Request), []
    request.acknowledged = True
    monkeypatch.setattr("redelivery.request.recorder", SimpleNamespace(later=recorded.append))
    monkeypatch.setattr("redelivery.request.kills.interrupted", lambda request, *facts: facts)
    for _ in range(2):
        request._interrupted("hard time limit", lambda: None)
    assert recorded == [("hard time limit", "acked")]
