"""The payment: its row, its states, and the one place where it changes from one to another."""

import uuid
from datetime import timedelta

from django.db import models
from django.db.models import Exists
from django.db.models.functions import Now

from payments.limits import dead_after, resend_for
from payments.records import OPEN, Evidence, Halt, Order, PaymentBase, State
from payments.statements import change_and_keep, execute, later, now


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
        sql = f"""
            UPDATE payments_payment SET state = 'sending', attempt = attempt + 1, claimed_at = {now()},
                due_at = {later(dead_after())}, resend_until = COALESCE(resend_until, {later(resend_for())})
            WHERE id = %s AND attempt = %s
                AND (state = 'pending' OR (state = 'uncertain' AND resend_until > {now()}))
                AND NOT EXISTS (SELECT 1 FROM payments_halt WHERE probe_at > {now()})"""
        if claimed := execute(sql, [self.pk, self.attempt]):
            self.state, self.attempt = State.SENDING, self.attempt + 1
        return claimed

    def move(self, to: State, who: str, seen: str, reference: str = "", due: timedelta | None = None) -> bool:
        """Change the state from the one that was read, and keep why; False if the row has moved on since.

        `due`: when to look again. Without it nobody but a person does.
        """
        final = to not in OPEN
        doubted = (self.doubted or self.attempt) if to == State.UNCERTAIN else None
        change = f"""
            UPDATE payments_payment SET state = %s, doubted = %s, due_at = {later(due)}, reference = %s,
                settled_at = {now() if final else "NULL"}, contradicted = %s AND contradicted,
                resend_until = {"NULL" if to == State.PENDING else "resend_until"}
            WHERE id = %s AND state = %s AND attempt = %s"""
        changed = [to, doubted, reference if final else "", not final, self.pk, self.state, self.attempt]
        keep = f"""
            INSERT INTO payments_evidence (payment_id, at, attempt, who, seen, reference, before, after)
            SELECT id, {now()}, attempt, %s, %s, %s, %s, %s"""
        if not change_and_keep((change, changed), (keep, [who, seen, reference, self.state, to])):
            return False
        self.state, self.doubted = to, doubted
        return True

    def note(self, who: str, seen: str, reference: str = "") -> None:
        """Keep what was seen and changes nothing."""
        kept = {"who": who, "seen": seen, "reference": reference, "before": self.state, "after": self.state}
        Evidence.objects.create(payment=self, attempt=self.attempt, **kept)
