"""The Django side: registers the checks, and puts the policy in force as soon as Django is ready."""

from django.apps import AppConfig


class RedeliveryConfig(AppConfig):
    """``INSTALLED_APPS`` needs only ``"redelivery"``."""

    name = "redelivery"
    verbose_name = "Redelivery"

    def ready(self) -> None:
        from redelivery import checks, force  # noqa: F401  importing the checks registers them

        force.ready()
