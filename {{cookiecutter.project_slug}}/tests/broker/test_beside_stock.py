"""Ours and kombu's own transport on the same queues: beside each other, and switched over with messages in flight."""

import json

from tests.broker.conftest import LEASE_S
from tests.broker.tools import done, owner, run, starts


def other(lab, redelivery_transport):
    """Have the workers that are started from now on use the other transport."""
    spec = json.loads(lab.spec.read_text())
    spec |= {"redelivery_transport": redelivery_transport, "variant": "the other"}
    lab.spec.write_text(json.dumps(spec))


def test_healthy_task_of_a_stock_worker_starts_once(lab):
    """Ours is idle beside it, and its leases are much shorter: it gives back only what has one."""
    lab = lab("policy")
    lab.start_workers(1)
    task = run(lab, 5 * LEASE_S)
    other(lab, redelivery_transport=True)
    lab.start_workers(1)
    done(lab, [task])
    assert starts(lab, [task]) == [1]


def test_stock_worker_takes_over(lab):
    """The setting is turned off while messages wait and one runs: each is run once."""
    lab = lab()
    lab.start_workers(1)
    task = run(lab, 4)
    other(lab, redelivery_transport=False)
    lab.start_workers(1)
    owner(lab, task).drain()
    sent = [lab.sender.work(number, 0.1) for number in range(10, 16)]
    done(lab, [task, *sent])
    assert starts(lab, [task, *sent]) == [1] * 7


def test_message_of_a_killed_stock_worker(lab):
    """It has no lease, so it waits for the stock timeout; then ours gives it back."""
    lab = lab("policy", transport_options={"stock_visibility_s": 12})
    (stock,) = lab.start_workers(1)
    task = run(lab, 60)  # longer than it takes to start another worker on a busy machine
    other(lab, redelivery_transport=True)
    lab.start_workers(1)
    stock.kill()
    lab.wait(lambda: len(lab.starts(task.message)) == 2, 40, "the task to start elsewhere", lab.workers[1])
    first, second = lab.starts(task.message)
    assert second.at - first.at > 12 - 1
    assert "delivery=2 started" in lab.workers[1].log.read_text()
