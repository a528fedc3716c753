"""A small Django project of its own with one task for each kind of code that a crash map must cope with."""

from tests.redelivery.kinds.celery import app as celery_app

__all__ = ["celery_app"]
