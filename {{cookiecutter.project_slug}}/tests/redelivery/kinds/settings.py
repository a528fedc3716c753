"""Settings of the kinds' project: two databases, two caches."""

from pathlib import Path

import environ

BASE_DIR = str(Path(__file__).resolve().parents[3])
ACK_POLICY_FILE = Path(__file__).with_name("ack_policy.toml")

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["redelivery", "tests.redelivery.kinds"]
USE_TZ = True

# The sandbox replaces the names and addresses; what kind of database it is, DATABASE_URL says.
DATABASES = {
    alias: environ.Env().db("DATABASE_URL", default="sqlite:///kinds.sqlite3")
    for alias in ("default", "other")
}
DATABASES["other"]["NAME"] = f"{DATABASES['other']['NAME']}_other"
for database in DATABASES.values():
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
DATABASES["replica"] = {**DATABASES["default"], "TEST": {"MIRROR": "default"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    alias: {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"} for alias in ("default", "second")
}
CACHES["default"] = {
    "BACKEND": "django.core.cache.backends.redis.RedisCache",
    "LOCATION": "redis://127.0.0.1/1",
}
CELERY_BROKER_URL = "amqp://nobody:secret@127.0.0.1:1//"
CELERY_BROKER_USE_SSL = {"ssl_cert_reqs": "none"}
CELERY_TASK_IGNORE_RESULT = True
