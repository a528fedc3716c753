"""Settings, one file a topic. Values come from the environment; .env.example lists the variables."""
# ruff: noqa: F403

from service.settings.cache import *
from service.settings.celery import *
from service.settings.core import *
from service.settings.database import *
from service.settings.email import *
from service.settings.logging import *
from service.settings.security import *
from service.settings.web import *

# isort: split
from service.settings.own import *
