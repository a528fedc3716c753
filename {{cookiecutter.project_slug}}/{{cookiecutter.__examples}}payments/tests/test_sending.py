"""One claim, one send, and an honest record of whatever the provider answers."""

from datetime import UTC
from types import SimpleNamespace

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.models.functions import Now

from payments import sending
from payments.models import Payment, State
from payments.providers import Accepted, NotSent, Rejected, Unknown
from payments.providers import provider as adapter
from payments.providers.simulated import Simulated
from payments.records import Evidence, Halt, Order
from payments.tasks import send_payment
from redelivery.testing.processes import free_port

pytestmark = pytest.mark.django_db(transaction=True)

ANSWERS = {
    "accept": (State.SENT, 1),
    "reject": (State.REJECTED, 0),
    "auth": (State.PENDING, 0),
    "rate": (State.PENDING, 0),
    "error before": (State.UNCERTAIN, 0),
    "error after": (State.UNCERTAIN, 1),
    "garbage after": (State.UNCERTAIN, 1),
    "hang before": (State.UNCERTAIN, 0),
    "hang after": (State.UNCERTAIN, 1),
    "drop before": (State.UNCERTAIN, 0),
    "drop after": (State.UNCERTAIN, 1),
    "slow": (State.UNCERTAIN, 0),
}


class TestEveryAnswer:
    """What each behaviour of the provider leads to."""

    @pytest.mark.parametrize("behaviour", ANSWERS)
    def test_state_charges_and_evidence(self, provider, payment, deliver, behaviour):
        provider.behave(behaviour)
        state, charges = ANSWERS[behaviour]
        assert deliver(send_payment, str(payment.pk)) == state
        payment.refresh_from_db()
        assert (payment.state, payment.attempt) == (state, 1)
        assert len(provider.charges(str(payment.provider_key))) == charges
        [evidence] = payment.evidence_set.all()
        assert (evidence.before, evidence.after, evidence.who) == (State.SENDING, state, "worker")
        assert bool(payment.reference) == (state == State.SENT)
        assert bool(payment.due_at) == (state in (State.PENDING, State.UNCERTAIN))
        assert bool(payment.settled_at) == (state in (State.SENT, State.REJECTED))

    def test_provider_that_is_not_there_was_not_sent_to(self, provider, payment, deliver, monkeypatch):
        monkeypatch.setenv("PAYMENT_SIMULATOR_URL", f"http://127.0.0.1:{free_port()}")
        assert deliver(send_payment, str(payment.pk)) == State.PENDING

    def test_whatever_an_adapter_raises_is_unknown(self, provider, payment, deliver, monkeypatch):
        monkeypatch.setattr("payments.providers.simulated.Simulated.send", lambda *_: 1 / 0)
        assert deliver(send_payment, str(payment.pk)) == State.UNCERTAIN
        assert "ZeroDivisionError" in Evidence.objects.get().seen

    def test_settings_that_make_no_sense_touch_no_payment(self, provider, payment, deliver, monkeypatch):
        monkeypatch.setenv("PAYMENT_PROVIDER", "bank")
        assert "PAYMENT_PROVIDER" in str(deliver(send_payment, str(payment.pk)))
        payment.refresh_from_db()
        assert (payment.state, payment.attempt) == (State.PENDING, 0)

    def test_no_such_payment(self, provider, deliver, db):
        assert isinstance(deliver(send_payment, "12345"), Payment.DoesNotExist)


class TestOnce:
    """However often it is delivered."""

    def test_second_delivery_skips(self, provider, payment, deliver):
        results = [deliver(send_payment, str(payment.pk)) for _ in range(3)]
        assert results == [State.SENT, "not pending", "not pending"]
        assert len(provider.calls()) == 1

    def test_of_two_that_read_the_same_row_one_claims(self, payment):
        first, second = Payment.objects.get(pk=payment.pk), Payment.objects.get(pk=payment.pk)
        assert (first.claim(), second.claim()) == (True, False)

    def test_second_payment_of_an_order_is_impossible(self, payment):
        with pytest.raises(IntegrityError), transaction.atomic():
            Payment.objects.create(order=payment.order, digest="0")

    def test_same_key_in_every_attempt(self, provider, payment, deliver, later):
        provider.behave("rate")
        deliver(send_payment, str(payment.pk))
        provider.behave()
        deliver(send_payment, str(payment.pk))
        assert [call["key"] for call in provider.calls()] == [str(payment.provider_key)] * 2
        payment.refresh_from_db()
        assert (payment.state, payment.attempt) == (State.SENT, 2)

    def test_order_that_was_changed_is_never_sent(self, provider, payment, deliver, caplog):
        Order.objects.update(amount=999_999)
        assert deliver(send_payment, str(payment.pk)) == State.UNCERTAIN
        assert not provider.calls() and "needs a person" in caplog.text
        assert Payment.objects.get().due_at is None

    def test_worker_that_stood_still_after_its_claim_does_not_send(self, provider, payment, monkeypatch):
        times = iter([0.0, 3600.0])
        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: next(times)))
        assert sending.claim_and_send(payment) == State.PENDING
        assert not provider.calls()


