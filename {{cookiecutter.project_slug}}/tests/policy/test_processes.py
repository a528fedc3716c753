"""Real processes: what each does about a broken policy, what a worker refuses, the command."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from celery import Celery
from redis import Redis

from redelivery.testing import processes
from redelivery.testing.servers import redis_server
from tests.policy.tools import POLICY, Project

BROKEN = POLICY.replace('"late"', '"lat"')
MISTAKE = "ack_policy.toml:6: task shop.tasks.mail: ack 'lat' is not one of the ways to acknowledge"
WORKER = ("-m", "celery", "-A", "shop", "worker", "--without-mingle", "--without-gossip")


@pytest.fixture(scope="module")
def redis():
    with redis_server() as server:
        yield server


def in_one_line(result, status):
    """The process said the mistake once, without a traceback."""
    assert result.returncode == status, result.stdout
    assert result.stdout.count(MISTAKE) == 1, result.stdout
    assert "Traceback" not in result.stdout


@pytest.mark.parametrize(
    "arguments", [("check",), ("migrate", "--plan"), ("ack_policy",), ("ack_policy", "--live")]
)
def test_management_commands_report_a_broken_policy(tmp_path, arguments):
    in_one_line(Project(tmp_path, BROKEN).run("manage.py", *arguments), 1)


@pytest.mark.parametrize(
    "command",
    [
        WORKER,
        ("-m", "celery", "-A", "shop", "beat"),
        ("manage.py", "runserver", "--noreload", "127.0.0.1:0"),
        ("manage.py", "runserver", "127.0.0.1:0"),
        ("-c", "import shop.wsgi"),
    ],
    ids=["worker", "beat", "runserver", "runserver with reloader", "wsgi"],
)
def test_servers_refuse_a_broken_policy(tmp_path, command):
    in_one_line(Project(tmp_path, BROKEN).run(*command), 3)


def test_the_reloader_does_not_loop_over_a_broken_policy(tmp_path):
    """Its child is started again for the exit status 3."""
    in_one_line(Project(tmp_path, BROKEN).run("manage.py", "runserver", "127.0.0.1:0", RUN_MAIN="true"), 1)


def test_gunicorn_stops_at_a_broken_policy(tmp_path):
    if find_spec("gunicorn") is None:  # importing it would tell the settings that this process is gunicorn
        pytest.skip("gunicorn is not installed")
    command = ("-m", "gunicorn", "-b", f"127.0.0.1:{processes.free_port()}", "shop.wsgi")
    in_one_line(Project(tmp_path, BROKEN).run(*command, timeout_s=30), 3)


def test_check_reports_contradictions(tmp_path):
    project = Project(tmp_path, POLICY.replace("shop.tasks.mail", "shop.tasks.post"))
    result = project.run("manage.py", "check")
    assert result.returncode == 1
    for text in ("redelivery.E003) Task shop.tasks.mail", "redelivery.E004) ack_policy.toml:4"):
        assert text in result.stdout


def test_check_of_a_sound_project(tmp_path):
    result = Project(tmp_path).run("manage.py", "check", "--fail-level", "DEBUG")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (("-P", "threads"), {}, "cannot enforce time limits"),
        (("-P", "solo"), {}, "cannot enforce time limits"),
        (("-B",), {}, "run one celery beat"),
        (("-Q", "maim"), {}, "the policy has no such queue"),
        (("--prefetch-multiplier", "4"), {}, "--prefetch-multiplier 4 contradicts"),
        ((), {"REMAP_SIGTERM": "SIGQUIT"}, "REMAP_SIGTERM is set"),
    ],
    ids=["threads", "solo", "beat", "queue", "prefetch", "remap"],
)
def test_worker_refuses(tmp_path, redis, arguments, environment, says):
    result = Project(tmp_path, port=redis.port).run(*WORKER, *arguments, **environment)
    assert result.returncode == 3, result.stdout
    assert says in result.stdout and "Traceback" not in result.stdout
    assert result.stdout.count("redelivery: the worker does not start") == 1


def test_worker_refuses_what_the_checks_find(tmp_path, redis):
    project = Project(tmp_path, POLICY.replace("shop.tasks.mail", "shop.tasks.post"), redis.port)
    result = project.run(*WORKER)
    assert result.returncode == 3, result.stdout
    assert "redelivery.E003: Task shop.tasks.mail" in result.stdout and "Traceback" not in result.stdout


def test_table_and_json(tmp_path):
    project = Project(tmp_path)
    text = project.run("manage.py", "ack_policy").stdout
    for part in (
        "shop.tasks.mail",
        "marker",
        "60 s",
        "54 s",
        "105 s",
        "465 s",
        "gap: killed after",
        "celery.chord",
        "crash retries",
        "60 s  3",
        "30 s  -",
    ):
        assert part in text
    data = json.loads(project.run("manage.py", "ack_policy", "--json").stdout)
    assert data["visibility_timeout_s"] == 465
    assert data["queues"]["main"] == {
        "concurrency": 2,
        "stop_timeout_s": 105,
        "tasks": ["shop.tasks.mail", "shop.tasks.count"],
        "line": 1,
    }
    assert data["tasks"]["shop.tasks.mail"]["annotation"]["acks_late"] is True
    assert "celery.chord_unlock" in data["exempt"]


@pytest.mark.parametrize("arguments", [("--live",), ("--live", "--json")])
def test_live_without_a_broker(tmp_path, arguments):
    result = Project(tmp_path, port=1).run("manage.py", "ack_policy", *arguments, timeout_s=20)
    assert result.returncode == 1
    assert "cannot be reached" in result.stdout and "Traceback" not in result.stdout


def test_live_without_a_worker(tmp_path):
    with redis_server() as server:
        project = Project(tmp_path, port=server.port)
        result = project.run("manage.py", "ack_policy", "--live", "--timeout", "0.5")
        assert (result.returncode, result.stdout) == (1, "No worker answered within 0.5 s.\n")
        data = project.run("manage.py", "ack_policy", "--live", "--timeout", "0.5", "--json")
        assert data.returncode == 1 and json.loads(data.stdout)["holds"] is False


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "1000"])
def test_timeout_that_makes_no_sense(tmp_path, timeout):
    result = Project(tmp_path).run("manage.py", "ack_policy", "--live", "--timeout", timeout)
    assert result.returncode == 2 and "--timeout" in result.stdout


@pytest.fixture(scope="module")
def running(tmp_path_factory, redis):
    """A project with a worker that runs on its policy; the worker's log is ``project.log``."""
    project = Project(tmp_path_factory.mktemp("running"), port=redis.port)
    project.log = project.folder / "worker.log"
    with project.log.open("w") as log:
        worker = processes.start(
            [sys.executable, *WORKER, "-n", "one@here", "-l", "INFO"],
            cwd=project.folder,
            env=project.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        processes.wait_until(lambda: "ready." in project.log.read_text(), 30, "the worker")
        yield project
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)


