"""An order, its one payment, what was seen of it, and the one place where a payment changes its state."""

import uuid
from datetime import timedelta

from django.db import models, transaction
from django.db.models import Exists, F, Q
from django.db.models.functions import Coalesce, Now

from payments.limits import dead_after, resend_for
from payments.providers import Request


class State(models.TextChoices):
    """PENDING: provably nothing executed. SENDING: claimed. UNCERTAIN: executed or not. The others are final."""

    PENDING = "pending"
    SENDING = "sending"
    UNCERTAIN = "uncertain"
    SENT = "sent"
    REJECTED = "rejected"


OPEN = (State.PENDING, State.SENDING, State.UNCERTAIN)


class Order(models.Model):
    """The business change that is to be paid. `amount` is in minor units of `currency` (ISO 4217)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    customer = models.CharField(max_length=100)
    method = models.CharField("payment method", max_length=100)
    amount = models.PositiveBigIntegerField()
    currency = models.CharField(max_length=3)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"{self.id} ({self.amount} {self.currency})"


class Payment(models.Model):
    """The one payment of an order. Its provider key and the digest of its request never change.

    `attempt` counts the claims and is the fence: who holds an older number changes nothing but by what was proven.
    `doubted` is the first attempt of which nobody knows whether it was executed. `due_at` says when to look again, by
    the database's clock: the sweep (pending), reconciliation (sending, uncertain). An open one without it is with a
    person. `contradicted`: something was seen that cannot be true beside its final state.
    """

    order = models.OneToOneField(Order, models.PROTECT)
    provider_key = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    state = models.CharField(max_length=9, choices=State, default=State.PENDING)
    attempt = models.PositiveIntegerField(default=0)
    doubted = models.PositiveIntegerField(null=True)
    reference = models.CharField("provider's reference", max_length=255, blank=True)
    contradicted = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    due_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    resend_until = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (
            models.Index(fields=["state", "due_at"], condition=Q(state__in=OPEN), name="payment_open"),
            models.Index(fields=["settled_at"], condition=~Q(state__in=OPEN), name="payment_settled"),
            models.Index(fields=["id"], condition=Q(contradicted=True), name="payment_contradicted"),
        )
        permissions = (
            ("read_back", "Can read a payment back from the provider"),
            ("record_charged", "Can record a payment as charged"),
            ("record_not_charged", "Can record a payment as not charged and send it again"),
        )

    def __str__(self) -> str:
        return f"payment of order {self.order_id}"

    @property
    def request(self) -> Request:
        """What the provider is asked for."""
        order = self.order
        return Request(
            str(self.provider_key), str(order.pk), order.customer, order.method, order.amount, order.currency
        )

    @classmethod
    def to_send(cls) -> models.QuerySet:
        """Read payments with what a send needs to know: the order, and whether payments are halted."""
        return cls.objects.select_related("order").annotate(halted=Exists(Halt.objects.all()))

    def claim(self) -> bool:
        """Take this row, as it was read, for one send; True for exactly one of all who try, False while halted.

        From pending; or from uncertain, to send the same again, but only while the provider knows the key.
        """
        again = Q(state=State.UNCERTAIN, resend_until__gt=Now())
        row = Payment.objects.filter(Q(state=State.PENDING) | again, pk=self.pk, attempt=self.attempt)
        claimed = row.exclude(Exists(Halt.objects.filter(probe_at__gt=Now()))).update(
            state=State.SENDING,
            attempt=F("attempt") + 1,
            claimed_at=Now(),
            due_at=Now() + dead_after(),
            resend_until=Coalesce(F("resend_until"), Now() + resend_for()),
        )
        if claimed:
            self.state, self.attempt = State.SENDING, self.attempt + 1
        return bool(claimed)

    def move(self, to: State, who: str, seen: str, reference: str = "", due: timedelta | None = None) -> bool:
        """Change the state from the one that was read, and keep why; False if the row has moved on since.

        `due`: when to look again. Without it nobody but a person does.
        """
        doubted = (self.doubted or self.attempt) if to == State.UNCERTAIN else None
        changes: dict = {"state": to, "doubted": doubted, "due_at": Now() + due if due is not None else None}
        if to == State.PENDING:
            changes |= {"resend_until": None}
        elif to not in OPEN:
            changes |= {"settled_at": Now(), "reference": reference, "contradicted": False}
        with transaction.atomic():
            row = Payment.objects.filter(pk=self.pk, state=self.state, attempt=self.attempt)
            if not row.update(**changes):
                return False
            self.note(who, seen, reference, to)
        self.state, self.doubted = to, doubted
        return True

    def note(self, who: str, seen: str, reference: str = "", to: State | None = None) -> None:
        """Keep what was seen."""
        found = {"attempt": self.attempt, "who": who, "seen": seen, "reference": reference}
        Evidence.objects.create(payment=self, before=self.state, after=to or self.state, **found)


class Evidence(models.Model):
    """Who saw what of a payment, when, and what that changed. A trigger of the database refuses to change one."""

    payment = models.ForeignKey(Payment, models.PROTECT)
    at = models.DateTimeField(db_default=Now(), editable=False)
    attempt = models.PositiveIntegerField()
    who = models.CharField(max_length=200)
    seen = models.TextField()
    reference = models.CharField(max_length=255, blank=True)
    before = models.CharField(max_length=9, choices=State)
    after = models.CharField(max_length=9, choices=State)

    class Meta:
        verbose_name_plural = "evidence"

    def __str__(self) -> str:
        return f"{self.who}: {self.seen}"


class Halt(models.Model):
    """The one row that exists while the provider refuses our credentials: until `probe_at` nothing is sent."""

    since = models.DateTimeField(db_default=Now())
    probe_at = models.DateTimeField()
    reason = models.TextField()

    def __str__(self) -> str:
        return self.reason
