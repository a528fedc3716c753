"""What the proof's tasks leave behind: one row for each message that was sent, and one for each time it ran."""

from django.db import models


class Sent(models.Model):
    """A message that the broker took."""

    number = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField(auto_now_add=True)


class Run(models.Model):
    """One run of a task; one that was cut off has no end."""

    number = models.BigIntegerField(db_index=True)
    queue = models.CharField(max_length=50)
    worker = models.CharField(max_length=255)
    seconds = models.FloatField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
