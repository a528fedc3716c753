"""What is in doubt is read back, sent again only where that cannot charge twice, or shown to a person."""

import pytest

from payments import reconciliation
from payments.limits import dead_after
from payments.models import Payment, State
from payments.providers import Rejected
from payments.providers.simulated import Simulated
from payments.publishing import publish_due
from payments.tasks import reconcile_payment, send_payment

pytestmark = pytest.mark.django_db(transaction=True)


def reconcile(deliver, payment) -> str:
    payment = Payment.objects.get(pk=payment.pk)
    return deliver(reconcile_payment, str(payment.pk), str(payment.attempt))


@pytest.fixture
def sees_everything(monkeypatch):
    """A provider whose reads prove something also when nothing is found, or do not: `sees_everything(False)`."""
    return lambda proof: monkeypatch.setattr(Simulated, "not_found_is_proof", proof)


class TestFound:
    """The provider knows."""

    @pytest.mark.parametrize("behaviour", ["error after", "garbage after", "hang after", "drop after"])
    def test_charged_is_settled_without_another_request(self, provider, payment, deliver, behaviour):
        provider.behave(behaviour)
        assert deliver(send_payment, str(payment.pk)) == State.UNCERTAIN
        provider.behave()
        assert reconcile(deliver, payment) == State.SENT
        payment.refresh_from_db()
        assert payment.reference == provider.charges()[0]["reference"]
        assert len(provider.calls()) == len(provider.charges()) == 1

    def test_declined_is_settled(self, provider, uncertain, deliver, monkeypatch):
        monkeypatch.setattr(Simulated, "read_back", lambda *_: Rejected("failed", first_hand=True))
        assert reconcile(deliver, uncertain) == State.REJECTED


class TestNotFound:
    """The provider does not know, which is proof or is not."""

    def test_proof_lets_it_be_sent_as_new(self, provider, uncertain, deliver):
        assert reconcile(deliver, uncertain) == State.PENDING
        row = Payment.objects.get()
        assert row.doubted is None and row.resend_until is None and row.due_at
        assert deliver(send_payment, str(uncertain.pk)) == State.SENT

    def test_without_proof_the_same_is_sent_again(self, provider, uncertain, deliver, sees_everything):
        sees_everything(False)
        assert reconcile(deliver, uncertain) == State.SENT
        assert [call["key"] for call in provider.calls()] == [str(uncertain.provider_key)]

    def test_sent_again_a_no_is_no_proof(self, provider, uncertain, deliver, sees_everything):
        sees_everything(False)
        provider.behave("reject")
        assert reconcile(deliver, uncertain) == State.UNCERTAIN

    def test_after_the_keys_lifetime_it_is_never_sent_again(
        self, provider, uncertain, deliver, sees_everything, later
    ):
        sees_everything(False)
        later(hours=24)
        assert reconcile(deliver, uncertain) == State.UNCERTAIN
        assert not provider.calls()
        assert Payment.objects.get().due_at is None  # with a person
        later(days=30)
        assert publish_due() == 0

    def test_unreadable_provider(self, provider, uncertain, deliver, later):
        provider.behave(unreadable=True)
        later(hours=24)
        assert reconcile(deliver, uncertain) == State.UNCERTAIN
        assert not provider.calls()

    def test_while_halted_it_waits(self, provider, uncertain, deliver, sees_everything, payment):
        sees_everything(False)
        provider.behave("auth")
        assert reconcile(deliver, uncertain) == State.UNCERTAIN
        assert reconcile(deliver, uncertain) == State.UNCERTAIN
        assert len(provider.calls()) == 1
        assert Payment.objects.get().due_at  # not with a person yet
        provider.behave()


class TestDeadWorkers:
    """A claim whose worker cannot be alive any more."""

    @pytest.fixture
    def claimed(self, payment):
        assert payment.claim()
        return payment

    def test_not_before_its_hard_limit(self, provider, claimed, deliver, later):
        later(seconds=dead_after().total_seconds() - 5)
        assert publish_due() == 0
        assert reconcile(deliver, claimed) == "not in doubt"
        assert Payment.objects.get().state == State.SENDING

    def test_then_it_is_looked_into_never_reset(self, provider, claimed, deliver, later, sees_everything):
        sees_everything(False)
        provider.behave(unreadable=True)
        later(hours=24)
        assert publish_due() == 1
        assert reconcile(deliver, claimed) == State.UNCERTAIN
        assert not provider.calls()

    def test_charged_before_it_died(self, provider, claimed, deliver, later):
        Simulated.from_environment().send(claimed.request)
        later(hours=1)
        assert reconcile(deliver, claimed) == State.SENT
        assert len(provider.charges()) == 1

    def test_message_of_an_older_attempt_is_skipped(self, provider, claimed, deliver, later):
        later(hours=1)
        assert deliver(reconcile_payment, str(claimed.pk), "0") == "not in doubt"

    def test_of_two_at_once_one_sends(self, provider, uncertain):
        provider.behave(unreadable=True)
        both = [reconciliation.in_doubt().get(pk=uncertain.pk) for _ in range(2)]
        assert [reconciliation.reconcile(one) for one in both] == [State.SENT, "moved on"]
        assert len(provider.calls()) == 1
        assert Payment.objects.get().state == State.SENT
