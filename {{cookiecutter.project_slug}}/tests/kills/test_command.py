"""`manage.py kills`, and what it says to nonsense."""

import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from redelivery.models import Kill, Parked

pytestmark = pytest.mark.django_db


def kill(ago=timedelta(hours=1), **facts):
    number = Kill.objects.count()
    facts = {
        "task": "shop.mail",
        "cause": "worker gone",
        "outcome": "redelivered",
        "message": number,
        **facts,
    }
    return Kill.objects.create(at=timezone.now() - ago, **facts)


def parked(state="waiting", ago=timedelta(hours=1)):
    then = timezone.now() - ago
    settled = None if state == "waiting" else then
    return Parked.objects.create(item=Parked.objects.count(), at=then, state=state, settled_at=settled)


def output(*arguments):
    out = io.StringIO()
    call_command("kills", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def test_table_by_day_task_and_cause():
    kill(outcome="parked")
    kill()
    kill(cause="hard time limit")
    kill(timedelta(days=8))
    parked()
    parked("discarded")
    day = timezone.localdate(timezone.now() - timedelta(hours=1))
    assert output() == (
        "day         task       cause            kills  redelivered  parked  acked\n"
        "----------  ---------  ---------------  -----  -----------  ------  -----\n"
        f"{day}  shop.mail  hard time limit  1      1            0       0\n"
        f"{day}  shop.mail  worker gone      2      1            1       0\n"
        "\nParked, and waiting for an operator in the admin: 1.\n"
    )
    assert output("--since", "2w").count("shop.mail") == 3


def test_only_some_workers_since_a_second():
    """What a deploy asks about the workers that it has stopped."""
    for worker in ("a@here", "b@here", "c@here"):
        kill(worker=worker)
        kill(timedelta(hours=3), worker=worker)
    since = f"{(timezone.now() - timedelta(hours=2)).timestamp():.3f}"
    found = json.loads(output("--json", "--worker", "a@here", "--worker", "c@here", "--since", since))
    assert [row["kills"] for row in found["kills"]] == [2]


def test_json():
    kill()
    found = json.loads(output("--json", "--since", "12h"))
    since = datetime.fromisoformat(found.pop("since"))
    assert timedelta(hours=11) < datetime.now(UTC) - since < timedelta(hours=13)
    day = str(timezone.localdate(timezone.now() - timedelta(hours=1)))
    row = {"day": day, "task": "shop.mail", "cause": "worker gone", "kills": 1}
    assert found == {"kills": [row | {"redelivered": 1, "parked": 0, "acked": 0}], "waiting": 0}


def test_nothing_was_interrupted():
    assert output("--since", "2026-01-31").startswith("No delivery was interrupted since 2026-01-31 00:00.")


@pytest.mark.parametrize("text", ["7", "7x", "yesterday", "2026-13-01", "-3d", "99999999999999w", ""])
def test_nonsense_is_answered_in_one_sentence(text):
    with pytest.raises(CommandError) as caught:
        output(f"--since={text}")
    assert str(caught.value).startswith(f"--since {text!r} is no time: write a number with m, h, d or w")


def test_purge_deletes_what_is_old_and_settled():
    old, new = timedelta(days=100), timedelta(days=80)
    for ago in (old, new):
        kill(ago)
        for state in ("waiting", "replayed", "discarded"):
            parked(state, ago)
    assert output("--purge", "90d") == "Deleted: 1 records of kills, 2 settled messages.\n"
    assert (Kill.objects.count(), Parked.objects.filter(state="waiting").count()) == (1, 2)
    assert Parked.objects.exclude(state="waiting").count() == 2


def test_what_is_still_in_redis_is_shown(shared_redis):
    from redis import Redis

    from redelivery import kills
    from tests.kills.test_recorder import payload

    one = kills.Interrupted(payload(), "tag-1", "main", "one@here:12:abc:r7", "worker gone")
    with Redis("127.0.0.1", port=shared_redis.port) as client:
        client.lpush("redelivery.kills", kills.judge(one)[1])
        assert "shop.tasks.mail" in output()
        assert client.llen("redelivery.kills") == 0


def test_broker_that_is_away_costs_a_line(no_broker, capsys):
    kill()
    assert "shop.mail" in output()
    assert "was not moved from the broker" in capsys.readouterr().err
