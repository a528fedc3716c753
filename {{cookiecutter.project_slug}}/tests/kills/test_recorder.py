"""From Redis to the database: each record once, whoever moves it, and nothing lost while the database is away."""

import json
import os
import subprocess
import sys
import threading

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from redis import Redis

from redelivery import kills, recorder
from redelivery.models import Kill, Parked
from redelivery.testing import processes
from tests.kills.test_decisions import payload

pytestmark = pytest.mark.django_db(transaction=True)


def key(name):
    return f"shop.redelivery.{name}"


@pytest.fixture
def client(shared_redis):
    with Redis("127.0.0.1", port=shared_redis.port) as client:
        yield client


def push_kill(client, tag="tag-1", number=1, **changes):
    one = kills.Interrupted(payload(), tag, "main", "one@here:12:abc:r7", "worker gone")
    record = json.loads(kills.judge(one)[1]) | {"delivery": number} | changes
    client.lpush(key("kills"), json.dumps(record))


def push_parked(client, raw=None, **changes):
    raw = json.dumps(payload(7)) if raw is None else raw
    item = json.loads(kills.parked(raw, key="main\x06\x163", reason="why", worker="one@here:1:a:r7"))
    client.lpush(key("parked"), json.dumps(item | changes))


def left(client):
    return client.llen(key("kills")), client.llen(key("parked"))


def test_everything_is_moved(client):
    for number in range(250):
        push_kill(client, number=number)
    push_parked(client)
    recorder.flush(client, key)
    assert (Kill.objects.count(), left(client)) == (250, (0, 0))
    kill = Kill.objects.get(delivery=7)
    assert (kill.message, kill.task, kill.cause) == ("tag-1", "shop.tasks.mail", "worker gone")
    assert (kill.worker, kill.outcome, kill.at.tzinfo is not None) == ("one@here", "redelivered", True)
    parked = Parked.objects.get()
    assert (parked.message, parked.task, parked.queue, parked.state) == (
        "tag-1",
        "shop.tasks.mail",
        "main",
        "waiting",
    )


def test_moved_twice_is_stored_once(client):
    """As after a kill between the database and Redis; the outcome that was stored first stays."""
    push_kill(client)
    push_kill(client, outcome="acked")
    push_parked(client)
    same = client.lindex(key("parked"), 0)
    recorder.flush(client, key)
    client.lpush(key("parked"), same)
    recorder.flush(client, key)
    assert [kill.outcome for kill in Kill.objects.all()] == ["redelivered"]
    assert (Parked.objects.count(), left(client)) == (1, (0, 0))


def test_two_messages_with_one_text_are_two(client):
    """What cannot be read has no identity, and two of them are two."""
    push_parked(client, "no json")
    push_parked(client, "no json")
    recorder.flush(client, key)
    assert Parked.objects.filter(task="unreadable message").count() == 2


def test_two_workers_move_at_once(client):
    for number in range(60):
        push_kill(client, number=number)
        push_parked(client)
    threads = [threading.Thread(target=move, args=(client,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (Kill.objects.count(), Parked.objects.count(), left(client)) == (60, 60, (0, 0))


def move(client):
    try:
        recorder.flush(client, key)
    finally:
        connection.close()


def test_database_away_leaves_everything_in_redis(client, monkeypatch):
    push_kill(client)

    def away(*args, **options):
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "_store_kill", away)
        with pytest.raises(OperationalError):
            recorder.flush(client, key)
    assert left(client) == (1, 0)
    recorder.flush(client, key)
    assert Kill.objects.count() == 1


@pytest.mark.parametrize(
    "text", ["NUL \0", "half \ud800 a pair", "x" * 5000], ids=["NUL", "surrogate", "long"]
)
def test_any_text_can_be_stored(client, text):
    """Names come from messages, and PostgreSQL takes neither NUL nor half of a pair."""
    push_kill(client, task=text, tag=text)
    push_parked(client, json.dumps(payload(task=text)))
    push_parked(client, f"not JSON {text}".encode(errors="replace").decode())
    client.lpush(
        key("parked"), b'{"raw": "\xff\xfe", "key": "main", "reason": "r", "worker": "w:1:a", "time": 1.5}'
    )
    recorder.flush(client, key)
    assert (Kill.objects.count(), Parked.objects.count(), left(client)) == (1, 3, (0, 0))


def test_nothing_to_do_costs_no_query(client):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        recorder.flush(client, key)
    assert len(queries) == 0


def test_thread_tries_again_until_the_database_is_back(monkeypatch):
    """It is asked from the event loop, and never makes that wait."""
    stored, asked = [], threading.Event()

    def store(text):
        asked.set()
        if not back.is_set():
            raise OperationalError("away")
        stored.append(json.loads(text))

    back = threading.Event()
    monkeypatch.setattr(recorder, "_store_kill", store)
    thread = recorder.Recorder()
    monkeypatch.setattr(recorder, "_recorder", thread)
    thread.start()
    recorder.later({"one": 1})
    assert asked.wait(10)
    recorder.later({"two": 2})
    back.set()
    processes.wait_until(lambda: stored == [{"one": 1}, {"two": 2}], 20, "both records")
    thread.end()
    assert not thread.is_alive()


def test_last_records_are_written_at_the_end(monkeypatch):
    stored = []
    monkeypatch.setattr(recorder, "_store_kill", stored.append)
    thread = recorder.Recorder()
    thread.start()
    thread.records.append({"last": 1})
    thread.end()
    assert stored == ['{"last": 1}']


FORK = """
import os, sys, threading, time
import django

django.setup()
from redelivery import recorder

recorder.FORK_S = float(sys.argv[1])
recorder._keep_from_forks()
begun, done = threading.Event(), threading.Event()

def write():
    with recorder._at_database:
        begun.set()
        time.sleep(float(sys.argv[2]))
        done.set()

threading.Thread(target=write, daemon=True).start()
begun.wait()
child = os.fork()
if not child:
    os._exit(0)
print(done.is_set(), flush=True)
os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("patience_s", "writes_s", "waited"), [("60", "0.5", "True"), ("0.1", "60", "False")]
)
def test_no_pool_process_is_forked_while_sqlite_is_written_to(settings, patience_s, writes_s, waited):
    """A child would take the lock of SQLite for its own, for ever; and a database that hangs stops no fork."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, patience_s, writes_s],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DATABASE_URL": "sqlite:///db.sqlite3"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == waited, done.stderr
