"""System checks: every contradiction between the ack policy, the code and the settings, by topic.

``manage.py check`` runs them; a worker runs them, too, and does not start with an error.
"""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from redelivery import force, policy
from redelivery.checks import configuration, decisions, deployment, schedules, stores, tasks

TAG = "redelivery"
#: Each takes (what is in force) and returns messages.
CHECKS = (
    tasks.entries,
    tasks.declarations,
    tasks.effect,
    tasks.overlaps,
    tasks.waits,
    tasks.schedule,
    tasks.crash_retries,
    decisions.open_decisions,
    configuration.decided_by_policy,
    configuration.unknown_settings,
    configuration.pool,
    configuration.content,
    configuration.release,
    configuration.kombu,
    stores.shared_databases,
    stores.marker_cache,
)
DEPLOYMENT_CHECKS = (
    deployment.one_instance,
    deployment.eviction,
    deployment.cluster,
    deployment.eager,
    deployment.unit_names,
)

_running = False


def run(checks: tuple[Any, ...] = CHECKS) -> list[CheckMessage]:
    """The messages of ``checks``, or the one message that says why they cannot run."""
    global _running
    if _running:
        return []  # importing task modules makes Celery run Django's checks again
    _running = True
    try:
        problem = _problem()
        if problem:
            return [problem]
        state = force.in_force()
        tasks.load(state.app)
        return [message for check in checks for message in check(state)]
    finally:
        _running = False


def errors() -> list[CheckMessage]:
    """Only what a worker refuses to start with."""
    return [message for message in run() if message.is_serious() and not message.is_silenced()]


def one_line(message: CheckMessage) -> str:
    """A message and its cure in one line, for stderr."""
    return " ".join(f"{message.id}: {message.msg} {message.hint or ''}".split())


@register(TAG)
def check_policy(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """For ``manage.py check``."""
    return run()


@register(TAG, Tags.database)
def check_schedules(app_configs: Any = None, databases: Any = None, **_: Any) -> list[CheckMessage]:
    """For ``manage.py check --database default``, and ``migrate``."""
    return [] if _problem() else run((lambda state: schedules.in_database(state, databases),))


@register(TAG, deploy=True)
def check_deployment(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """For ``manage.py check --deploy``."""
    return [] if _problem() else run(DEPLOYMENT_CHECKS)


def _problem() -> CheckMessage | None:
    """Why no check can run: the policy is unusable, or nobody put it in force."""
    try:
        current = policy.current()
    except policy.PolicyError as error:
        return Error(str(error), id="redelivery.E001")
    state = force.in_force()
    if state is None:
        return Error(
            f"The ack policy {current.where()} is not in force: redelivery.setup(app) was not called.",
            hint="Call it in the module that makes the Celery app, after app.config_from_object(...), and "
            "import that module in the project's __init__.py.",
            id="redelivery.E002",
        )
    state.app.conf.finalize()
    if state.failure:
        return Error(
            f"{current.where()}: {state.failure}.",
            hint=state.cure,
            id="redelivery.E002",
        )
    return None
