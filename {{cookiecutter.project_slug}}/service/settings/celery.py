"""Celery. How tasks are acknowledged, limited and routed is in ack_policy.toml, not here."""

from service.own import BEAT_SCHEDULE
from service.settings.core import TIME_ZONE
from service.settings.env import BASE_DIR, env

ACK_POLICY_FILE = BASE_DIR / "ack_policy.toml"

REDELIVERY_RELEASE = env.str("RELEASE", default="")

CELERY_BROKER_URL = env.broker_url("BROKER_URL", default="redis://127.0.0.1:6379/0")
# Off: Kombu's own Redis transport. Both can serve the same queues, also while it is switched over.
REDELIVERY_TRANSPORT = env.bool("REDELIVERY_TRANSPORT", default=True)
CELERY_BEAT_SCHEDULE = BEAT_SCHEDULE
CELERY_TIMEZONE = TIME_ZONE
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True

# A broker that is down or paused costs a web request at most three such timeouts (measured): the publishing,
# its one retry, and the connection in between. The retry is for a connection that died without a word.
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_timeout": 0.7, "socket_connect_timeout": 0.7, "max_retries": 1}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_max": 0.1}

# A worker keeps on trying: it is started before its broker after a reboot.
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
