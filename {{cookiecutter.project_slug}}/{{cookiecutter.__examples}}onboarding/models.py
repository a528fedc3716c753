"""A sign-up."""

import uuid

from django.db import models

from service.validators import one_line


class Submission(models.Model):
    """Somebody who signed up and is to get one welcome email.

    The key is a UUID because the marker of the mail is keyed by it: a number would be given out again by the
    next database.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100, validators=[one_line])
    email = models.EmailField()
    created_at = models.DateTimeField(auto_now_add=True)
    welcome_due_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        db_index=True,
        help_text="From when on the sweep publishes the welcome email; empty once the broker has taken it.",
    )

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"
