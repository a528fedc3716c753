"""Settings of the guards' project: no more than the `redelivery` app needs."""

from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parents[3]
ACK_POLICY_FILE = Path(__file__).with_name("ack_policy.toml")

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["redelivery", "tests.redelivery.guards"]
USE_TZ = True

# The sandbox replaces the names and addresses; what kind of database it is, DATABASE_URL says.
DATABASES = {"default": environ.Env().db("DATABASE_URL", default="sqlite:///guards.sqlite3")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1/1"}
}
CELERY_BROKER_URL = "redis://127.0.0.1/0"
CELERY_TASK_IGNORE_RESULT = True
