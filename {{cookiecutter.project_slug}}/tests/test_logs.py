"""The log of a real worker: one line for each event of a task, and in it once who, whether again, and the guard."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest
import redis
from django.conf import settings

from redelivery.testing import processes
from service import own
from service.celery import app

LINE = re.compile(r"^[\d-]{10} [\d:,]+ (INFO|WARNING|ERROR) (?P<logger>[\w.]+) (?P<text>.*)$")


def deliver_again(port: int, queue: str) -> None:
    """Mark the newest message of a queue as one that was delivered before."""
    with redis.Redis("127.0.0.1", port=port) as client:
        message = json.loads(client.lpop(queue))
        message["properties"]["delivery_info"]["redelivered"] = True
        client.lpush(queue, json.dumps(message))


@contextlib.contextmanager
def worker(folder, **variables):
    """Run a worker of this service; gives a function that returns its lines as (logger, text)."""
    command = [sys.executable, "-m", "celery", "--quiet", "-A", "service", "worker"]
    log = folder / "log"
    with log.open("w") as file:
        process = processes.start(
            [*command, "--without-mingle", "--without-gossip", "--concurrency", "1"],
            cwd=settings.BASE_DIR,
            env={**os.environ, "BROKER_URL": app.conf.broker_url, "LOG_LEVEL": "INFO", **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )

    def lines() -> list[tuple[str, str]]:
        return [
            (found["logger"], found["text"])
            for found in map(LINE.match, log.read_text().splitlines())
            if found
        ]

    try:
        yield lines
    finally:
        processes.stop(process, 30)


def wait_for(lines, text: str, count: int = 1) -> None:
    processes.wait_until(
        lambda: sum(text in line for _, line in lines()) >= count, 30, f"{text!r} in the log"
    )


def test_lines_of_a_task(shared_redis, tmp_path):
    task = app.tasks["celery.accumulate"]
    first = task.delay(1).id
    again = task.delay(2).id
    deliver_again(shared_redis.port, app.conf.task_default_queue)
    with worker(tmp_path) as lines:
        wait_for(lines, "finished", 2)
    for task_id, redelivered, number in ((first, "no", 1), (again, "yes", "?")):
        assert [line for line in lines() if task_id in line[1]] == [
            ("celery.worker.strategy", f"Task celery.accumulate[{task_id}] received"),
            (
                "redelivery",
                f"celery.accumulate[{task_id}] redelivered={redelivered} delivery={number} started",
            ),
            (
                "redelivery",
                f"celery.accumulate[{task_id}] redelivered={redelivered} delivery={number} finished",
            ),
        ]


def test_failure_has_its_line_and_the_traceback_of_celery(shared_redis, tmp_path):
    task_id = app.tasks["celery.accumulate"].delay(index=7).id
    with worker(tmp_path) as lines:
        wait_for(lines, "raised unexpected")
    failure = "IndexError('tuple index out of range')"
    assert [line for line in lines() if task_id in line[1]][2:] == [
        ("redelivery", f"celery.accumulate[{task_id}] redelivered=no delivery=1 failed: {failure}"),
        ("celery.app.trace", f"Task celery.accumulate[{task_id}] raised unexpected: {failure}"),
    ]


@pytest.mark.skipif("onboarding" not in own.APPS, reason="needs the worked examples")
def test_decisions_of_the_guard(shared_redis, tmp_path, mail_server):
    from onboarding.tasks import send_welcome_email

    mail_server.behave()
    variables = {
        "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
        "CACHE_URL": shared_redis.url(1),
        "EMAIL_URL": f"smtp://127.0.0.1:{mail_server.port}",
    }
    key = manage(SIGN_UP, **variables)
    first = send_welcome_email.delay(key).id
    again = send_welcome_email.delay(key).id
    deliver_again(shared_redis.port, "email")
    with worker(tmp_path, **variables) as lines:
        wait_for(lines, "finished", 2)
    name = send_welcome_email.name
    assert [text for _, text in lines() if text.startswith(f"{name}[")] == [
        f"{name}[{first}] redelivered=no delivery=1 started",
        f"{name}[{first}] redelivered=no delivery=1 guard=run finished",
        f"{name}[{again}] redelivered=yes delivery=? started",
        f"{name}[{again}] redelivered=yes delivery=? guard=skip already sent; skipping redelivery",
        f"{name}[{again}] redelivered=yes delivery=? guard=skip finished",
    ]


SIGN_UP = """
from django.core.management import call_command
from onboarding.models import Submission
call_command("migrate", verbosity=0)
print(Submission.objects.create(name="Zoë", email="zoe@example.org").pk)
"""


def manage(code: str, **variables: str) -> str:
    """Run code in a process of its own, with these variables; return what it prints."""
    command = [sys.executable, "-c", f"import django; django.setup()\n{code}"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "service.settings", **variables}
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
