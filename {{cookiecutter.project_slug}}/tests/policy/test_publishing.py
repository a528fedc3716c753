"""What a call may not override, retries that are brought within the policy, and messages that bypass it."""

import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import chain, group
from django.db import transaction
from django.utils.autoreload import StatReloader
from kombu import Exchange, Queue

from redelivery import force, worker
from redelivery.apps import watch_policy
from redelivery.publish import PolicyViolation
from tests.policy.tools import nothing


@pytest.fixture
def sent(monkeypatch, policy_app):
    """What gets past the policy: (name, options) of each message, which is not sent."""
    app, messages = policy_app(), []
    monkeypatch.setattr(app, "send_task", lambda name, *args, **options: messages.append((name, options)))
    return SimpleNamespace(app=app, mail=app.tasks["shop.tasks.mail"], messages=messages)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time_limit": 5}, "time_limit=5"),
        ({"time_limit": 600}, "time_limit=600"),
        ({"soft_time_limit": 5}, "soft_time_limit=5"),
        ({"countdown": 301}, "countdown is 301 s ahead"),
        ({"countdown": 7200.5}, "countdown is 7200 s ahead"),
        ({"eta": datetime.now(UTC) + timedelta(hours=2)}, "eta is"),
        ({"eta": (datetime.now(UTC) + timedelta(hours=2)).isoformat()}, "eta is"),
        ({"eta": (datetime.now(UTC) + timedelta(hours=2)).replace(tzinfo=None)}, "eta is"),
        ({"queue": "other"}, 'queue="other"'),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else ", ".join(value)
    ),  # the same in each process of xdist
)
def test_call_that_contradicts_the_policy(sent, options, says):
    with pytest.raises(PolicyViolation) as caught:
        sent.mail.apply_async((), **options)
    assert str(caught.value).startswith("shop.tasks.mail: ")
    assert says in str(caught.value) and "ack_policy.toml:4" in str(caught.value)
    assert sent.messages == []


def test_runserver_without_a_policy_is_left_to_the_checks(settings):
    del settings.ACK_POLICY_FILE
    watch_policy(StatReloader())


@pytest.mark.django_db(transaction=True)
def test_publishing_inside_a_transaction_is_noticed(sent, caplog):
    """Not after it, not by a retry, and not because a test case has one open around it."""
    with transaction.atomic():
        transaction.on_commit(sent.mail.delay)
        sent.mail.apply_async(retries=1)
    sent.mail.delay()
    assert "inside a transaction" not in caplog.text
    with transaction.atomic():
        sent.mail.delay()
    assert caplog.text.count("shop.tasks.mail is published inside a transaction") == 1


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_is_not_noticed(sent, caplog):
    sent.mail.delay()
    assert "inside a transaction" not in caplog.text


def test_signatures_chains_and_groups_are_held_to_it(sent):
    bad = sent.mail.si().set(time_limit=5)
    good = sent.app.tasks["shop.tasks.count"].si()
    for call in (bad, chain(bad, good, app=sent.app), group(bad, app=sent.app)):
        with pytest.raises(PolicyViolation):
            call.apply_async()


def test_calls_within_the_policy(sent):
    sent.mail.delay()
    sent.mail.apply_async(countdown=300)
    sent.mail.apply_async(eta=datetime.now(UTC) + timedelta(seconds=300))
    sent.mail.apply_async(eta=datetime.now(UTC) - timedelta(days=2))
    sent.mail.apply_async(queue="main", time_limit=60, soft_time_limit=54)
    assert len(sent.messages) == 5


def test_messages_carry_no_limits_so_that_those_of_the_running_release_hold(sent):
    sent.mail.delay()
    _, options = sent.messages[0]
    assert (options["time_limit"], options["soft_time_limit"]) == (None, None)


def test_retry_is_brought_within_the_policy_and_never_refused(sent, caplog):
    """Celery drops the message of a retry that cannot be published."""
    sent.mail.apply_async(retries=1, countdown=7200, time_limit=5, queue="old")
    _, options = sent.messages[0]
    assert (options["countdown"], options["time_limit"], options.get("queue")) == (300, None, None)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert "retried within the policy: countdown is 7200 s ahead" in caplog.text


def test_tasks_without_entry_are_left_alone(sent):
    other = sent.app.task(name="shop.tasks.other", shared=False)(nothing)
    other.apply_async(countdown=7200, time_limit=5)
    assert sent.messages[0][1]["time_limit"] == 5


def request(name="shop.tasks.mail", limits=(None, None)):
    return SimpleNamespace(type=name, id="1", time_limits=limits, request_dict={"timelimit": list(limits)})


def test_worker_drops_the_limits_of_a_message(sent, caplog):
    message = request(limits=(5, None))
    worker._drop_own_limits(request=message)
    assert (message.time_limits, message.request_dict["timelimit"]) == ((None, None), [None, None])
    assert "shop.tasks.mail[1] came with time_limit=5" in caplog.text and "ack_policy.toml:4" in caplog.text


def test_worker_says_nothing_of_limits_that_agree(sent, caplog):
    message = request(limits=(60, 54))
    worker._drop_own_limits(request=message)
    assert (message.time_limits, caplog.text) == ((None, None), "")


def test_worker_leaves_celerys_own_tasks_alone(sent):
    message = request("celery.backend_cleanup", limits=(5, None))
    worker._drop_own_limits(request=message)
    assert message.time_limits == (5, None)


@pytest.mark.parametrize("leases", [True, False])
def test_queues_and_delivery(policy_app, settings, leases):
    settings.REDELIVERY_TRANSPORT = leases
    conf = policy_app().conf
    assert [queue.name for queue in conf.task_queues] == ["main"]
    assert conf.task_default_queue == "main"
    assert conf.broker_transport_options == {
        "visibility_timeout": force.in_force().policy.visibility_timeout_s,
        "lease_s": 12,
        "stock_visibility_s": 3600,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "health_check_interval": 5,
    }
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is not leases
    with policy_app().connection() as connection:
        assert (type(connection.transport).__module__ == "redelivery.broker.transports") is leases
        assert connection.as_uri() == "redis://:**@broker.example:6379/0"


def test_brokers_without_visibility_get_no_such_option(policy_app):
    assert policy_app(CELERY_BROKER_URL="amqp://h/").conf.broker_transport_options == {}


def test_what_the_project_set_by_hand_is_kept(policy_app):
    own = Queue("main", Exchange("own"), routing_key="own")
    conf = policy_app(
        CELERY_TASK_QUEUES=[own, Queue("foreign")],
        CELERY_TASK_DEFAULT_QUEUE="foreign",
        CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS=False,
    ).conf
    assert {queue.name: queue.exchange.name for queue in conf.task_queues}["main"] == "own"
    assert conf.task_default_queue == "foreign"
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False


def test_runserver_watches_the_policy_file(policy_app, settings):
    policy_app()
    reloader = StatReloader()
    watch_policy(reloader)
    assert settings.ACK_POLICY_FILE in set(reloader.watched_files())
