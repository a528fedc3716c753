"""The admin: kills to read, parked messages to replay or discard, each by one operator."""

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone
from redis import Redis

from redelivery.models import Kill, Parked
from tests.kills.test_decisions import payload

pytestmark = pytest.mark.django_db
PARKED = reverse("admin:redelivery_parked_changelist")
RAW = json.dumps(payload("<b>Zoë</b>", headers={"redelivery": {"deliveries": 4, "crashes": 4}}))


def make_parked(**facts):
    facts = {"raw": RAW, "message": "tag-1", "task": "shop.tasks.mail", "task_id": "id-1", **facts}
    return Parked.objects.create(
        item=Parked.objects.count(), queue="main", reason="crashed 4 times", at=timezone.now(), **facts
    )


@pytest.fixture
def log_in(client):
    """Log in as an operator with these permissions."""

    def log_in(*permissions, name="ann"):
        user = User.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)

    return log_in


@pytest.fixture
def queue(shared_redis):
    """The messages that wait in a queue, decoded, the one that is taken next first."""
    with Redis("127.0.0.1", port=shared_redis.port) as redis:
        yield lambda name: [json.loads(raw) for raw in reversed(redis.lrange(name, 0, -1))]


def act(client, action, *rows, confirmed=True):
    data = {"action": action, "_selected_action": [row.pk for row in rows]}
    return client.post(PARKED, {**data, **({"confirmed": "yes"} if confirmed else {})}, follow=True)


def test_replay(client, log_in, queue):
    log_in("view_parked", "replay_parked")
    parked = make_parked()
    asked = act(client, "replay", parked, confirmed=False)
    assert "crashed 4 times" in asked.text and queue("main\x06\x163") == []
    act(client, "replay", parked)
    (message,) = queue("main\x06\x163")  # of its priority
    assert message["headers"]["redelivery"] == {"deliveries": 4, "crashes": 0}
    assert (message["body"], message["properties"]["delivery_tag"]) == (json.loads(RAW)["body"], "tag-1")
    parked.refresh_from_db()
    assert (parked.state, parked.settled_by) == ("replayed", "ann")
    assert LogEntry.objects.get().object_id == str(parked.pk)


def test_discard(client, log_in, queue):
    log_in("view_parked", "discard_parked")
    parked = make_parked()
    act(client, "discard", parked)
    parked.refresh_from_db()
    assert (parked.state, parked.settled_by, queue("main\x06\x163")) == ("discarded", "ann", [])


@pytest.mark.parametrize(("action", "other"), [("replay", "discard"), ("discard", "replay")])
def test_each_action_needs_its_own_permission(client, log_in, queue, action, other):
    log_in("view_parked", f"{other}_parked")
    parked = make_parked()
    assert f'value="{action}"' not in client.get(PARKED).text
    act(client, action, parked)
    parked.refresh_from_db()
    assert (parked.state, queue("main\x06\x163")) == ("waiting", [])


@pytest.mark.parametrize("second", ["replay", "discard"])
def test_of_two_operators_the_second_is_told(client, log_in, queue, second):
    parked = make_parked()
    log_in("view_parked", "replay_parked")
    act(client, "replay", parked)
    log_in("view_parked", "replay_parked", "discard_parked", name="bob")
    answer = act(client, second, parked)
    assert "ann has replayed it before" in answer.text
    parked.refresh_from_db()
    assert (parked.state, parked.settled_by, len(queue("main\x06\x163"))) == ("replayed", "ann", 1)


def test_broker_that_is_away(client, log_in, no_broker):
    log_in("view_parked", "replay_parked")
    parked = make_parked()
    answer = act(client, "replay", parked)
    parked.refresh_from_db()
    assert (parked.state, parked.settled_by, parked.settled_at) == ("waiting", "", None)
    assert "The broker did not take it, so it still waits here" in answer.text


def test_message_that_cannot_be_read_is_not_replayed(client, log_in, queue):
    log_in("view_parked", "replay_parked")
    parked = make_parked(raw="no json")
    assert "discard it" in act(client, "replay", parked).text
    parked.refresh_from_db()
    assert (parked.state, queue("main")) == ("waiting", [])


def test_arguments_and_history_are_shown(client, log_in):
    log_in("view_parked")
    parked = make_parked()
    facts = {"message": "tag-1", "worker": "one@here", "outcome": "redelivered", "at": timezone.now()}
    for number, cause in enumerate(("worker gone", "hard time limit"), start=1):
        Kill.objects.create(delivery=number, cause=cause, **facts)
    page = client.get(reverse("admin:redelivery_parked_change", args=[parked.pk])).text
    assert "&lt;b&gt;Zoë" in page and "<b>Zoë" not in page
    assert "delivery 1: worker gone, redelivered" in page and "delivery 2: hard time limit" in page
    unreadable = make_parked(raw="no json", message="")
    page = client.get(reverse("admin:redelivery_parked_change", args=[unreadable.pk])).text
    assert "cannot be read" in page and "no json" in page


def test_kills_are_read_only_and_summed_up(client, log_in):
    log_in("view_kill")
    facts = {"task": "shop.mail", "cause": "worker gone", "at": timezone.now(), "outcome": "redelivered"}
    for number in range(1, 4):
        Kill.objects.create(message="tag-1", delivery=number, **facts)
    answer = client.get(reverse("admin:redelivery_kill_changelist"), {"task": "shop.mail"})
    day = timezone.localdate()
    assert answer.context_data["summary_rows"] == [[day, "shop.mail", "worker gone", 3, 3, 0, 0]]
    assert "<td>worker gone</td><td>3</td>" in answer.text
    pk = Kill.objects.first().pk
    assert client.get(reverse("admin:redelivery_kill_change", args=[pk])).status_code == 200
    assert client.post(reverse("admin:redelivery_kill_delete", args=[pk])).status_code == 403
    assert client.get(reverse("admin:redelivery_kill_add")).status_code == 403
