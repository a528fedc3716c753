"""Real workers on a real Redis: one record for each interrupted delivery, and poison out of the way."""

import json
import os
import signal
import time

import pytest
from redis import Redis

from redelivery.testing import processes
from redelivery.testing.servers import redis_server
from tests.kills.shop import Shop, terminate

LEASE_S = 6


@pytest.fixture
def make_shop(tmp_path):
    """Make a `Shop` whose workers count as dead after a short while; with ``durable`` its Redis survives a restart."""
    shops = []

    def make(durable=False, **options):
        (tmp_path / "redis").mkdir()
        server = servers.enter_context(redis_server(tmp_path / "redis" if durable else None))
        shops.append(Shop(tmp_path, server, lease_s=LEASE_S, **options))
        return shops[0]

    from contextlib import ExitStack

    with ExitStack() as servers:
        yield make
        for shop in shops:
            shop.end()


FACTS = ("cause", "outcome", "delivery")
CHILD = "child killed by signal {0} ({1})"


def one_that_waits(shop, task="patient"):
    """Start a worker in which a task waits; return the worker and the task's id."""
    worker = shop.start_worker()
    (task_id,) = shop.publish((task, "wait"))
    shop.wait_for(shop.children, "the task to wait")
    return worker, task_id


def end_of(shop, task_id, starts, *records, or_cause=""):
    """The task ends, having started so often, with these records and no other."""
    shop.go_on()
    shop.wait_for(lambda: shop.starts(task_id) == starts and shop.quiet(), "the task to end")
    shop.wait_for(lambda: len(shop.kills("id")) >= len(records), "the records")
    found = [(records[0][0] if row[0] == or_cause else row[0], *row[1:]) for row in shop.kills(*FACTS)]
    assert found == list(records)
    (task, digest, release), *_ = set(shop.kills("task", "length(args_digest)", "release"))
    assert (task, digest, release) == ("shop.tasks.patient", 64, "r7")


def test_sigkill_of_a_child(make_shop):
    shop = make_shop()
    _, task_id = one_that_waits(shop)
    os.kill(*shop.children(), signal.SIGKILL)
    end_of(shop, task_id, 2, (CHILD.format(9, "SIGKILL"), "redelivered", 1))
    assert "redelivered=yes delivery=2 finished" in shop.log()


def test_sigterm_of_main_and_children(make_shop):
    shop = make_shop()
    worker, task_id = one_that_waits(shop)
    terminate(worker.pid, *shop.children())
    worker.wait(30)
    shop.start_worker()
    # Seen on a busy machine: the worker ends before its pool has said that the process is gone.
    end_of(
        shop,
        task_id,
        2,
        (CHILD.format(15, "SIGTERM"), "redelivered", 1),
        or_cause="child lost as the worker ended",
    )


def test_sigkill_of_the_worker(make_shop):
    shop = make_shop()
    worker, task_id = one_that_waits(shop)
    processes.kill_group(worker)
    shop.start_worker()
    end_of(shop, task_id, 2, ("worker gone", "redelivered", 1))
    assert shop.kills("worker") == [("w0@here",)]


def test_drain_that_took_too_long(make_shop):
    shop = make_shop()
    worker, task_id = one_that_waits(shop)
    worker.terminate()
    shop.wait_for(lambda: "Warm shutdown" in shop.log(), "the drain to begin")
    with Redis("127.0.0.1", port=shop.server.port) as client:
        shop.wait_for(
            lambda: b" drains " in b"".join(client.hvals("redelivery.leases")),
            "it to be known",
        )
    processes.kill_group(worker)
    shop.start_worker()
    end_of(shop, task_id, 2, ("drain timeout", "redelivered", 1))


def test_cold_shutdown(make_shop):
    shop = make_shop()
    worker, task_id = one_that_waits(shop)
    time.sleep(
        1
    )  # Celery hangs when the process that it ends still writes that it has begun (seen, also bare)
    os.kill(worker.pid, signal.SIGQUIT)
    worker.wait(30)
    shop.start_worker()
    end_of(shop, task_id, 2, ("cold shutdown", "redelivered", 1))


def test_what_is_no_kill_leaves_no_record(make_shop):
    """An ordinary run, a retry, a soft limit, a revoke, and a drain in which a task ends by itself."""
    shop = make_shop()
    with shop.worker() as worker:
        ids = shop.publish(("work", "nothing"), ("work", "retry"), ("work", "end_at_the_soft_limit"))
        shop.wait_for(lambda: shop.starts() == 4 and shop.quiet(), "the tasks to end")
        (revoked,) = shop.publish(("patient", "wait"))
        shop.wait_for(shop.children, "the task to wait")
        shop.revoke(revoked)
        shop.wait_for(shop.quiet, "the revoked task to end")
        (last,) = shop.publish(("patient", "wait"))
        shop.wait_for(lambda: shop.starts(last), "the last task")
        worker.terminate()
        shop.wait_for(lambda: "Warm shutdown" in shop.log(), "the drain to begin")
        shop.go_on()
        worker.wait(30)
    assert [shop.starts(task_id) for task_id in (*ids, revoked, last)] == [1, 2, 1, 1, 1]
    assert (shop.kills("id"), shop.rows("parked", "id")) == ([], [])
    assert shop.left_in_redis() == 0


