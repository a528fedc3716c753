"""The Django side: registers the checks, and puts the policy in force as soon as Django is ready."""

from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.utils.autoreload import autoreload_started


class RedeliveryConfig(AppConfig):
    """``INSTALLED_APPS`` needs only ``"redelivery"``."""

    name = "redelivery"
    verbose_name = "Redelivery"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from redelivery import checks, force  # noqa: F401  importing the checks registers them

        autoreload_started.connect(watch_policy, dispatch_uid="redelivery.watch_policy")
        force.ready()


def watch_policy(sender: Any, **_: Any) -> None:
    """Have ``runserver`` start again when the policy file changes, as it does for code."""
    if not getattr(settings, "ACK_POLICY_FILE", None):
        return  # the checks say so
    path = Path(settings.ACK_POLICY_FILE).resolve()
    sender.watch_dir(path.parent, path.name)
