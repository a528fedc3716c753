"""States and rows around the payment: the order that is paid, what was seen, and the halt."""

import uuid

from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

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
    amount = models.PositiveBigIntegerField(validators=[MinValueValidator(1)])
    currency = models.CharField(max_length=3, validators=[RegexValidator(r"\A[A-Z]{3}\Z")])
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(amount__gt=0), name="order_amount_positive"),)

    def __str__(self) -> str:
        return f"{self.id} ({self.amount} {self.currency})"


class Evidence(models.Model):
    """Who saw what of a payment, when, and what that changed. A trigger of the database refuses to change one."""

    payment = models.ForeignKey("payments.Payment", models.PROTECT)
    at = models.DateTimeField(db_default=Now(), editable=False)
    attempt = models.PositiveIntegerField()
    who = models.CharField(max_length=200)
    seen = models.TextField()
    reference = models.CharField(max_length=255, blank=True)
    before = models.CharField(max_length=9)
    after = models.CharField(max_length=9)

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


class PaymentBase(models.Model):
    """What a payment needs beside its path: names, indexes for what is open and what is old, permissions."""

    class Meta:
        abstract = True
        indexes = (
            models.Index(
                fields=["state", "due_at"], condition=Q(settled_at__isnull=True), name="payment_open"
            ),
            models.Index(
                fields=["settled_at"], condition=Q(settled_at__isnull=False), name="payment_settled"
            ),
            models.Index(fields=["id"], condition=Q(contradicted=True), name="payment_contradicted"),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(state__in=OPEN) ^ ~Q(settled_at=None), name="payment_open_or_settled"
            ),
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
