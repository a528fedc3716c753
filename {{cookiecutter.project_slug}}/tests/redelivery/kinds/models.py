"""Rows that the kinds' tasks write."""

from django.db import models


class Effect(models.Model):
    """One effect of one call. Its primary key is no number that counts: a project may have none of these."""

    id = models.UUIDField(primary_key=True)
    call = models.CharField(max_length=100)

    def __str__(self):
        return self.call
