"""A simulated provider of the tests' own, and payments in every state."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from payments.models import Payment, State
from payments.redelivery_case import pending
from payments.testing import simulator


@pytest.fixture(scope="session")
def shared_provider():
    """The simulated provider, in a process of its own."""
    with simulator() as running:
        yield running


@pytest.fixture
def provider(shared_provider, monkeypatch):
    """The simulated provider with empty books, well-behaved, and impatient senders."""
    monkeypatch.setenv("PAYMENT_PROVIDER", "simulated")
    monkeypatch.setenv("PAYMENT_SIMULATOR_URL", shared_provider.url)
    monkeypatch.setenv("PAYMENT_TIMEOUT_S", "1")
    shared_provider.forget()
    shared_provider.behave()
    yield shared_provider
    shared_provider.behave()


@pytest.fixture
def payment(transactional_db) -> Payment:
    """A pending payment."""
    return pending()


@pytest.fixture
def uncertain(payment) -> Payment:
    """A payment whose only attempt got no answer."""
    assert payment.claim() and payment.move(State.UNCERTAIN, "worker", "Unknown: timed out", due=timedelta(0))
    return payment


@pytest.fixture
def later():
    """Let time pass for all payments, as far as they can tell: `later(hours=2)`."""

    def pass_by(**time) -> None:
        for row in Payment.objects.all():
            columns = ("created_at", "due_at", "claimed_at", "resend_until", "settled_at")
            moved = {c: getattr(row, c) - timedelta(**time) for c in columns if getattr(row, c)}
            Payment.objects.filter(pk=row.pk).update(**moved)

    return pass_by


@pytest.fixture
def db_now():
    """Return the database's clock."""
    return lambda: Payment.objects.annotate(now=Now()).values_list("now", flat=True).first()
