"""A small Django project of its own with one task for each guard, to measure what each guard promises.

It shares nothing with the service but the `redelivery` app: whoever copies that app can copy this beside it.
"""

from tests.redelivery.guards.celery import app as celery_app

__all__ = ["celery_app"]
