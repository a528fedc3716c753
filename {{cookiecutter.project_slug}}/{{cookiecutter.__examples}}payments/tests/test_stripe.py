"""The Stripe adapter, through the real SDK and real HTTP, for everything that Stripe may answer."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from payments.models import Payment, State
from payments.providers import Accepted, Misconfigured, NotFound, NotSent, Rejected, Request, Unknown
from payments.providers.stripe import Stripe
from payments.tasks import reconcile_payment, send_payment
from payments.tests.stripe_stub import stripe_stub
from redelivery.testing.processes import free_port

HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
def stub():
    with stripe_stub() as (running, url):
        running.url = url
        yield running


@pytest.fixture
def adapter(stub):
    return Stripe("sk_test_1", timeout_s=1, base=stub.url)


@pytest.fixture
def request_():
    return Request(str(uuid.uuid4()), "order-1", "cus_1", "pm_1", 1250, "EUR")


def posts(stub) -> list:
    return [request for request in stub.requests if request[0] == "POST"]


ANSWERS = {
    "": Accepted,
    "declined": Rejected,
    "bad request": Rejected,
    "missing": Rejected,
    "bad key": Misconfigured,
    "no permission": Misconfigured,
    "rate": NotSent,
    "lock": NotSent,
    "in use": Unknown,
    "500": Unknown,
    "502": Unknown,
    "503": Unknown,
    "broken": Unknown,
    "truncated": Unknown,
    "reset": Unknown,
    "hang": Unknown,
    "processing": Unknown,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_every_answer_proves(stub, adapter, request_, answer):
    stub.do = answer
    outcome = adapter.send(request_)
    assert type(outcome) is ANSWERS[answer], outcome
    assert not getattr(outcome, "alarm", False) and not getattr(outcome, "first_hand", False)
    assert len(posts(stub)) == 1  # the SDK retries nothing by itself


def test_what_is_sent(stub, adapter, request_):
    outcome = adapter.send(request_)
    assert outcome.reference == "pi_1"
    [(_, path, form, headers)] = posts(stub)
    assert path == "/v1/payment_intents"
    assert headers["Idempotency-Key"] == request_.key
    assert (form["amount"], form["currency"], form["customer"]) == ("1250", "eur", "cus_1")
    assert (form["confirm"], form["off_session"], form["payment_method"]) == ("true", "true", "pm_1")
    assert form["metadata[payment_key]"] == request_.key


def test_nobody_listens(request_):
    adapter = Stripe("sk_test_1", timeout_s=1, base=f"http://127.0.0.1:{free_port()}")
    assert type(adapter.send(request_)) is NotSent


def test_key_with_another_body_is_an_alarm(stub, adapter, request_):
    adapter.send(request_)
    outcome = adapter.send(replace(request_, amount=1251))
    assert type(outcome) is Unknown and outcome.alarm
    assert len(stub.intents) == 1


@pytest.mark.parametrize("lost", ["broken", "truncated", "reset", "hang"])
def test_lost_answer_is_replayed(stub, adapter, request_, lost):
    stub.do = lost
    assert type(adapter.send(request_)) is Unknown
    stub.do = ""
    assert adapter.send(request_) == Accepted("pi_1 is succeeded", "pi_1")
    assert len(stub.intents) == 1


def test_replayed_decline_speaks_for_the_first_request(stub, adapter, request_):
    stub.do = "declined"
    first, second = adapter.send(request_), adapter.send(request_)
    assert (first.first_hand, second.first_hand) == (False, True)
    assert first.reference == second.reference == "pi_1"


class TestReadBack:
    """By list, filtered here: immediate, but not found proves nothing."""

    def test_found_among_others(self, stub, adapter, request_):
        for _ in range(3):
            adapter.send(replace(request_, key=str(uuid.uuid4())))
        adapter.send(request_)
        adapter.send(replace(request_, key=str(uuid.uuid4())))
        assert adapter.read_back(request_, HOUR_AGO) == Accepted("pi_4 is succeeded", "pi_4")
        assert stub.requests[-1][2]["customer"] == "cus_1"

    def test_found_on_the_third_page_and_not_looked_for_beyond(self, stub, adapter, request_):
        adapter.send(request_)
        form = {"amount": "1", "currency": "eur", "customer": "cus_1", "metadata[order]": ""}
        for number in range(299):
            stub.intent({**form, "metadata[payment_key]": str(number)}, "succeeded")
        assert adapter.read_back(request_, HOUR_AGO).reference == "pi_1"
        stub.intent({**form, "metadata[payment_key]": "300"}, "succeeded")
        before = len(stub.requests)
        assert type(adapter.read_back(request_, HOUR_AGO)) is Unknown
        assert len(stub.requests) - before <= adapter.read_back_calls

    def test_declined_is_first_hand(self, stub, adapter, request_):
        stub.do = "declined"
        adapter.send(request_)
        stub.do = ""
        outcome = adapter.read_back(request_, HOUR_AGO)
        assert type(outcome) is Rejected and outcome.first_hand

    def test_processing_is_not_settled(self, stub, adapter, request_):
        stub.do = "processing"
        adapter.send(request_)
        assert type(adapter.read_back(request_, HOUR_AGO)) is Unknown

    def test_not_found(self, adapter, request_):
        assert type(adapter.read_back(request_, HOUR_AGO)) is NotFound
        assert not adapter.not_found_is_proof

    @pytest.mark.parametrize("answer", ["bad key", "rate", "500"])
    def test_unreadable(self, stub, adapter, request_, answer):
        stub.do = answer
        assert type(adapter.read_back(request_, HOUR_AGO)) is Unknown

    def test_charged_twice_is_an_alarm(self, stub, adapter, request_):
        adapter.send(request_)
        stub.keys.clear()  # as after a day
        adapter.send(request_)
        outcome = adapter.read_back(request_, HOUR_AGO)
        assert type(outcome) is Unknown and outcome.alarm


class TestWholePath:
    """The task and reconciliation with Stripe."""

    @pytest.fixture(autouse=True)
    def stripe(self, stub, monkeypatch):
        monkeypatch.setenv("PAYMENT_PROVIDER", "stripe")
        monkeypatch.setenv("STRIPE_API_KEY", "sk_test_1")
        monkeypatch.setenv("STRIPE_API_BASE", stub.url)
        monkeypatch.setenv("PAYMENT_TIMEOUT_S", "1")

    @pytest.mark.parametrize("answer", ANSWERS)
    def test_one_intent_whatever_happens(self, stub, payment, deliver, answer):
        stub.do = answer
        state = deliver(send_payment, str(payment.pk))
        stub.do = ""
        if state == State.UNCERTAIN:
            state = deliver(reconcile_payment, str(payment.pk), "1")
        elif state == State.PENDING:
            assert not stub.intents
        expected = {Rejected: State.REJECTED, NotSent: State.PENDING, Misconfigured: State.PENDING}
        wanted = expected.get(ANSWERS[answer], State.SENT)
        assert state == (State.UNCERTAIN if answer == "processing" else wanted)
        assert len(stub.intents) == (
            state not in (State.PENDING,) and answer not in ("bad request", "missing")
        )
        assert len({headers["Idempotency-Key"] for *_, headers in posts(stub)}) == 1

    def test_no_key_is_said_and_nothing_is_touched(self, payment, deliver, monkeypatch):
        monkeypatch.setenv("STRIPE_API_KEY", "")
        assert "STRIPE_API_KEY is empty" in str(deliver(send_payment, str(payment.pk)))
        assert Payment.objects.get().attempt == 0