POISONS = {
    # Longer than the pool may take to see that a process is gone (5 s, measured).
    "kill_the_child": ("patient", CHILD.format(9, "SIGKILL")),
    "kill_the_worker": ("patient", "worker gone"),
    "run_into_the_hard_limit": ("work", "hard time limit"),
}


@pytest.mark.parametrize("poison", POISONS)
def test_poison_is_parked_and_its_neighbours_finish(make_shop, poison):
    """It starts exactly ``crash_retries`` + 1 times; a dead worker and a restart of Redis change nothing."""
    shop = make_shop(durable=True, crash_retries=2)
    task, cause = POISONS[poison]
    shop.keep_a_worker()
    ids = shop.publish((task, poison), ("patient", "nothing", 100))
    if poison == "kill_the_worker":
        shop.wait_for(lambda: shop.workers[0].poll() is not None, "the first crash")
        shop.server.stop()
        shop.server.start()
    shop.wait_for(lambda: shop.keep_a_worker() and shop.rows("parked", "id"), "it to be parked", 120)
    shop.wait_for(lambda: shop.keep_a_worker() and shop.quiet(), "the neighbours to end")
    assert shop.starts(ids[0]) == 3
    records = [row[1:] for row in shop.kills("task_id", *FACTS) if row[0] == ids[0]]
    assert records == [(cause, "redelivered", 1), (cause, "redelivered", 2), (cause, "parked", 3)]
    assert all(shop.starts(task_id) for task_id in ids[1:])
    ((task_id, state, reason),) = shop.rows("parked", "task_id", "state", "reason")
    assert (task_id, state) == (ids[0], "waiting") and reason.startswith(
        "crashed 3 times (crash_retries = 2)"
    )
    (line,) = [line for line in shop.log().splitlines() if f"{ids[0]}] is parked" in line]
    assert "ERROR" in line


def test_replayed_poison_may_crash_as_often_again(make_shop):
    shop = make_shop(crash_retries=0)
    with shop.worker():
        (task_id,) = shop.publish(("patient", "kill_the_child"))
        shop.wait_for(lambda: len(shop.rows("parked", "id")) == 1, "it to be parked")
        shop.shell(
            "from redelivery.models import Parked; from redelivery.parking import replay; "
            "replay(Parked.objects.get(), 'ann')"
        )
        shop.wait_for(lambda: len(shop.rows("parked", "id")) == 2, "it to be parked again")
    assert shop.starts(task_id) == 2
    assert [row[1:] for row in shop.kills("id", "outcome", "delivery")] == [("parked", 1), ("parked", 2)]
    assert shop.rows("parked", "state", "settled_by") == [("replayed", "ann"), ("waiting", "")]


def test_unreadable_and_unknown_messages_are_parked_and_the_worker_lives(make_shop):
    shop = make_shop()
    texts = ["no json", "{}", json.dumps({"properties": {}}), "[" * 3000, "no json"]
    with shop.worker() as worker:
        shop.shell("celery_app.send_task('shop.tasks.other', args=[7], queue='main')")
        with Redis("127.0.0.1", port=shop.server.port) as client:
            message = json.loads(shop.template_message())
            for changes in (
                {"headers": {}},
                {"body": "?"},
                {"body": "Nw=="},
                {"content-type": "application/x-python-serialize"},
            ):
                tag = {**message["properties"], "delivery_tag": str(changes)}
                texts.append(json.dumps({**message, "properties": tag, **changes}))
            client.lpush("main", *texts)
        (task_id,) = shop.publish(("work", "nothing"))
        shop.wait_for(lambda: shop.starts(task_id), "the task behind them")
        shop.wait_for(lambda: len(shop.rows("parked", "id")) == len(texts) + 1, "all to be parked")
        assert worker.poll() is None and shop.quiet()
    parked = shop.rows("parked", "task", "raw", "reason")
    assert sum(reason.startswith("no task of this name") for *_, reason in parked) == 1
    assert sorted(raw for _, raw, _ in parked if "shop.tasks.other" not in raw) == sorted(texts)
    assert len([line for line in shop.log().splitlines() if "is parked until" in line]) == len(parked)
    assert shop.kills("id") == []
