"""Markers on a real cache and on one that is down; the log line of each task event."""

import logging

import pytest
from celery.exceptions import TimeLimitExceeded
from django.core.cache import caches

from redelivery import log
from redelivery.marker import Marker, MarkerUnavailable
from tests.policy.tools import REDIS_CACHE, nothing


@pytest.fixture
def cache(policy_app, settings, redis_url):
    policy_app()
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": redis_url}}
    return caches["default"]


def test_marker(cache):
    marker = Marker("shop.tasks.mail", 7)
    assert not marker.is_set()
    marker.set()
    assert marker.is_set() and Marker("shop.tasks.mail", "7").is_set()
    assert not Marker("shop.tasks.mail", 8).is_set()
    assert cache.get("redelivery:shop.tasks.mail:7") == 1


def test_marker_lives_as_long_as_its_entry_says(cache, redis_url):
    import redis

    Marker("shop.tasks.mail", 7).set()
    assert (
        30 * 86_400 - 5
        < redis.Redis.from_url(redis_url).ttl(":1:redelivery:shop.tasks.mail:7")
        <= 30 * 86_400
    )


@pytest.mark.parametrize("key", ["with space", "ü", "line\nbreak", "x" * 500, ""])
def test_any_key_is_fit_for_any_cache(cache, key):
    marker = Marker("shop.tasks.mail", key)
    assert len(marker.key) <= 180 and marker.key.isascii() and not any(sign.isspace() for sign in marker.key)
    marker.set()
    assert marker.is_set() and not Marker("shop.tasks.mail", key + "y").is_set()


def test_unreachable_cache(policy_app, settings, caplog):
    policy_app()
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": "redis://127.0.0.1:1/0"}}
    marker = Marker("shop.tasks.mail", 7)
    with pytest.raises(MarkerUnavailable, match=r"redelivery:shop\.tasks\.mail:7"):
        marker.is_set()
    marker.set()
    assert "could not be written" in caplog.text


def test_marker_needs_an_entry_with_that_guard(policy_app):
    policy_app()
    for name in ("shop.tasks.count", "shop.tasks.unknown"):
        with pytest.raises(LookupError, match=name):
            Marker(name, 7)


def test_cache_of_the_markers_own(cache, settings):
    settings.CACHES = {"default": {**REDIS_CACHE}, "markers": {**REDIS_CACHE, "LOCATION": cache._servers[0]}}
    settings.REDELIVERY_MARKER_CACHE = "markers"
    Marker("shop.tasks.mail", 7).set()
    assert Marker("shop.tasks.mail", 7).is_set()


@pytest.fixture
def lines(policy_app, caplog):
    """Run a task as a delivery: ``lines(body, redelivered=True)`` gives (text, context) of each log line."""
    caplog.set_level(logging.INFO, "redelivery")
    caplog.handler.addFilter(log.TaskContext())
    app = policy_app(tasks=False)

    def run(body, redelivered=False):
        from celery.app.trace import build_tracer

        task = app.task(name="shop.tasks.mail", shared=False)(body)
        app.finalize()
        log.connect()
        request = {
            "id": "id-1",
            "delivery_info": {"redelivered": redelivered},
            "task": task.name,
            "is_eager": False,
        }
        build_tracer(task.name, task, app=app)("id-1", (), {}, request)
        found = [record for record in caplog.records if record.name.startswith(("redelivery", "shop"))]
        return [(r.getMessage(), (r.task, r.task_id, r.redelivered)) for r in found]

    return run


def test_success(lines):
    context = ("shop.tasks.mail", "id-1", "no")
    assert lines(nothing) == [
        ("shop.tasks.mail[id-1] redelivered=no delivery=1 started", context),
        ("shop.tasks.mail[id-1] redelivered=no delivery=1 finished", context),
    ]


def test_redelivery_with_the_decision_of_the_guard(lines):
    def body():
        log.guard("skip", "already sent; skipping redelivery")

    found = lines(body, redelivered=True)
    assert [context for _, context in found] == [("shop.tasks.mail", "id-1", "yes")] * 3
    assert [text for text, _ in found[1:]] == [
        "shop.tasks.mail[id-1] redelivered=yes delivery=? guard=skip already sent; skipping redelivery",
        "shop.tasks.mail[id-1] redelivered=yes delivery=? guard=skip finished",
    ]


@pytest.mark.parametrize("decision", ["run", "skip"])
def test_decision_of_a_marker(lines, settings, redis_url, decision):
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": redis_url}}

    def body():
        if decision == "skip":
            Marker("shop.tasks.mail", 7).set()
        Marker("shop.tasks.mail", 7).is_set()

    assert lines(body)[-1][0] == f"shop.tasks.mail[id-1] redelivered=no delivery=1 guard={decision} finished"


def test_guard_outside_of_a_task(caplog):
    log.guard("skip", "called by hand")
    assert caplog.text == ""


def test_records_of_other_loggers_get_the_context_of_the_task(lines):
    def body():
        logging.getLogger("shop.mail").warning("hello")

    assert ("hello", ("shop.tasks.mail", "id-1", "no")) in lines(body)


def test_context_for_a_format(lines, caplog):
    """Once in each line: the lines of task events bring it themselves."""

    def body():
        logging.getLogger("shop.mail").warning("hello")

    lines(body)
    found = {record.getMessage(): record.context for record in caplog.records}
    assert found["hello"] == "shop.tasks.mail[id-1] redelivered=no delivery=1: "
    assert found["shop.tasks.mail[id-1] redelivered=no delivery=1 started"] == ""


def test_celerys_lines_name_the_task_themselves(lines, caplog):
    def body():
        raise ValueError("no")

    lines(body)
    (record,) = [record for record in caplog.records if record.name == "celery.app.trace"]
    assert "shop.tasks.mail[id-1]" in record.getMessage()
    assert (record.context, record.task_id) == ("", "id-1")


def test_failure(lines):
    def body():
        raise ValueError("no")

    found = lines(body)
    assert "shop.tasks.mail[id-1] redelivered=no delivery=1 failed: ValueError('no')" in [
        text for text, _ in found
    ]
    assert not any("finished" in text for text, _ in found)


def test_hard_time_limit_is_logged_once(policy_app, settings, caplog):
    settings.REDELIVERY_TRANSPORT = False
    task = policy_app().tasks["shop.tasks.mail"]
    for _ in range(2):
        log._failed(sender=task, task_id="id-9", exception=TimeLimitExceeded(60))
    assert [record.getMessage() for record in caplog.records] == [
        "shop.tasks.mail[id-9] redelivered=- delivery=- failed: TimeLimitExceeded(60)"
    ]


def test_hard_time_limit_of_each_delivery_is_logged(policy_app, caplog):
    """Where the message comes back, Celery sends the signal once (measured), and the task's id stays the same."""
    task = policy_app().tasks["shop.tasks.mail"]
    for _ in range(2):
        log._failed(sender=task, task_id="id-8", exception=TimeLimitExceeded(60))
    assert len(caplog.records) == 2


def test_outside_of_a_task():
    record = logging.makeLogRecord({"msg": "hello"})
    assert log.TaskContext().filter(record)
    assert (record.task, record.task_id, record.redelivered, record.context) == ("-", "-", "-", "")
