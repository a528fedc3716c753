"""Celery's remote control, which goes by fan-out on the same Redis, works as with kombu's own transport."""

import json

from celery import Celery

from tests.broker.tools import run


def test_control(lab):
    lab = lab()
    lab.start_workers(2, concurrency=1)
    app = Celery(broker=json.loads(lab.spec.read_text())["broker"], set_as_current=False)
    long, waiting = run(lab, 60), lab.sender.work(2, 0, countdown=60)
    inspect = app.control.inspect(timeout=10, limit=2)
    assert len(app.control.ping(timeout=10, limit=2)) == 2
    assert [one["id"] for found in inspect.active().values() for one in found] == [long.message]
    lab.wait(lambda: any(inspect.scheduled().values()), 10, "the message to be waiting")
    # An idle worker is told at once only in the third protocol; in the second Redis says nothing, and no error either.
    told = [one for one in lab.client().client_list() if "t" in one["flags"]]
    assert len(told) >= 2 and {one.get("resp", "3") for one in told} == {"3"}
    app.control.revoke(long.message, terminate=True)
    app.control.revoke(waiting.message, terminate=True)
    after = lab.sender.work(3, 0)
    lab.wait(lambda: lab.ends(after.message), 20, "the next message", lab.workers[0])
    client = lab.client()
    lab.wait(lambda: client.hlen("unacked") == 1, 10, "only what waits to be held")
    app.control.cancel_consumer("lab", reply=True, timeout=10, limit=2)
    one = lab.sender.work(4, 0)
    assert lab.within(lambda: lab.starts(one.message), 2) is None
    app.control.add_consumer("lab", reply=True, timeout=10, limit=2)
    lab.wait(lambda: lab.ends(one.message), 20, "it to be consumed again", lab.workers[0])
    assert not lab.starts(waiting.message)
    app.close()
