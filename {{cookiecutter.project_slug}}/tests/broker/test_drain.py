"""A worker that drains takes nothing, and gives back at once what has not started, in its old order."""

import json
import time

from celery import Celery
from transports.app import WORK

from tests.broker.tools import done, run


def test_message_goes_to_another_worker_at_once(lab):
    lab = lab()
    (draining,) = lab.start_workers(1)
    long = run(lab, 12)
    lab.start_workers(1)
    draining.drain()
    time.sleep(0.3)
    sent = [lab.sender.work(number, 0) for number in range(2, 7)]
    for one in sent:
        assert lab.within(lambda one=one: lab.starts(one.message), 5) is not None
    assert not lab.ends(long.message)
    done(lab, [long, *sent])
    lab.wait(lambda: not draining.alive(), 30, "the worker to end")
    assert draining.process.returncode == 0 and len(lab.starts(long.message)) == 1


def test_what_waits_comes_back_in_its_old_order(lab):
    """Messages with a countdown go to the end where they are taken, the oldest last, and count as not delivered."""
    lab = lab()
    (draining,) = lab.start_workers(1, concurrency=1)
    waiting = [lab.sender.work(number, 0, countdown=60) for number in range(2, 6)]
    long = run(lab, 6)
    client = lab.client()
    lab.wait(lambda: client.hlen("redelivery.leases") == 5, 10, "the messages to be taken")
    client.lpush("lab", "behind")
    draining.drain()
    lab.wait(lambda: client.llen("lab") == 5, 10, "the messages to be back")
    behind, *back = client.lrange("lab", 0, -1)
    assert behind == b"behind"
    assert [one.message in text.decode() for one, text in zip(waiting, reversed(back), strict=True)] == [
        True
    ] * 4
    assert b'"redelivered": true' not in b"".join(back)
    lab.wait(lambda: lab.ends(long.message) and not draining.alive(), 30, "the worker to end")


def test_worker_that_ends_leaves_no_trace(lab):
    """What waits for its rate limit has not started, and goes back as it came."""
    lab = lab()
    (worker,) = lab.start_workers(1)
    with Celery(broker=json.loads(lab.spec.read_text())["broker"], set_as_current=False) as app:
        assert app.control.rate_limit(WORK, "1/m", reply=True, timeout=10, limit=1)
    done(lab, [run(lab, 0)])
    lab.sender.work(2, 0)
    client = lab.client()
    lab.wait(lambda: b" waits " in b"".join(client.hvals("redelivery.leases")), 10, "the next one to wait")
    worker.drain()
    lab.wait(lambda: client.llen("lab"), 10, "it to be back")
    assert b'"redelivered": true' not in client.lindex("lab", 0)
    lab.wait(lambda: not worker.alive(), 30, "the worker to end")
    assert lab.client().keys("redelivery.*") == [b"redelivery.look"]
