"""The Celery app.

What it does with a task is written in ack_policy.toml and put in force by `redelivery.setup`.
"""

import os

from celery import Celery
from celery.signals import setup_logging, worker_init

import redelivery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "service.settings")

app = Celery("service")
app.config_from_object("django.conf:settings", namespace="CELERY")
redelivery.setup(app)
app.autodiscover_tasks()

WORKER_SOCKET_TIMEOUT_S = 10


@setup_logging.connect
def keep_django_logging(**kwargs) -> None:
    """Leave logging to Django's LOGGING: Celery sets up its own unless this signal has a receiver."""


@worker_init.connect
def wait_longer_for_the_broker(**kwargs) -> None:
    """Give workers more patience than a web request has.

    A worker that gives a connection up has its unacknowledged messages delivered again while they still run
    (measured), so a pause of the broker that a web request must not wait for is one that a worker should sit
    out.
    """
    options = {**app.conf.broker_transport_options, "socket_timeout": WORKER_SOCKET_TIMEOUT_S}
    app.conf.broker_transport_options = options
