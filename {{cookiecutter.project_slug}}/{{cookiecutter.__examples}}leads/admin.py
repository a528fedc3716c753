"""Leads in the admin."""

from django.contrib import admin

from leads.models import Lead


@admin.register(Lead)
class LeadAdmin(admin.ModelAdmin):
    """Who wants to hear from the team, and whether the team was told."""

    list_display = ("name", "email", "created_at", "alert_confirmed_at")
    list_filter = (("alert_confirmed_at", admin.EmptyFieldListFilter),)
    search_fields = ("name", "email", "message")
    date_hierarchy = "created_at"
    readonly_fields = ("id", "created_at", "alert_due_at", "alert_confirmed_at")
