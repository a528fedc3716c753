"""A lead."""

import uuid

from django.db import models

from service.validators import one_line


class Lead(models.Model):
    """Somebody who wants to hear from the team."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, validators=[one_line])
    email = models.EmailField()
    message = models.TextField(max_length=5000)
    created_at = models.DateTimeField(auto_now_add=True)
    alert_due_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        db_index=True,
        help_text="From when on the sweep publishes the alert again; empty once it is confirmed.",
    )
    alert_confirmed_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the mail server last took its alert.",
    )

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"
