"""The first policy of a project that exists: what `ack_policy --init` writes, and what is a warning until decided."""

import io
import logging
import tomllib
from types import SimpleNamespace

import pytest
from celery import Celery, Task
from django.core.management import CommandError, call_command
from kombu import Exchange, Queue

from redelivery import adopt, checks, force, policy, worker
from redelivery.policy import OPEN_DECISION
from redelivery.publish import PolicyViolation
from tests.policy.tools import POLICY, nothing

OPEN = POLICY.replace("A customer must get the mail, and should get it once.", OPEN_DECISION)


@pytest.fixture
def adopt_app(policy_app, monkeypatch):
    """Make an app without a policy, write its first one, and put that in force: `adopt_app(define, CELERY_...=...)`.

    Returns the entries and the new app; `define(app)` makes the tasks.
    """
    monkeypatch.setattr(force, "_reports_checks", lambda: True)

    def make(define, **options):
        define(policy_app("", tasks=False, **options))
        text = adopt.first_policy(force.in_force())
        again = policy_app("", tasks=False, **options)
        define(again)
        assert adopt.first_policy(force.in_force()) == text
        app = policy_app(text, tasks=False, **options)
        define(app)
        return SimpleNamespace(text=text, app=app, found=checks.run(), **tomllib.loads(text))

    return make


class Wrapped(Task):
    """A base class with an `apply_async` of its own, decorated and without Celery's options."""

    calls = []

    def counted(method):
        def count(self, *args, **kwargs):
            self.calls.append(args)
            return method(self, *args, **kwargs)

        count.__wrapped__ = method
        return count

    @counted
    def apply_async(self, args=(), kwargs=None, countdown=0):
        return super().apply_async(args, kwargs, countdown=countdown, headers={"count": len(args)})


TASKS = {
    "plain": {},
    "late": {"acks_late": True},
    "late, but acknowledged when the process is lost": {"acks_late": True, "reject_on_worker_lost": False},
    "an option without effect": {"reject_on_worker_lost": True},
    "limits": {"time_limit": 30, "soft_time_limit": 20},
    "soft limit only": {"soft_time_limit": 7200},
    "soft limit behind the hard one": {"time_limit": 30, "soft_time_limit": 30},
    "limits out of range": {"time_limit": 0.5, "acks_late": True},
    "more than a day": {"time_limit": 200_000},
    "queue": {"queue": "high-priority"},
    "waits": {
        "autoretry_for": (OSError,),
        "retry_backoff": 600,
        "max_retries": 10,
        "retry_backoff_max": 7200,
    },
    "waits for days": {"default_retry_delay": 200_000},
    "base class": {"base": Wrapped, "bind": True},
    "flags of Celery 5.7": {"acks_on_timeout": False, "retry_on_worker_lost": True, "acks_late": True},
    "ключ-1.2:x": {},
    'quotes " and \\': {"acks_late": True},
}
SETTINGS = {
    "none": {},
    "all late": {"CELERY_TASK_ACKS_LATE": True, "CELERY_TASK_REJECT_ON_WORKER_LOST": True},
    "limits": {"CELERY_TASK_TIME_LIMIT": 300, "CELERY_TASK_SOFT_TIME_LIMIT": 60},
    "delivery": {
        "CELERY_WORKER_PREFETCH_MULTIPLIER": 8,
        "CELERY_BROKER_TRANSPORT_OPTIONS": {"visibility_timeout": 43200},
    },
    "annotations": {
        "CELERY_TASK_ANNOTATIONS": {"*": {"acks_late": True, "time_limit": 77, "rate_limit": "1/s"}}
    },
    "routes": {"CELERY_TASK_ROUTES": {"plain": {"queue": "other", "priority": 3}, "li*": "limited"}},
    "results beside the messages": {"CELERY_RESULT_BACKEND": "redis://broker.example/0"},
    "RabbitMQ": {
        "CELERY_BROKER_URL": "amqp://broker.example//",
        "CELERY_TASK_QUEUES": [Queue("money", Exchange("topics", type="topic"), routing_key="money.#")],
        "CELERY_TASK_ROUTES": {
            "pl*": {"exchange": "topics", "routing_key": "money.in"},
            "late": {"routing_key": "?"},
        },
    },
    "beat": {
        "CELERY_BEAT_SCHEDULE": {
            "one": {"task": "plain", "schedule": 60, "options": {"queue": "nightly", "countdown": 5}},
            "two": {"task": "queue", "schedule": 60, "options": {"queue": "elsewhere"}},
        }
    },
}


def every_task(app):
    """Define a task for each kind of declaration."""
    for name, options in TASKS.items():
        app.task(name=name, **options)(nothing)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