class TestHalt:
    """Credentials that are refused stop everything, and nothing is lost."""

    def test_loud_and_nothing_else_is_sent_or_touched(self, provider, payment, deliver, caplog):
        from payments.redelivery_case import pending

        other = pending()
        provider.behave("auth")
        deliver(send_payment, str(payment.pk))
        assert "HALTED" in caplog.text and Halt.objects.count() == 1
        provider.behave()
        assert deliver(send_payment, str(other.pk)) == "not claimed"
        assert len(provider.calls()) == 1
        other.refresh_from_db()
        assert (other.state, other.attempt) == (State.PENDING, 0)

    def test_probe_that_goes_well_ends_it(self, provider, payment, deliver):
        provider.behave("auth")
        deliver(send_payment, str(payment.pk))
        provider.behave()
        Halt.objects.update(probe_at="2000-01-01T00:00Z")
        assert deliver(send_payment, str(payment.pk)) == State.SENT
        assert not Halt.objects.exists()

    def test_probe_that_is_refused_goes_on_with_it(self, provider, payment, deliver, caplog):
        provider.behave("auth")
        deliver(send_payment, str(payment.pk))
        Halt.objects.update(probe_at="2000-01-01T00:00Z")
        assert deliver(send_payment, str(payment.pk)) == State.PENDING
        assert deliver(send_payment, str(payment.pk)) == "not claimed"
        assert caplog.text.count("HALTED") == 1


class TestLateAnswers:
    """What the provider says to a worker whose payment has moved on."""

    def late(self, payment, attempt, outcome):
        return sending.record(Payment.objects.get(pk=payment.pk), attempt, outcome)

    def test_late_yes_settles_what_is_open(self, uncertain):
        assert self.late(uncertain, 1, Accepted("200", "ch_1")) == State.SENT
        assert Payment.objects.get().reference == "ch_1"

    def test_late_yes_settles_under_a_newer_attempt_which_then_agrees(self, uncertain):
        assert uncertain.claim()
        assert self.late(uncertain, 1, Accepted("200", "ch_1")) == State.SENT
        assert sending.record(uncertain, 2, Accepted("200 replayed", "ch_1")) == State.SENT
        assert not Payment.objects.get().contradicted
        assert list(Evidence.objects.order_by("pk").values_list("reference", flat=True)) == [
            "",
            "ch_1",
            "ch_1",
        ]

    def test_worker_that_was_overtaken_overwrites_nothing(self, payment):
        assert payment.claim()  # and stands still, while the row is settled
        other = Payment.objects.get(pk=payment.pk)
        other.move(State.UNCERTAIN, "reconciliation", "no answer was recorded")
        other.move(State.SENT, "reconciliation", "read back", "ch_1")
        assert sending.record(payment, 1, Unknown("timed out")) == State.SENT
        assert Payment.objects.get().reference == "ch_1"
        assert Evidence.objects.latest("pk").seen == "attempt 1: Unknown: timed out"

    def test_late_no_of_the_only_attempt_settles(self, uncertain):
        assert self.late(uncertain, 1, Rejected("402")) == State.REJECTED

    def test_late_no_of_one_of_two_attempts_is_no_proof(self, uncertain):
        assert uncertain.claim()
        assert sending.record(uncertain, 2, Rejected("402")) == State.UNCERTAIN
        assert self.late(uncertain, 2, NotSent("429")) == State.UNCERTAIN

    def test_replayed_no_is_proof(self, uncertain):
        assert uncertain.claim()
        assert sending.record(uncertain, 2, Rejected("402", first_hand=True)) == State.REJECTED

    def test_late_unknown_changes_nothing(self, uncertain):
        uncertain.move(State.PENDING, "operator", "seen in the provider's dashboard: nothing")
        assert self.late(uncertain, 1, Unknown("timed out")) == State.PENDING
        assert Evidence.objects.count() == 3

    @pytest.mark.parametrize("settled", [State.SENT, State.REJECTED])
    def test_what_cannot_be_true_is_kept_and_shouted(self, uncertain, settled, caplog):
        uncertain.move(settled, "operator", "seen", "ch_1")
        assert self.late(uncertain, 1, Accepted("200", "ch_2")) == settled
        row = Payment.objects.get()
        assert row.contradicted and row.reference == "ch_1" and "ch_2" in caplog.text
        assert Evidence.objects.latest("pk").reference == "ch_2"


