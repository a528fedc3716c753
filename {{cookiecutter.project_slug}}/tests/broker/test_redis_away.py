"""Redis is restarted, drops connections, answers late, is full, takes no writes: workers live, and go on."""

import os
import signal
import time
from contextlib import closing

import pytest
from transports.lab import group_of
from transports.proxy import Proxy

from redelivery.broker import holder
from tests.broker.conftest import LEASE_S
from tests.broker.tools import done, run, starts


def test_restart_under_load(lab):
    """With an append-only file: the workers live, nothing is lost, and what ran meanwhile ran once."""
    lab = lab(durable=True)
    lab.start_workers(2)
    sent = [run(lab, 8, number) for number in range(3)]
    for round_ in range(2):
        sent += [lab.sender.work(10 * round_ + number, 0.2) for number in range(10, 18)]
        lab.restart_redis(1)
        after = lab.sender.work(100 + round_, 0)
        assert lab.within(lambda after=after: lab.starts(after.message), 30) is not None
        sent.append(after)
    done(lab, sent)
    assert all(worker.alive() for worker in lab.workers)
    assert starts(lab, sent[:3]) == [1, 1, 1]


def drop(client):
    """End every connection but the client's own."""
    client.execute_command("CLIENT", "KILL", "SKIPME", "yes")


def test_connection_that_is_lost_while_a_task_starts(lab):
    """What a pool process was given runs there once, also if it has not said so; an answer that was lost comes back."""
    lab = lab()
    (worker,) = lab.start_workers(1, concurrency=1)
    (child,) = set(group_of(worker.process.pid)) - {worker.process.pid}
    client = lab.client()
    os.kill(child, signal.SIGSTOP)
    try:
        given = lab.sender.work(1, 1)
        lab.wait(lambda: client.hlen("redelivery.leases"), 10, "the message to be taken")
        (lease,) = client.hvals("redelivery.leases")
        lost = lab.sender.work(2, 0, queue="lab2")
        take = client.register_script(holder.COMMON + holder.TEXTS[0])
        assert take(keys=["lab2"], args=["", lease.split()[2]])
        time.sleep(0.5)
        drop(client)
        lab.wait(lambda: client.llen("lab2"), 30, "what the worker never heard of to be back", worker)
    finally:
        os.kill(child, signal.SIGCONT)
    client.rename("lab2", "lab")
    done(lab, [given, lost])
    assert starts(lab, [given, lost]) == [1, 1]


def test_connections_that_go_dead(lab):
    """Nothing comes through any more and nobody says so, as when a firewall forgets them; new ones work."""
    lab = lab()
    with closing(Proxy(lab.server.port)) as proxy:
        lab.use_broker(f"redis://127.0.0.1:{proxy.port}/0")
        lab.start_workers(1)
        task = run(lab, 8)
        proxy.swallow()
        after = lab.sender.work(2, 0)
        assert lab.within(lambda: lab.starts(after.message), 30) is not None
        done(lab, [task, after])
    assert starts(lab, [task, after]) == [1, 1]


def pause(client):
    """Answer nobody for longer than two leases."""
    client.execute_command("CLIENT", "PAUSE", str(int(2.5 * LEASE_S * 1000)), "ALL")
    time.sleep(2.5 * LEASE_S)


def fill(client):
    """Take nothing that needs memory for three leases, as at `maxmemory` with `noeviction`."""
    client.config_set("maxmemory", 1)
    time.sleep(3 * LEASE_S)
    client.config_set("maxmemory", 0)


def only_read(client):
    """Take no write for three leases, as a replica."""
    client.replicaof("127.0.0.1", 1)
    time.sleep(3 * LEASE_S)
    client.replicaof("NO", "ONE")


@pytest.mark.parametrize("happen", [drop, pause, fill, only_read])
def test_worker_goes_on(lab, happen):
    """What runs, runs once; what waits for its time still comes; what is sent afterwards is taken."""
    lab = lab()
    lab.start_workers(2)
    tasks = [run(lab, 5, number) for number in range(3)]
    waiting = lab.sender.work(10, 0, countdown=6)
    queued = [lab.sender.work(20 + number, 0.1) for number in range(8)]
    time.sleep(0.5)
    happen(lab.client())
    after = lab.sender.work(99, 0)
    assert lab.within(lambda: lab.starts(after.message), 30) is not None
    done(lab, [*tasks, waiting, *queued, after])
    assert all(worker.alive() for worker in lab.workers)
    assert starts(lab, [*tasks, waiting]) == [1] * 4


def test_worker_that_starts_while_redis_is_full(lab):
    lab = lab()
    client = lab.client()
    client.config_set("maxmemory", 1)
    worker = lab.start_worker()
    lab.wait(
        lambda: "OutOfMemoryError" in worker.tail() or "command not allowed" in worker.tail(),
        60,
        "it to be told",
    )
    client.config_set("maxmemory", 0)
    lab.wait(worker.is_ready, 60, "the worker to be ready", worker)
    done(lab, [lab.sender.work(1, 0)])
