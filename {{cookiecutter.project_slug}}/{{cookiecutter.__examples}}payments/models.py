"""The payment: its row, its states, and the one place where it changes from one to another."""

import uuid
from datetime import timedelta

from django.db import models, transaction
from django.db.models import Exists, F, Q
from django.db.models.functions import Coalesce, Now

from payments.limits import dead_after, resend_for
from payments.records import OPEN, Evidence, Halt, Order, PaymentBase, State


class Payment(PaymentBase):
    """The one payment of an order; its key and the digest of its request never change (permissions, indexes: the base).

    `attempt` counts the claims and is the fence: who holds an older number changes nothing but by what was proven.
    `doubted` is the first attempt of which nobody knows whether it was executed. `due_at` says when to look again, by
    the database's clock: the sweep (pending), reconciliation (sending, uncertain). An open one without it is with a
    person. `contradicted`: something was seen that cannot be true beside its final state.
    """

    order = models.OneToOneField(Order, models.PROTECT)  # a second one for the same order is impossible
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
