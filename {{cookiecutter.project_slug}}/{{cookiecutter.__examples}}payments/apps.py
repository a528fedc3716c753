"""The Django side: registers the checks."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    """``INSTALLED_APPS`` needs only ``"payments"``."""

    name = "payments"

    def ready(self) -> None:
        from payments import checks, periodic  # noqa: F401  importing registers checks and tasks
