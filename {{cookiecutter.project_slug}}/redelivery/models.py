"""What is kept of deliveries that were interrupted, and of messages that were taken out of their queues."""

from django.db import models


class Kill(models.Model):
    """One delivery that ended before its task did. The arguments are not kept, only their digest."""

    class Outcome(models.TextChoices):
        REDELIVERED = "redelivered"
        PARKED = "parked"
        ACKED = "acked", "acknowledged"

    message = models.CharField(max_length=255, help_text="The delivery tag, which stays with a message.")
    delivery = models.PositiveIntegerField(
        null=True, help_text="Which one of the message, from 1 on; empty where the broker does not count."
    )
    task = models.CharField(max_length=255)
    task_id = models.CharField(max_length=255)
    args_digest = models.CharField("digest of the arguments", max_length=64, help_text="SHA-256.")
    worker = models.CharField(max_length=255)
    release = models.CharField(max_length=255, blank=True)
    cause = models.CharField(max_length=255)
    outcome = models.CharField(max_length=20, choices=Outcome.choices)
    at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("-at",)
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=("message", "delivery"), name="redelivery_one_kill_a_delivery"),
        )

    def __str__(self) -> str:
        return f"{self.task}[{self.task_id}]: {self.cause}"


class Parked(models.Model):
    """A message that waits for an operator: it crashed too often, or no worker can make sense of it."""

    class State(models.TextChoices):
        WAITING = "waiting"
        REPLAYED = "replayed"
        DISCARDED = "discarded"

    item = models.CharField(max_length=64, unique=True, editable=False)  # so that it is stored once
    message = models.CharField(max_length=255, blank=True, db_index=True)
    task = models.CharField(max_length=255, blank=True)
    task_id = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255)
    reason = models.CharField(max_length=255)
    worker = models.CharField(max_length=255)
    at = models.DateTimeField(db_index=True)
    raw = models.TextField(help_text="The whole message, as it was in the queue.")
    state = models.CharField(max_length=20, choices=State.choices, default=State.WAITING)
    settled_at = models.DateTimeField(null=True)
    settled_by = models.CharField(max_length=255, blank=True)

    class Meta:
        ordering = ("-at",)
        verbose_name = "parked message"
        default_permissions = ("view",)
        permissions = (
            ("replay_parked", "Can put a parked message back on its queue"),
            ("discard_parked", "Can discard a parked message"),
        )

    def __str__(self) -> str:
        return f"{self.task or 'unreadable message'}[{self.task_id}]"
