"""The admin: kills to read, parked messages to replay or discard."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from redelivery import kills, parking
from redelivery.models import Kill, Parked
from redelivery.summary import OUTCOMES, summary

#: Characters of arguments that a page shows.
SHOWN = 10_000


class ReadOnly(admin.ModelAdmin):
    """Nothing is added, changed or deleted by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Kill)
class KillAdmin(ReadOnly):
    """Interrupted deliveries, with the same table as ``manage.py kills`` for what the filters leave."""

    list_display = ("at", "task", "cause", "outcome", "delivery", "worker", "release", "task_id")
    list_filter = ("outcome", "cause", "task", "worker", "release")
    search_fields = ("task", "task_id", "message", "args_digest", "worker")
    date_hierarchy = "at"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        if cl := getattr(response, "context_data", {}).get("cl"):
            columns = ("day", "task", "cause", "kills", *OUTCOMES)
            rows = [[row[name] for name in columns] for row in summary(cl.queryset)]
            response.context_data.update(summary_columns=columns, summary_rows=rows)
        return response


@admin.register(Parked)
class ParkedAdmin(ReadOnly):
    """Messages that are out of their queues until an operator decides."""

    list_display = ("at", "__str__", "queue", "reason", "state", "settled_by", "settled_at")
    list_filter = ("state", "queue", "task")
    search_fields = ("task", "task_id", "message")
    date_hierarchy = "at"
    actions = ("replay", "discard")
    exclude = ("item",)
    readonly_fields = ("arguments", "history")

    @admin.action(description="Replay: put back on the queue", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Parked]) -> HttpResponse | None:
        return self._settle(request, queryset, "replay", parking.replay)

    @admin.action(description="Discard", permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Parked]) -> HttpResponse | None:
        return self._settle(request, queryset, "discard", parking.discard)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("redelivery.replay_parked")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("redelivery.discard_parked")

    @admin.display(description="arguments")
    def arguments(self, parked: Parked) -> str:
        """Positional and keyword arguments, as far as they can be read and shown."""
        try:
            text = json.dumps(kills.arguments(json.loads(parked.raw)), default=repr, ensure_ascii=False)
        except Exception as error:  # kombu's errors for what is not JSON have no common base
            return f"They cannot be read: {error!r}"
        return text if len(text) <= SHOWN else f"{text[:SHOWN]} ... ({len(text)} characters)"

    @admin.display(description="history")
    def history(self, parked: Parked) -> str:
        """The interrupted deliveries of this message, oldest first."""
        found = Kill.objects.filter(message=parked.message).order_by("at") if parked.message else ()
        return "\n".join(
            f"{kill.at:%Y-%m-%d %H:%M:%S} delivery {kill.delivery}: {kill.cause}, {kill.outcome} "
            f"({kill.worker} {kill.release})".rstrip()
            for kill in found
        )

    def _settle(
        self,
        request: HttpRequest,
        queryset: QuerySet[Parked],
        name: str,
        settle: Callable[[Parked, str], None],
    ) -> HttpResponse | None:
        """Ask first, then settle each message; say which of them were not, and why."""
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "title": f"{name.capitalize()} these messages?",
                "opts": self.opts,
                "action": name,
                "parked": queryset,
            }
            return TemplateResponse(request, "admin/redelivery/parked/confirm.html", context)
        for parked in queryset:
            try:
                settle(parked, request.user.get_username())
            except parking.NotSettled as error:
                self.message_user(request, f"{parked}: {error}", messages.ERROR)
            else:
                self.log_change(request, parked, f"{name}: done")
                self.message_user(request, f"{parked}: {parked.state}.", messages.SUCCESS)
        return None
