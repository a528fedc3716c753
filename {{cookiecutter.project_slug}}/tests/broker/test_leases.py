"""What is held is run once, however long it takes; what a dead worker held is run elsewhere."""

import signal
import time

from redelivery.broker import holder
from tests.broker.conftest import LEASE_S
from tests.broker.tools import done, owner, run, starts

LONG_S = 5 * LEASE_S


def test_healthy_task_starts_once(lab):
    """However long it and a countdown are, also in a drain, and with hosts whose clocks are a minute off."""
    lab = lab()
    lab.start_worker(clock_s=60)
    lab.start_worker(clock_s=-60)
    lab.start_worker()
    for worker in lab.workers:
        lab.wait(worker.is_ready, 60, "a worker to be ready", worker)
    tasks = [run(lab, LONG_S, number) for number in range(6)]  # two in each
    owner(lab, tasks[0]).drain()
    done(lab, tasks)
    assert starts(lab, tasks) == [1] * 6


def test_message_with_a_countdown_starts_once(lab):
    lab = lab()
    lab.start_workers(2)
    waiting = [lab.sender.work(number, 0, countdown=LONG_S) for number in range(2)]
    done(lab, waiting)
    assert starts(lab, waiting) == [1, 1]


def test_task_of_a_killed_worker_starts_elsewhere(lab):
    """With the default settings: the lease runs out, and any other worker gives the message back."""
    lab = lab(transport_options={"lease_s": 12})
    lab.start_workers(2)
    task = run(lab, 5)
    owner(lab, task).kill()
    assert lab.within(lambda: len(lab.starts(task.message)) == 2, 20) is not None
    done(lab, [task])


def test_countdown_of_a_killed_worker_is_no_crash(lab):
    """It had not started, so nothing counts against it; it comes back as it was."""
    lab = lab()
    (first,) = lab.start_workers(1)
    waiting = lab.sender.work(1, 0, countdown=15)
    client = lab.client()
    lab.wait(lambda: client.hlen("redelivery.leases"), 10, "the message to be taken")
    lab.start_workers(1)
    first.kill()
    done(lab, [waiting])
    assert "delivery=1 started" in lab.workers[1].log.read_text()


def test_redis_that_stands_still(lab):
    """For three leases: nobody could renew, so nobody gives anything back before all could."""
    lab = lab()
    lab.start_workers(2)
    tasks = [run(lab, 4 * LEASE_S, number) for number in range(4)]
    lab.server.process.send_signal(signal.SIGSTOP)
    time.sleep(3 * LEASE_S)
    lab.server.process.send_signal(signal.SIGCONT)
    done(lab, tasks)
    assert starts(lab, tasks) == [1] * 4


def test_lease_that_changed_is_not_given_back(lab):
    """Who looked a moment ago and finds another lease does nothing: give_back.lua compares."""
    lab = lab()
    lab.start_workers(1)
    task = run(lab, 3)
    client = lab.client()
    script = client.register_script(holder.COMMON + holder.TEXTS[2])
    ((tag, lease),) = client.hgetall("redelivery.leases").items()
    for seen in (b"1.5 " + lease.split(b" ", 1)[1], b"", b"1.5"):
        assert script(args=["", "somebody", tag, seen, "lab", "RPUSH", "text", ""]) == 0
    assert client.hexists("unacked", tag) and not client.exists("lab")
    done(lab, [task])


def test_two_workers_that_look_at_once_give_back_once(server):
    """Both saw the same lease run out; the second one finds the message in its queue, and must not add a copy."""
    take, give_back = (server.register_script(holder.COMMON + holder.TEXTS[which]) for which in (0, 2))
    text = '{"properties": {"delivery_tag": "tag"}}'
    server.lpush("lab", text)
    take(keys=["lab"], args=["", "dead:1:a"])
    lease = server.hget("redelivery.leases", "tag")
    first, second = (
        give_back(args=["", worker, "tag", lease, "lab", "LPUSH", text, "record"])
        for worker in ("b:1:b", "c:1:c")
    )
    assert (first, second) == (1, 0)
    assert (server.llen("lab"), server.llen("redelivery.kills")) == (1, 1)


def test_time_in_which_nobody_looked_does_not_count(server):
    """A gap shortens no lease by more than a sixth: who could not renew meanwhile has time to."""
    take, look = (server.register_script(holder.COMMON + holder.TEXTS[which]) for which in (0, 1))
    look(args=["", "b:1:b", 0.6, 60])
    server.lpush("lab", '{"properties": {"delivery_tag": "tag"}}')
    take(keys=["lab"], args=["", "dead:1:a"])
    time.sleep(0.7)
    looks = 0
    while not look(args=["", "b:1:b", 0.6, 60])[1]:
        looks += 1
        server.hset("redelivery.look", "at", 0)
    assert looks in (6, 7)


def test_killed_between_any_two_steps_nothing_is_nowhere(lab):
    """Kill the worker again and again while it takes: each message is run, or still in Redis."""
    lab = lab()
    sent = []
    for round_ in range(6):
        worker = lab.start_worker()
        lab.wait(worker.is_ready, 60, "the worker to be ready", worker)
        sent += [lab.sender.work(round_ * 100 + number, 0) for number in range(40)]
        worker.kill()
    lab.start_workers(1)
    done(lab, sent)
