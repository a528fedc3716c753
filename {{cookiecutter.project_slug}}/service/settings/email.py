"""E-mail (EMAIL_URL). Development prints mails; production sends them over SMTP."""

from service.settings.core import DOMAIN
from service.settings.env import DEBUG, env

globals().update(env.email_url("EMAIL_URL", default="consolemail://" if DEBUG else "smtp://localhost:25"))

# Seconds for each answer of the server. Below the soft limit of every task that sends: a send that takes too
# long is to end as an error that can be classified, not as a kill.
EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT", default=10)
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default=f"no-reply@{DOMAIN}")
SERVER_EMAIL = DEFAULT_FROM_EMAIL
