"""What is open is counted, watched, published again, and never purged."""

import json
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

import payments
from payments import checks, limits, retention, watch
from payments.forms import OrderForm
from payments.halt import halt
from payments.models import Payment, State
from payments.periodic import publish_due_payments, purge_payments
from payments.providers.simulated import Simulated
from payments.publishing import place_order, publish_due
from payments.records import Evidence, Order
from payments.redelivery_case import pending

pytestmark = pytest.mark.django_db(transaction=True)

MUST_BE_READ = ("models.py", "sending.py", "tasks.py", "reconciliation.py")
ORDER = {"customer": "cus_1", "method": "pm_card", "amount": 1250, "currency": "EUR"}


def ran(*arguments) -> int:
    try:
        call_command("payments", *arguments)
    except SystemExit as end:
        return end.code
    return 0


class TestOrdering:
    """The page, the transaction, and publishing after it."""

    def test_order_and_payment_are_stored_and_published(self, client, waiting):
        assert client.post("/orders/", ORDER).status_code == 302
        payment = Payment.objects.get()
        assert payment.digest == payment.request.digest and payment.state == State.PENDING
        assert waiting("payments") == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"amount": 0},
            {"amount": -1},
            {"amount": "1.5"},
            {"currency": "eur"},
            {"customer": ""},
            {"amount": 2**63},
        ],
    )
    def test_refuses(self, client, waiting, wrong):
        assert client.post("/orders/", ORDER | wrong).status_code == 200
        assert not Order.objects.exists() and not waiting("payments")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"amount": Decimal("12.50")},
            {"amount": 12.5},
            {"amount": True},
            {"amount": "1250"},
            {"amount": 0},
            {"currency": "EURO"},
            {"currency": "eur"},
            {"currency": "E€R"},
            {"customer": ""},
        ],
    )
    def test_orders_of_other_code_are_refused_too(self, wrong):
        """Django alone would cut 12.50 to 12 cents."""
        with pytest.raises(ValidationError):
            place_order(Order(**ORDER | wrong))
        assert not Order.objects.exists()

    def test_nothing_before_the_commit_and_nothing_after_a_rollback(self, waiting):
        from django.db import transaction

        with transaction.atomic():
            place_order(OrderForm(ORDER).save(commit=False))
            assert not waiting("payments")
            transaction.set_rollback(True)
        assert not waiting("payments") and not Payment.objects.exists()

    def test_broker_down_then_back(self, client, broker, deliver, later):
        broker.stop()
        assert client.post("/orders/", ORDER).status_code == 302
        broker.start()
        assert deliver(publish_due_payments) == 1
        assert redis.Redis("127.0.0.1", port=broker.port).llen("payments") == 1

    def test_message_that_got_lost_is_published_again(self, client, deliver, waiting, later):
        client.post("/orders/", ORDER)
        assert deliver(publish_due_payments) == 0
        later(minutes=3)
        assert deliver(publish_due_payments) == 1
        assert deliver(publish_due_payments) == 0
        assert waiting("payments") == 2

    def test_while_halted_one_probe_is_published(self, waiting):
        for _ in range(3):
            pending()
        Payment.objects.update(due_at=Now())
        halt("401 bad key")
        assert publish_due() == 1


