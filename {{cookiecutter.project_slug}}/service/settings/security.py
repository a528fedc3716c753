"""Keys, hosts, cookies and HTTPS.

With DEBUG off everything is as strict as `manage.py check --deploy` wants it.
"""

from service.settings.core import DOMAIN
from service.settings.env import DEBUG, env, refuse

SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    refuse("SECRET_KEY", "is empty: `make .env` draws one for development; production sets it.")
if not DEBUG and (
    len(SECRET_KEY) < 50 or len(set(SECRET_KEY)) < 5 or SECRET_KEY.startswith("django-insecure-")
):
    refuse(
        "SECRET_KEY",
        "is too weak for production: use at least 50 random characters, for example from "
        '`python -c "import secrets; print(secrets.token_urlsafe(48))"`.',
    )

ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[DOMAIN, "localhost", "127.0.0.1", "[::1]"])
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Behind a proxy, gunicorn believes X-Forwarded-Proto from the addresses in its forwarded_allow_ips
# (127.0.0.1) and says so in the WSGI environment; SECURE_PROXY_SSL_HEADER would believe it from everybody.
SECURE_SSL_REDIRECT = not DEBUG
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]
SESSION_COOKIE_SECURE = not DEBUG
CSRF_COOKIE_SECURE = not DEBUG

# Browsers remember HSTS for so many seconds and cannot be told otherwise: raise it once HTTPS is known to
# work.
HSTS_SECONDS = env.int("HSTS_SECONDS", default=3600)
SECURE_HSTS_SECONDS = 0 if DEBUG else HSTS_SECONDS
SECURE_HSTS_INCLUDE_SUBDOMAINS = env.bool("HSTS_INCLUDE_SUBDOMAINS", default=True)
# Preloading binds the whole domain for months; the domain's owner decides that, not a service on it.
SILENCED_SYSTEM_CHECKS = ["security.W021"]
