"""System checks: the order of all times, without which a payment could be sent twice or be looked at too early."""

from datetime import timedelta

from django.core.checks import CheckMessage, Error, Tags, register

from payments import limits
from payments.providers import provider
from payments.retention import retention
from redelivery import policy
from service.settings.env import env


@register("payments")
def check_times(app_configs=None, **_) -> list[CheckMessage]:
    """Provider time-out x its calls < soft limit < hard limit < age at which a claim is looked at < key lifetime."""
    try:
        current = policy.current()
        entries = [current.tasks[name] for name in limits.TASKS]
    except (policy.PolicyError, KeyError):
        return []  # redelivery's own checks say so
    try:
        adapter = provider()
    except Exception as error:
        return [
            Error(
                f"The payment provider cannot be used: {error}", hint="See .env.example.", id="payments.E001"
            )
        ]
    found: list[CheckMessage] = []
    for entry in entries:
        calls = 1 if entry.name.endswith("send_payment") else 1 + adapter.read_back_calls
        longest_s = adapter.timeout_s * calls
        if not 0 < longest_s < entry.soft_time_limit_s:
            found.append(
                Error(
                    f"{entry.name} may wait {longest_s:g} s for the provider ({calls} x {adapter.timeout_s:g} s), but "
                    f"its soft time limit is {entry.soft_time_limit_s} s ({current.where(entry)}).",
                    hint="Lower PAYMENT_TIMEOUT_S, or raise time_limit_s: a call that is cut off has no outcome.",
                    id="payments.E002",
                )
            )
    first_look = limits.dead_after()
    if adapter.not_found_is_proof:
        first_look = min(first_look, limits.pause(1))
    if first_look <= adapter.under_way:
        found.append(
            Error(
                f"A payment in doubt is looked at after {seconds(first_look)} s, but a request to "
                f"{type(adapter).__name__} may be under way for {seconds(adapter.under_way)} s.",
                hint="Raise FIRST_PAUSE in payments/limits.py, or time_limit_s of the tasks that send.",
                id="payments.E003",
            )
        )
    if limits.resend_for() <= limits.LONGEST_PAUSE:
        found.append(
            Error(
                f"{type(adapter).__name__} knows a key for {seconds(adapter.key_lifetime)} s: too short for a request "
                f"to be sent again after a pause of up to {seconds(limits.LONGEST_PAUSE)} s and be done in time.",
                hint="Lower LONGEST_PAUSE in payments/limits.py, or the time limits.",
                id="payments.E004",
            )
        )
    if retention() <= adapter.key_lifetime:
        found.append(
            Error(
                "PAYMENT_RETENTION_DAYS is shorter than the provider remembers a key: a late answer would find no row.",
                hint="Keep settled payments for longer than a customer may dispute them.",
                id="payments.E005",
            )
        )
    return found


@register(Tags.security, deploy=True)
def check_provider(app_configs=None, **_) -> list[CheckMessage]:
    """Nobody is charged by a simulation."""
    if env.str("PAYMENT_PROVIDER", default="simulated") != "simulated":
        return []
    hint = "Set PAYMENT_PROVIDER=stripe and STRIPE_API_KEY."
    return [Error("PAYMENT_PROVIDER is the simulated one: nobody is charged.", hint=hint, id="payments.E006")]


def seconds(duration: timedelta) -> str:
    """Write a duration in seconds."""
    return f"{duration.total_seconds():g}"