class TestEvidence:
    """Written once."""

    def test_the_database_refuses_to_change_it(self, uncertain):
        with pytest.raises(DatabaseError, match="evidence is never changed"), transaction.atomic():
            Evidence.objects.update(seen="something else")

    def test_state_and_evidence_are_written_together_or_not_at_all(self, payment):
        assert payment.claim()
        with pytest.raises(DatabaseError):
            payment.move(State.SENT, None, "200", "ch_1")  # evidence needs somebody who saw it
        assert Payment.objects.get().state == State.SENDING


class TestNothingIsLost:
    """What the provider said is recorded, whatever becomes of the database meanwhile."""

    def test_database_that_goes_away_during_the_send(self, provider, payment, monkeypatch, caplog):
        monkeypatch.setattr(sending, "RECORD_AGAIN_AFTER_S", (0, 0, 0))
        whole = Simulated.send

        def send(adapter, request):
            outcome = whole(adapter, request)
            away(monkeypatch)
            return outcome

        monkeypatch.setattr(Simulated, "send", send)
        assert sending.claim_and_send(payment) == State.SENT
        row = Payment.objects.get()
        assert row.reference == provider.charges()[0]["reference"] and row.evidence_set.count() == 1
        assert "could not be recorded" in caplog.text and row.reference in caplog.text

    def test_database_that_stays_away_leaves_the_answer_in_the_log(
        self, provider, payment, monkeypatch, caplog
    ):
        monkeypatch.setattr(sending, "RECORD_AGAIN_AFTER_S", (0, 0))
        monkeypatch.setattr(Payment, "move", gone)
        with pytest.raises(OperationalError):
            sending.claim_and_send(payment)
        assert provider.charges()[0]["reference"] in caplog.text
        assert Payment.objects.get().due_at  # reconciliation will ask

    def test_text_that_a_database_refuses(self, payment):
        assert payment.claim()
        strange = f"bad \0 worse \ud800 {'x' * 1_000_000}"
        assert sending.record(payment, 1, Accepted(strange, strange)) == State.SENT
        [evidence] = payment.evidence_set.all()
        assert evidence.seen.startswith("Accepted: bad ? worse ? xxx") and len(evidence.seen) < 2100
        assert len(Payment.objects.get().reference) == 255


def gone(*_):
    raise OperationalError("server closed the connection unexpectedly")


def away(monkeypatch) -> None:
    """End this process's connection as a server that restarts does; SQLite has none, so it is said in its place."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor, pytest.raises(DatabaseError):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return
    move, times = Payment.move, iter([True, True])
    monkeypatch.setattr(Payment, "move", lambda *a, **k: gone() if next(times, False) else move(*a, **k))


def test_nothing_goes_by_the_hosts_clock(provider, payment, deliver, monkeypatch):
    """A worker whose clock is a year ahead or behind claims, sends and reconciles as any other."""
    from datetime import datetime, timedelta

    from payments import reconciliation

    for days in (-365, 365):
        monkeypatch.setattr(
            "django.utils.timezone.now", lambda days=days: datetime.now(UTC) + timedelta(days=days)
        )
        assert payment.claim()
        assert not reconciliation.in_doubt().exists()
        row = Payment.objects.annotate(now=Now()).get()
        assert abs(row.claimed_at - row.now) < timedelta(minutes=1)
        assert timedelta(0) < row.due_at - row.now < timedelta(minutes=10)
        assert payment.move(State.PENDING, "worker", "NotSent: 429", due=timedelta(0))


def test_digest_covers_all_that_is_sent(provider, payment):
    import dataclasses

    request = payment.request
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        other = value + 1 if isinstance(value, int) else f"{value}x"
        assert dataclasses.replace(request, **{field.name: other}).digest != request.digest, field.name
    assert adapter().send(request).reference