def live(project, *arguments):
    result = project.run("manage.py", "ack_policy", "--live", "--timeout", "5", *arguments)
    assert "Traceback" not in result.stdout
    return result


def test_live_in_force(running):
    result = live(running)
    assert (result.returncode, result.stdout) == (0, "In force: 2 entries of the policy on one@here.\n")
    assert live(running, "--destination", "one@here").returncode == 0


def test_worker_takes_only_what_it_can_run(running, redis):
    """What has not started stays in the queue, for another worker; stock Celery takes twice as much as it can run."""
    queue = Redis.from_url(redis.url(0))
    before = len(running.log.read_text())

    def count(word):
        return running.log.read_text()[before:].count(word)

    with Celery(broker=redis.url(0), set_as_current=False) as sender:
        for _ in range(6):
            sender.send_task("shop.tasks.count", args=[4], queue="main")
    processes.wait_until(lambda: count("started") >= 2, 10, "two tasks to start")
    time.sleep(0.5)  # time enough to take more
    assert queue.llen("main") == 4
    processes.wait_until(lambda: count("finished") == 6, 60, "all tasks to finish")


def test_live_names_a_worker_that_does_not_answer(running):
    result = live(running, "--json", "--destination", "one@here", "two@here")
    assert result.returncode == 1
    assert json.loads(result.stdout)["differences"] == [
        {"worker": "two@here", "task": "-", "expected": "an answer", "found": "none within 5 s"}
    ]


