"""Messages of every kind: priorities, several queues, two of one tag, and what nobody can read."""

import json
from pathlib import Path
from queue import Empty
from types import SimpleNamespace

import pytest

from redelivery.broker import holder
from redelivery.broker.channel import Channel
from tests.broker.tools import done, run

MESSAGE = {"properties": {"delivery_tag": "a-tag"}, "headers": {}, "body": ""}


def test_priorities_and_several_queues(lab):
    """Urgent ones first; and an idle worker is woken for each priority of each queue."""
    lab = lab()
    lab.start_workers(1, "lab,lab2,lab3", concurrency=1)
    first = run(lab, 2)
    sent = [lab.sender.work(number, 0, priority=number) for number in (9, 3, 0, 6)]
    done(lab, [first, *sent])
    assert [start.number for start in lab.starts()] == [1, 0, 3, 6, 9]
    for queue in ("lab3", "lab2", "lab"):
        for priority in (9, 0):
            done(lab, [lab.sender.work(1, 0, queue=queue, priority=priority)])


def test_two_messages_of_one_tag(lab):
    """As when a publisher is not sure that its message came through: neither takes the other's place."""
    lab = lab()
    lab.start_workers(1)
    task = run(lab, 2)
    client = lab.client()
    (stored,) = client.hvals("unacked")
    client.lpush("lab", json.dumps(json.loads(stored)[0]))
    lab.wait(lambda: client.hlen("unacked") == 2, 5, "the second to be taken")
    done(lab, [task])
    assert len(lab.ends(task.message)) == 2


def test_message_is_registered_in_the_step_that_takes_it(server):
    """So that a SIGKILL never finds it nowhere; with the text untouched, and where a stock worker looks for it."""
    text = '{"properties": {"delivery_tag": "a-tag", "delivery_info": {"routing_key": "lab"}}, "body": {"empty": []}}'
    server.lpush("lab", text)
    server.register_script(holder.COMMON + holder.TEXTS[0])(keys=["lab"], args=["", "node:1:a"])
    assert server.llen("lab") == 0
    assert server.hget("unacked", "a-tag") == f'[{text}, "", "lab"]'.encode()
    since = server.zscore("unacked_index", "a-tag")
    seconds, clock, rest = server.hget("redelivery.leases", "a-tag").decode().split(" ", 2)
    assert (float(seconds), float(clock), rest) == (since, since, "node:1:a runs lab")
    assert abs(since - server.time()[0]) < 5


@pytest.mark.parametrize("buffered", [True, False])
def test_word_of_redis_that_came_with_the_answer(buffered):
    """The client has read it already, so no poll will see it: the channel must look again at once."""
    channel = Channel.__new__(Channel)
    connection = SimpleNamespace(can_read=lambda: buffered, read_response=lambda: [])
    vars(channel).update(takes=True, _brpop_sent_at=1, client=SimpleNamespace(connection=connection))
    with pytest.raises(Empty):
        channel._brpop_read()
    assert channel._in_poll is (None if buffered else connection)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[" * 3000 + "]" * 3000,
        b'{"properties": {"delivery_tag": "\xff"}}',
        "{}",
        "7",
        json.dumps({**MESSAGE, "properties": {"delivery_tag": 7}}),
        "1e999",
    ],
    ids=["no JSON", "too deep", "no UTF-8", "no tag", "a number", "a tag that is none", "infinity"],
)
def test_script_parks_what_it_cannot_read(server, text):
    """In the step that takes it; and it takes the next one."""
    server.lpush("lab", text, json.dumps(MESSAGE))
    take = server.register_script(holder.COMMON + holder.TEXTS[0])
    key, tag, item, state = take(keys=["lab"], args=["", "node:1:a"])
    assert (key, tag, state) == (b"lab", b"", b"parked")
    key, tag, raw, state = take(keys=["lab"], args=["", "node:1:a"])
    assert (key, tag, json.loads(raw), state) == (b"lab", b"a-tag", MESSAGE, b"runs")
    assert take(keys=["lab"], args=["", "node:1:a"]) == []
    found = json.loads(item.decode(errors="surrogateescape"), strict=False)
    assert found["raw"].encode(errors="surrogateescape") == (text.encode() if isinstance(text, str) else text)
    assert server.lrange("redelivery.parked", 0, -1) == [item]
    assert (server.llen("lab"), server.hlen("unacked")) == (0, 1)


def test_worker_outlives_what_it_cannot_read(lab):
    lab = lab()
    (worker,) = lab.start_workers(1)
    client = lab.client()
    bad_body = {**MESSAGE, "properties": {"delivery_tag": "1", "body_encoding": "base64"}, "body": "1"}
    deep = json.dumps({**MESSAGE, "properties": {"delivery_tag": "2"}}).replace('""', "[" * 900 + "]" * 900)
    client.lpush("lab", "no JSON", json.dumps(bad_body), deep, json.dumps({**MESSAGE, "headers": []}))
    last = lab.sender.work(1, 0)
    lab.wait(lambda: lab.ends(last.message), 30, "the last message", worker)
    lab.wait(
        lambda: not client.exists("unacked", "lab", "redelivery.parked"),
        30,
        "them to be in the database",
        worker,
    )
    assert worker.alive() and worker.log.read_text().count("is parked until") == 4


def test_what_must_be_read_is_short():
    """The channel, its scripts and the lease, docstrings included."""
    files = {path.name: path for path in Path(holder.__file__).parent.iterdir()}
    files = {
        name: path
        for name, path in files.items()
        if name in ("channel.py", "lease.py") or path.suffix == ".lua"
    }
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items()}
    assert len(lines) == 6 and sum(lines.values()) < 250, lines
