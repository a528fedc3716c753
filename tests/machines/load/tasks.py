"""Tasks that take a while and say when they ran."""

import time

from celery import shared_task
from django.utils import timezone

from load.models import Run


def _run(task, number: int, seconds: float) -> None:
    """A second run is seen as soon as it begins, so it ends at once: nobody waits for it."""
    queue = task.request.delivery_info["routing_key"]
    row = Run(
        number=number, queue=queue, worker=task.request.hostname, seconds=seconds, started_at=timezone.now()
    )
    again = Run.objects.filter(number=number).exists()
    row.save()
    time.sleep(0 if again else seconds)
    Run.objects.filter(pk=row.pk).update(ended_at=timezone.now())


@shared_task(bind=True)
def short(self, number: int, seconds: float) -> None:
    """Sleep, and leave a row."""
    _run(self, number, seconds)


@shared_task(bind=True)
def medium(self, number: int, seconds: float) -> None:
    """Sleep for up to a minute."""
    _run(self, number, seconds)


@shared_task(bind=True)
def long(self, number: int, seconds: float) -> None:
    """Sleep for longer."""
    _run(self, number, seconds)


@shared_task(bind=True)
def hog(self, number: int, megabytes: int) -> None:
    """Take more memory than there is."""
    row = Run(
        number=number, queue="short", worker=self.request.hostname, seconds=0, started_at=timezone.now()
    )
    row.save()
    blocks = [bytearray(2**20) for _ in range(megabytes)]
    time.sleep(1)
    Run.objects.filter(pk=row.pk).update(ended_at=timezone.now(), seconds=len(blocks))