@pytest.mark.parametrize("kind", SETTINGS)
def test_what_init_writes_passes_the_checks_at_once(adopt_app, kind):
    """Whatever tasks and settings say: warnings, and each entry is one open decision."""
    adopted = adopt_app(every_task, **SETTINGS[kind])
    assert [message for message in adopted.found if message.is_serious()] == []
    (decisions,) = [message for message in adopted.found if message.id == "redelivery.W100"]
    assert f"{len(TASKS)} of {len(TASKS)} tasks are open decisions" in decisions.msg
    assert set(adopted.tasks) == set(TASKS)
    for entry in adopted.tasks.values():
        assert entry["guard"] == ("none" if entry["ack"] == "late" else "lost-ok")
        assert entry["reason"].startswith(OPEN_DECISION) and "gaps" not in entry


def test_what_init_takes_over(adopt_app):
    """Decorator before setting, annotation before decorator, the task's queue before its route, a guess at the end."""
    adopted = adopt_app(
        every_task,
        CELERY_TASK_ROUTES={"late": {"queue": "other"}, "queue": {"queue": "not this"}},
        CELERY_TASK_ANNOTATIONS={"limits": {"soft_time_limit": 10}},
        CELERY_WORKER_CONCURRENCY=3,
    )
    tasks = adopted.tasks
    assert {name: table["concurrency"] for name, table in adopted.queues.items()} == {
        "celery": 3,
        "high-priority": 3,
        "other": 3,
    }
    assert next(iter(adopted.queues)) == "celery"
    assert tasks["late"] == {
        "queue": "other",
        "ack": "late",
        "guard": "none",
        "time_limit_s": 3600,
        "reason": f"{OPEN_DECISION}; it had no time limit, 3600 s is a guess; until now its message was lost when its "
        "pool process was killed",
    }
    assert (tasks["limits"]["time_limit_s"], tasks["limits"]["soft_time_limit_s"]) == (30, 10)
    assert (tasks["soft limit only"]["time_limit_s"], tasks["queue"]["queue"]) == (14400, "high-priority")
    assert tasks["plain"]["ack"] == "early"
    assert adopted.publish["longest_countdown_s"] == 86_400


def test_init_sees_the_same_with_a_policy_in_force(adopt_app):
    """So a project can look again at what its code says, without what the policy has laid over it."""
    adopted = adopt_app(
        every_task, CELERY_TASK_TIME_LIMIT=300, **SETTINGS["routes"], **SETTINGS["annotations"]
    )
    assert adopt.first_policy(force.in_force()) == adopted.text


