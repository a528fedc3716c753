"""Payments in the admin: what is open and for how long, what was seen, and three actions that leave evidence."""

from django import forms
from django.contrib import admin, messages
from django.db.models import OuterRef, Subquery
from django.db.models.functions import Now
from django.shortcuts import render
from django.utils.timesince import timesince

from payments import operator
from payments.models import Payment
from payments.records import Evidence, Halt, Order


class EvidenceForm(forms.Form):
    """What a person saw, and of which payment: the one that was on the page, as it was then."""

    seen = forms.CharField(
        label="What did you see, and where?",
        min_length=10,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 4, "cols": 80}),
        help_text="For example: Dashboard, Payments, searched for the order: one charge, succeeded at 10:42.",
    )
    reference = forms.CharField(
        label="The provider's reference",
        max_length=255,
        help_text="Of the charge, or of the search or support case.",
    )
    state = forms.CharField(widget=forms.HiddenInput)
    attempt = forms.IntegerField(widget=forms.HiddenInput, min_value=0)


class EvidenceInline(admin.TabularInline):
    """What was seen, newest first; nobody adds, changes or deletes it here."""

    model = Evidence
    fields = readonly_fields = ("at", "who", "attempt", "before", "after", "seen", "reference")
    ordering = ("-pk",)
    extra = 0
    can_delete = False

    def has_add_permission(self, request, obj=None) -> bool:
        return False

    def has_change_permission(self, request, obj=None) -> bool:
        return False


class ReadOnly(admin.ModelAdmin):
    """Only to be looked at."""

    def has_add_permission(self, request) -> bool:
        return False

    def has_change_permission(self, request, obj=None) -> bool:
        return False

    def has_delete_permission(self, request, obj=None) -> bool:
        return False


@admin.register(Payment)
class PaymentAdmin(ReadOnly):
    """Payments with their age and what was last seen."""

    list_display = (
        "order_id",
        "amount",
        "state",
        "with_a_person",
        "age",
        "attempt",
        "last_evidence",
        "contradicted",
    )
    list_filter = ("state", ("due_at", admin.EmptyFieldListFilter), "contradicted")
    search_fields = ("=order__id", "=provider_key", "=reference")
    list_select_related = ("order",)
    show_full_result_count = False
    ordering = ("-id",)
    inlines = (EvidenceInline,)
    actions = ("read_back_now", "record_as_charged", "record_as_not_charged")

    def get_queryset(self, request):
        last = Evidence.objects.filter(payment=OuterRef("pk")).order_by("-pk")
        seen = {
            "now": Now(),
            "seen": Subquery(last.values("seen")[:1]),
            "seen_by": Subquery(last.values("who")[:1]),
        }
        return super().get_queryset(request).annotate(**seen)

    @admin.display(description="amount")
    def amount(self, payment) -> str:
        """In minor units, with its currency."""
        return f"{payment.order.amount} {payment.order.currency}"

    @admin.display(description="with a person", boolean=True)
    def with_a_person(self, payment) -> bool:
        """Whether nothing but a person will settle it."""
        return payment.contradicted or (payment.settled_at is None and payment.due_at is None)

    @admin.display(description="age", ordering="-created_at")
    def age(self, payment) -> str:
        """Since it was made, by the database's clock."""
        return timesince(payment.created_at, payment.now)

    @admin.display(description="last evidence")
    def last_evidence(self, payment) -> str:
        """Who saw what."""
        return f"{payment.seen_by}: {payment.seen[:120]}" if payment.seen else "-"

    def has_read_back_permission(self, request) -> bool:
        return request.user.has_perm("payments.read_back")

    def has_record_charged_permission(self, request) -> bool:
        return request.user.has_perm("payments.record_charged")

    def has_record_not_charged_permission(self, request) -> bool:
        return request.user.has_perm("payments.record_not_charged")

    @admin.action(description="Read back now", permissions=["read_back"])
    def read_back_now(self, request, queryset) -> None:
        """Ask the provider what it knows of each."""
        for payment in queryset:
            try:
                chosen = operator.seen_by(payment.pk, payment.state, payment.attempt)
                state = operator.read_back(chosen, who(request))
                self.message_user(request, f"{payment}: {state} after it was read back.", messages.SUCCESS)
            except operator.MovedOn as reason:
                self.message_user(request, str(reason), messages.WARNING)

    @admin.action(description="Record as charged", permissions=["record_charged"])
    def record_as_charged(self, request, queryset):
        """Settle one as sent, with evidence."""
        return self.with_evidence(request, queryset, "record_as_charged", operator.record_charged)

    @admin.action(description="Record as not charged and send again", permissions=["record_not_charged"])
    def record_as_not_charged(self, request, queryset):
        """Have one sent again, with evidence."""
        return self.with_evidence(request, queryset, "record_as_not_charged", operator.record_not_charged)

    def with_evidence(self, request, queryset, action: str, record):
        """Ask for the evidence; when it is there, record it, or tell who was slower."""
        if queryset.count() != 1:
            self.message_user(request, "Choose one payment: evidence is about one.", messages.ERROR)
            return None
        payment = queryset.get()
        posted = "seen" in request.POST
        begun = {"state": payment.state, "attempt": payment.attempt}
        form = EvidenceForm(request.POST if posted else None, initial=begun)
        if not form.is_valid():
            page = {
                **self.admin_site.each_context(request),
                "title": self.get_actions(request)[action][2],
                "payment": payment,
                "evidence": payment.evidence_set.order_by("-pk"),
                "form": form,
                "action": action,
                "opts": self.opts,
            }
            return render(request, "payments/evidence.html", page)
        data = form.cleaned_data
        try:
            chosen = operator.seen_by(payment.pk, data["state"], data["attempt"])
            record(chosen, who(request), data["seen"], data["reference"])
            self.message_user(request, f"Recorded: {chosen} is {chosen.state}.", messages.SUCCESS)
        except operator.MovedOn as reason:
            self.message_user(request, str(reason), messages.ERROR)
        return None


def who(request) -> str:
    """Return the name under which evidence is kept; the account may be renamed or deleted later."""
    return f"operator {request.user.get_username()} (id {request.user.pk})"[:200]


@admin.register(Order)
class OrderAdmin(ReadOnly):
    """Orders: what a payment sends must not change."""

    list_display = ("id", "customer", "amount", "currency", "created_at")


@admin.register(Halt)
class HaltAdmin(ReadOnly):
    """Whether payments are halted, since when, and why. `manage.py payments --resume` ends it."""

    list_display = ("since", "reason", "probe_at")
