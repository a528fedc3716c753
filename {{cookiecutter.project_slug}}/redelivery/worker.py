"""In the worker: what a worker refuses to start with, and messages that bring limits of their own."""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import Celery, concurrency, signals
from celery.concurrency.prefork import TaskPool

from redelivery import broker, versions

logger = logging.getLogger("redelivery")


def connect(app: Celery) -> None:
    """Watch the workers of this process; called by ``redelivery.setup``."""
    signals.celeryd_init.connect(_set_concurrency, weak=False, dispatch_uid="redelivery.worker.concurrency")
    signals.worker_init.connect(_refuse_or_start, weak=False, dispatch_uid="redelivery.worker.refuse")
    signals.worker_shutting_down.connect(_drain, weak=False, dispatch_uid="redelivery.worker.drain")
    signals.task_received.connect(_drop_own_limits, weak=False, dispatch_uid="redelivery.worker.limits")


def refusals(worker: Any) -> list[str]:
    """Why ``worker`` (a Celery worker about to start) must not run under the policy; empty when it may."""
    from redelivery import checks, force, policy

    found = []
    pool = concurrency.get_implementation(worker.pool_cls)
    if not issubclass(pool, TaskPool):
        name = f"{pool.__module__}:{pool.__name__}"
        found.append(
            f"the pool {name} cannot enforce time limits or a drain: start the worker with -P prefork."
        )
    if os.environ.get("REMAP_SIGTERM"):
        found.append("REMAP_SIGTERM is set: every ordinary stop would cut off running tasks. Unset it.")
    if worker.options.get("beat"):
        found.append("-B runs a beat in every worker, so schedules fire more than once: run one celery beat.")
    current = policy.current()
    if worker.prefetch_multiplier != current.prefetch_multiplier:
        found.append(
            f"--prefetch-multiplier {worker.prefetch_multiplier} contradicts the "
            f"{current.prefetch_multiplier} that the visibility timeout is computed for: leave it out."
        )
    known = {*current.queues, *(queue.name for queue in force.in_force().app.conf.task_queues or ())}
    for queue in worker.app.amqp.queues.consume_from:
        if queue not in known:
            found.append(f"-Q {queue}: the policy has no such queue (it has: {', '.join(sorted(known))}).")
    if force.in_force().transport:
        found += map(checks.one_line, checks.run([checks.deployment.cluster]))
    return found or [checks.one_line(error) for error in checks.errors()]


def _refuse_or_start(sender: Any = None, **_: Any) -> None:
    """Refuse before the pool exists; of all exceptions in a receiver only SystemExit stops the worker."""
    from redelivery import force
    from redelivery.policy import PolicyError

    state = force.in_force()
    if state is None or getattr(sender.app, "_get_current_object", lambda: sender.app)() is not state.app:
        return
    try:
        found = refusals(sender)
    except PolicyError as error:
        found = [str(error)]
    if found:
        force.refuse("the worker does not start: " + " | ".join(found))
    if state.transport:
        broker.begin(sender.hostname)


def _drain(**_: Any) -> None:
    """A stop has begun (Celery sends this from its signal handler)."""
    if ours := broker.current():
        ours.drain()


def _set_concurrency(
    instance: Any = None, conf: Any = None, options: dict[str, Any] | None = None, **_: Any
) -> None:
    """Without ``-c``, run as many processes as the policy gives the queues of this worker together."""
    from redelivery import force

    state = force.in_force()
    if state is None or state.policy is None or (options or {}).get("concurrency") or conf.worker_concurrency:
        return
    queues = state.policy.queues
    chosen = (options or {}).get("queues") or list(queues)
    chosen = chosen.split(",") if isinstance(chosen, str) else chosen
    processes = sum(queues[name].concurrency for name in chosen if name in queues)
    versions.put(conf, worker_concurrency=processes or None)


def _drop_own_limits(request: Any = None, **_: Any) -> None:
    """Let the policy's limits hold for a message with limits of its own, which would win (measured)."""
    from redelivery import force

    state = force.in_force()
    entry = state.policy.tasks.get(request.type) if state and state.policy else None
    if entry is None or entry.is_open:
        return
    hard, soft = request.time_limits or (None, None)
    if hard is None and soft is None:
        return
    request.time_limits = (None, None)
    request.request_dict["timelimit"] = [None, None]
    if (hard or entry.time_limit_s, soft or entry.soft_time_limit_s) != (
        entry.time_limit_s,
        entry.soft_time_limit_s,
    ):
        logger.error(
            "%s[%s] came with time_limit=%s, soft_time_limit=%s of its own; the policy's %s and %s hold (%s)",
            entry.name,
            request.id,
            hard,
            soft,
            entry.time_limit_s,
            entry.soft_time_limit_s,
            state.policy.where(entry),
        )
