"""The guards' Celery app."""

import os

from celery import Celery

import redelivery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.redelivery.guards.settings")

app = Celery("guards")
app.config_from_object("django.conf:settings", namespace="CELERY")
redelivery.setup(app)
app.autodiscover_tasks()