def test_live_finds_what_differs(running, tmp_path):
    """A release with another policy asks the worker of this one."""
    text = POLICY.replace("time_limit_s = 60", "time_limit_s = 90").replace(
        "shop.tasks.count", "shop.tasks.visits"
    )
    newer = Project(tmp_path, text, running.port)
    newer.write("shop/tasks.py", "from celery import shared_task\n\n\n@shared_task\ndef mail(): ...\n")
    result = live(newer, "--json")
    assert result.returncode == 1
    found = {(it["task"], it["expected"], it["found"]) for it in json.loads(result.stdout)["differences"]}
    assert found == {
        ("shop.tasks.mail", "time_limit=90", "time_limit=60"),
        ("shop.tasks.mail", "soft_time_limit=81", "soft_time_limit=54"),
        ("shop.tasks.visits", "a task (ack_policy.toml:12)", "none of this name"),
        ("shop.tasks.count", "an entry in the policy", "none"),
        ("-", "visibility_timeout=525", "visibility_timeout=465"),
    }
    table = live(newer).stdout
    for part in ("one@here", "shop.tasks.mail", "time_limit=90", "time_limit=60"):
        assert part in table


def test_worker_takes_its_processes_from_the_policy(running):
    assert "concurrency: 2 (prefork)" in running.log.read_text()


def test_limits_of_a_message_do_not_beat_the_policy(running):
    """``send_task`` goes past the tasks of the sender; measured: such a limit would win."""
    code = "from shop import celery_app; celery_app.send_task('shop.tasks.count', args=(1.5,), time_limit=1)"
    before = len(running.log.read_text())
    result = running.run("-c", code)
    assert result.returncode == 0, result.stdout
    processes.wait_until(lambda: "finished" in running.log.read_text()[before:], 15, "the end of the task")
    log = running.log.read_text()[before:]
    assert "came with time_limit=1" in log and "ack_policy.toml:12" in log
    assert "Hard time limit" not in log


SANDBOX = """\
import os
import django

django.setup()
from redelivery.testing.sandbox import Addresses, project_app

Addresses(7, 8, "/tmp", {"default": "x.sqlite3"}).apply()
conf = project_app().conf
print(conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend, conf.task_always_eager)
"""


def test_no_sandbox_leads_to_the_real_broker(tmp_path):
    """Neither through variables that Celery reads before its settings, nor because tasks run eagerly."""
    project = Project(tmp_path)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + "CELERY_TASK_ALWAYS_EAGER = True\n")
    names = (
        "CELERY_BROKER_URL",
        "CELERY_BROKER_READ_URL",
        "CELERY_BROKER_WRITE_URL",
        "CELERY_RESULT_BACKEND",
    )
    result = project.run("-c", SANDBOX, **dict.fromkeys(names, "redis://127.0.0.1:9/5"))
    broker, results = "redis://127.0.0.1:7/0", "redis://127.0.0.1:7/1"
    assert result.stdout.split() == [broker, broker, broker, results, "False"]


def test_commands_under_another_name_report_a_broken_policy(tmp_path):
    """A project may call its manage.py as it likes, or make it an entry point."""
    project = Project(tmp_path, BROKEN)
    (tmp_path / "manage.py").rename(tmp_path / "shopctl")
    in_one_line(project.run("shopctl", "check"), 1)
    in_one_line(project.run("shopctl", "runserver", "--noreload", "127.0.0.1:0"), 3)


TOPICS = """
from kombu import Exchange, Queue

CELERY_TASK_QUEUES = [Queue("main", Exchange("topics", type="topic"), routing_key="main.#")]
CELERY_TASK_ROUTES = {"shop.tasks.count": {"exchange": "topics", "routing_key": "main.in"}}
"""
EMPTIED = """\
import django

django.setup()
from redelivery.testing.sandbox import celery_app, sandbox

with sandbox() as world:
    for _ in range(2):
        celery_app().tasks["shop.tasks.count"].delay()
        print(len(world.waiting_messages()))
        world.empty()
"""


def test_an_empty_sandbox_still_routes(tmp_path):
    """A queue is bound to its exchange once in a process: a message must arrive also after the world was emptied."""
    project = Project(tmp_path)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + TOPICS)
    assert project.run("-c", EMPTIED).stdout.split() == ["1", "1"]


ROOT_OF = """\
import django

django.setup()
from redelivery.source import project_root
from redelivery.testing.sandbox import celery_app

celery_app()
print(project_root())
"""


@pytest.mark.parametrize("base", [None, "Path(__file__).parent", "str(Path(__file__).parents[1])"])
def test_code_of_the_project_is_found(tmp_path, base):
    """Where BASE_DIR is missing, or is the folder of the settings alone, since they became a package."""
    project = Project(tmp_path)
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + (f"BASE_DIR = {base}\n" if base else ""))
    assert project.run("-c", ROOT_OF).stdout.strip() == str(tmp_path)
