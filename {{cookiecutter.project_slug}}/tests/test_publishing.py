"""Publishing is bounded, says whether it worked, and never raises because of a broker."""

import time

import pytest
import redis

from service.celery import app
from service.publishing import publish

TASK = app.tasks["celery.backend_cleanup"]


def seconds(function, *args) -> tuple[float, object]:
    begun = time.monotonic()
    result = function(*args)
    return time.monotonic() - begun, result


def queue() -> str:
    return app.conf.task_default_queue


def test_published(waiting):
    assert publish(TASK)
    assert waiting(queue()) == 1


def test_broker_away(no_broker, caplog):
    took, published = seconds(publish, TASK)
    assert took < 3 and not published
    assert "celery.backend_cleanup() was not published" in caplog.text


@pytest.mark.parametrize("known", [False, True], ids=["first connection", "open connection"])
def test_broker_paused(broker, known):
    if known:
        publish(TASK)
    redis.Redis("127.0.0.1", port=broker.port).client_pause(60_000)
    for _ in range(2):
        took, published = seconds(publish, TASK)
        assert took < 3 and not published


def test_connection_gone_stale_in_a_restart_of_the_broker(broker):
    assert publish(TASK)
    broker.stop()
    broker.start()
    assert publish(TASK)


def test_mistake_of_the_caller_is_raised():
    with pytest.raises(TypeError):
        publish(TASK, object())
