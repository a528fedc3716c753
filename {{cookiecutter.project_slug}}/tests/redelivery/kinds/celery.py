"""The kinds' Celery app."""

import os

from celery import Celery

import redelivery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.redelivery.kinds.settings")

app = Celery("kinds")
app.config_from_object("django.conf:settings", namespace="CELERY")
redelivery.setup(app)
app.autodiscover_tasks()
