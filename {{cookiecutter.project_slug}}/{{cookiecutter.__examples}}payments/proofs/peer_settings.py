"""The service's settings and another project's outbox beside ours: `pip install django-reliable-outbox==0.1.1`."""

from service.settings import *  # noqa: F403
from service.settings import INSTALLED_APPS as OURS

INSTALLED_APPS = [*OURS, "reliable_outbox"]