class TestCommand:
    """`manage.py payments`."""

    def test_quiet_when_all_is_well(self, payment, capsys):
        assert ran() == 0
        assert "pending           1" in capsys.readouterr().out

    @pytest.mark.parametrize(("state", "minutes"), [("pending", 16), ("sending", 16), ("uncertain", 61)])
    def test_too_old(self, payment, capsys, later, state, minutes):
        Payment.objects.update(state=state, due_at=Now())
        later(minutes=minutes)
        assert ran("--json") == 1
        found = json.loads(capsys.readouterr().out)
        assert found["open"][state]["oldest_s"] >= minutes * 60
        assert state in found["problems"][0]

    def test_uncertain_is_in_no_success_count(self, uncertain, capsys):
        ran("--json")
        found = json.loads(capsys.readouterr().out)
        assert found["settled"] == {"sent": 0, "rejected": 0} and found["open"]["uncertain"]["count"] == 1

    def test_with_a_person_and_halted(self, uncertain, capsys):
        Payment.objects.update(due_at=None)
        halt("401 bad key")
        assert ran() == 1
        said = capsys.readouterr().out
        assert "1 wait for a person" in said and "401 bad key" in said

    def test_resume(self, db, capsys):
        halt("401 bad key")
        assert ran("--resume") == 0
        assert "sent again" in capsys.readouterr().err

    def test_database_that_is_away(self, db, monkeypatch):
        from django.db import OperationalError

        def away():
            raise OperationalError("no route to host")

        monkeypatch.setattr(watch, "numbers", away)
        with pytest.raises(CommandError, match="no route to host") as error:
            call_command("payments")
        assert error.value.returncode == 2

    def test_wrong_settings_are_no_reason_to_be_silent(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PAYMENT_PROVIDER", "bank")
        monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/db.sqlite3")
        for command, status in (
            (["migrate", "--skip-checks"], 0),
            (["payments", "--json"], 0),
            (["check"], 1),
        ):
            done = subprocess.run(
                [sys.executable, "manage.py", *command], capture_output=True, text=True, cwd=settings.BASE_DIR
            )
            assert done.returncode == status, done.stderr
            if "--json" in command:
                assert json.loads(done.stdout)["open"]["uncertain"]["count"] == 0

    def test_threshold_that_is_no_number(self, payment, monkeypatch):
        monkeypatch.setenv("PAYMENT_MAX_PENDING_S", "soon")
        assert ran() == 1


class TestRetention:
    """Old and settled goes, in small batches; open, young or contradicted stays."""

    def test_what_goes_and_what_stays(self, deliver, later, monkeypatch):
        monkeypatch.setattr(retention, "BATCH", 2)
        rows = {}
        for name in ("old1", "old2", "old3", "old rejected", "open", "contradicted", "young"):
            rows[name] = pending()
            if name == "young":
                continue
            assert rows[name].claim()
            if name != "open":
                to = State.REJECTED if "rejected" in name else State.SENT
                rows[name].move(to, "worker", "200", "ch")
            else:
                rows[name].move(State.UNCERTAIN, "worker", "timed out")
        Payment.objects.filter(pk=rows["contradicted"].pk).update(contradicted=True)
        later(days=401)
        young = rows["young"]
        assert young.claim() and young.move(State.SENT, "worker", "200", "ch")
        assert deliver(purge_payments) == 4
        assert set(Payment.objects.values_list("pk", flat=True)) == {
            rows[name].pk for name in ("open", "contradicted", "young")
        }
        assert Order.objects.count() == 3 and Evidence.objects.count() == 3

    def test_old_ones_are_found_by_their_index(self, db):
        if connection.vendor == "sqlite":
            old = Payment.objects.filter(settled_at__lt=Now() - timedelta(days=400))
            assert "payment_settled" in old.order_by("settled_at").explain()
            due = Payment.objects.filter(settled_at=None, state__in=("pending",), due_at__lte=Now())
            assert "payment_open" in due.order_by("due_at").explain()


class TestChecks:
    """Times in an order that cannot work are refused."""

    def ids(self) -> list[str]:
        return [message.id for message in checks.check_times()]

    def test_the_defaults_work(self):
        assert self.ids() == []

    @pytest.mark.parametrize(
        ("variable", "value", "found"),
        [
            ("PAYMENT_TIMEOUT_S", "27", ["payments.E002"]),
            ("PAYMENT_TIMEOUT_S", "60", ["payments.E002", "payments.E002"]),
            ("PAYMENT_TIMEOUT_S", "0", ["payments.E002", "payments.E002"]),
            ("PAYMENT_PROVIDER", "bank", ["payments.E001"]),
            ("PAYMENT_RETENTION_DAYS", "1", ["payments.E005"]),
        ],
    )
    def test_variables(self, monkeypatch, variable, value, found):
        monkeypatch.setenv(variable, value)
        assert self.ids() == found

    def test_provider_that_takes_long_or_forgets_soon(self, monkeypatch):
        monkeypatch.setattr(Simulated, "under_way", limits.dead_after())
        monkeypatch.setattr(Simulated, "key_lifetime", timedelta(hours=1))
        assert self.ids() == ["payments.E003", "payments.E004"]

    def test_a_simulation_is_not_for_production(self, monkeypatch):
        assert [message.id for message in checks.check_provider()] == ["payments.E006"]
        monkeypatch.setenv("PAYMENT_PROVIDER", "stripe")
        assert checks.check_provider() == []


def test_what_must_be_read_is_short():
    """The payment path, docstrings included."""
    folder = Path(payments.__file__).parent
    lines = {name: len((folder / name).read_text().splitlines()) for name in MUST_BE_READ}
    assert sum(lines.values()) < 250, lines