def test_tasks_of_packages_are_marked(adopt_app, tmp_path, monkeypatch):
    """Celery's own are exempt; other people's are entries, and say whose they are."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "foreign_tasks.py").write_text("def clean_up(): ...\n")
    monkeypatch.syspath_prepend(folder)
    import foreign_tasks

    text = adopt_app(lambda app: app.task(foreign_tasks.clean_up)).text
    assert (
        '# Its code is in a package (foreign_tasks), not in this project.\n[tasks."foreign_tasks.clean_up"]'
        in text
    )
    assert '"celery.' not in text


def init(*arguments, **options):
    """Run `ack_policy --init`; return what it prints."""
    out = io.StringIO()
    call_command("ack_policy", "--init", *arguments, stdout=out, **options)
    return out.getvalue()


def test_init_overwrites_nothing(policy_app, settings):
    policy_app()
    before = settings.ACK_POLICY_FILE.read_text()
    with pytest.raises(CommandError, match="exists, and --init overwrites nothing"):
        init()
    text = init("-")
    assert text.count("[tasks.") == 2 and OPEN_DECISION in text
    other = settings.ACK_POLICY_FILE.with_name("other.toml")
    assert "2 entries, each an open decision" in init(str(other))
    assert other.read_text() == text and settings.ACK_POLICY_FILE.read_text() == before
    assert sorted(path.name for path in other.parent.iterdir()) == ["ack_policy.toml", "other.toml"]


def test_init_says_what_is_wrong(policy_app, settings, monkeypatch):
    monkeypatch.setattr(force, "_reports_checks", lambda: True)
    policy_app()
    with pytest.raises(CommandError, match="cannot be written: No such file or directory"):
        init("/nowhere/ack_policy.toml")
    policy._load_once.cache_clear()
    policy_app("", CELERY_TASK_ROUTES=[("shop.*", {"queue": "main"})])
    with pytest.raises(CommandError, match="cannot be read: ValueError"):
        init("-")
    monkeypatch.setattr(force, "_in_force", None)
    with pytest.raises(CommandError, match=r"redelivery.setup\(app\) was not called"):
        init("-")


@pytest.mark.parametrize(("text", "status"), [(OPEN, 1), (POLICY, None)])
def test_strict(policy_app, text, status):
    policy_app(text)
    out = io.StringIO()
    if status is None:
        call_command("ack_policy", "--strict", stdout=out)
    else:
        with pytest.raises(SystemExit, match="1"):
            call_command("ack_policy", "--strict", stdout=out)
        assert f"ack_policy.toml:4: shop.tasks.mail: {OPEN_DECISION}" in out.getvalue()
    assert f"{int(status or 0)} of 2 tasks are open decisions." in out.getvalue()


def test_decided_entries_are_contradicted_by_errors(policy_app):
    """The same contradictions: a warning of an open entry, an error of the other; of a setting, while any is open."""
    for text, level in ((OPEN, "W1"), (POLICY, "E0")):
        policy._load_once.cache_clear()
        routes = {"shop.tasks.mail": "other", "shop.tasks.count": "other"}
        app = policy_app(text, tasks=False, CELERY_TASK_ROUTES=routes, CELERY_TASK_TIME_LIMIT=9)
        app.task(name="shop.tasks.count")(nothing)
        app.task(name="shop.tasks.mail", acks_late=False)(nothing)
        found = {
            (message.id, message.msg.split()[0])
            for message in checks.run()
            if message.id != "redelivery.W100"
        }
        assert found == {
            (f"redelivery.{level}05", "Task"),
            (f"redelivery.{level}07", "task_routes"),
            ("redelivery.E007", "task_routes"),
            (f"redelivery.{level}09", "CELERY_TASK_TIME_LIMIT"),
        }


def test_calls_win_while_the_entry_is_open(policy_app, monkeypatch, caplog):
    """As before there was a policy; each is logged. A decided entry refuses them."""
    app, sent = policy_app(OPEN), []
    monkeypatch.setattr(app, "send_task", lambda name, *args, **options: sent.append(options))
    mail, count = app.tasks["shop.tasks.mail"], app.tasks["shop.tasks.count"]
    with caplog.at_level(logging.ERROR, "redelivery"):
        mail.apply_async((), queue="other", countdown=7200, time_limit=600)
    assert (sent[0]["queue"], sent[0]["countdown"], sent[0]["time_limit"]) == ("other", 7200, 600)
    assert len(caplog.records) == 3 and "ack_policy.toml:4" in caplog.text
    message = SimpleNamespace(type=mail.name, id="1", time_limits=(600, None), request_dict={})
    worker._drop_own_limits(request=message)
    assert message.time_limits == (600, None)
    with pytest.raises(PolicyViolation):
        count.apply_async((), queue="other")


def test_base_class_with_an_apply_async_of_its_own(policy_app, monkeypatch):
    """It is called with what it was called with before, and its decorator stays on it."""
    app, sent = policy_app(OPEN, tasks=False), []
    Wrapped.calls.clear()
    app.task(name="shop.tasks.count", base=Wrapped)(nothing)
    mail = app.task(name="shop.tasks.mail", base=Wrapped)(nothing)
    monkeypatch.setattr(app, "send_task", lambda name, *args, **options: sent.append(options))
    mail.apply_async()
    mail.delay(1, 2)
    mail.apply_async((3,), countdown=4)
    assert [one["headers"]["count"] for one in sent] == [0, 2, 1] and sent[2]["countdown"] == 4
    assert Wrapped.calls == [(), ((1, 2), {}), ((3,),)]
    with pytest.raises(PolicyViolation):
        app.tasks["shop.tasks.count"].apply_async((), countdown=7200)


def test_reason_that_is_open(policy_app):
    """In any case of letters, and with remarks after it."""
    policy_app(OPEN.replace(OPEN_DECISION, f"{OPEN_DECISION.capitalize()}; it had no time limit"))
    assert [entry.name for entry in policy.current().open_decisions] == ["shop.tasks.mail"]


def test_setup_for_two_apps(policy_app, monkeypatch, capsys):
    """One of them would run without the policy."""
    policy_app()
    second = Celery("second", set_as_current=False, fixups=())
    force.setup(second)
    with pytest.raises(SystemExit, match="3"):
        force.ready()
    assert "setup was called for two apps" in capsys.readouterr().err
    (error,) = checks.run()
    assert (
        error.id == "redelivery.E002"
        and "<Celery shop" in error.msg
        and "Call it for one of them" in error.hint
    )


def test_queues_are_declared_as_the_project_declares_its_own(policy_app):
    """RabbitMQ refuses a queue that is there with other arguments."""
    app = policy_app(
        POLICY.replace("main", "money") + "\n[queues.other]\nconcurrency = 1\n",
        CELERY_BROKER_URL="amqp://broker.example//",
        CELERY_TASK_DEFAULT_QUEUE="money",
        CELERY_TASK_DEFAULT_QUEUE_TYPE="quorum",
        CELERY_TASK_DEFAULT_EXCHANGE="tasks",
        CELERY_TASK_CREATE_MISSING_QUEUE_TYPE="quorum",
        CELERY_TASK_CREATE_MISSING_QUEUES=False,
    )
    money, other = app.amqp.queues["money"], app.amqp.queues["other"]
    quorum = {"x-queue-type": "quorum"}
    assert (money.exchange.name, money.routing_key, money.queue_arguments) == ("tasks", "money", quorum)
    assert (other.exchange.name, other.routing_key, other.queue_arguments) == ("other", "other", quorum)
