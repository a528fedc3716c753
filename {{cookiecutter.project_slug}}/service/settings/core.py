"""Who this service is, its apps, and its language."""

from service import own
from service.settings.env import env

SERVICE_NAME = env.str("SERVICE_NAME", default="Service")
DOMAIN = env.domain("DOMAIN", default="localhost")
TEAM_EMAIL = env.address("TEAM_EMAIL", default=f"team@{DOMAIN}")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "redelivery",
    "service",
    *own.APPS,
]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
