"""Submissions in the admin."""

from django.contrib import admin

from onboarding.models import Submission


@admin.register(Submission)
class SubmissionAdmin(admin.ModelAdmin):
    """Who signed up, and whether the welcome email still waits to be published."""

    list_display = ("name", "email", "created_at", "welcome_due_at")
    search_fields = ("name", "email")
    date_hierarchy = "created_at"
    readonly_fields = ("id", "created_at", "welcome_due_at")
