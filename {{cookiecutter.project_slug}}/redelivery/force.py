"""Put the policy in force on a Celery app: what is derived from ``ack_policy.toml`` is set here only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from celery import Celery
from celery.app.annotations import prepare as prepare_annotations
from celery.app.annotations import resolve_all as resolve_annotations
from celery.app.routes import Router
from celery.app.routes import prepare as prepare_routes
from django.conf import settings
from django.core.management import ManagementUtility
from kombu import Queue

from redelivery import log, notify, policy, publish, recorder, retry, settle, stopping, versions, worker
from redelivery.policy import Policy, PolicyError, TaskPolicy

#: The status that gunicorn takes as "failed to boot": it stops, instead of starting the worker again for
#: ever.
EXIT_UNUSABLE = 3

#: Brokers whose messages come back after a visibility timeout that is set on the client.
VISIBILITY_TRANSPORTS = ("redis", "rediss", "redis+socket", "sentinel", "valkey", "valkeys")

#: Those whose messages are taken with leases.
LEASE_TRANSPORTS = ("redis", "rediss", "sentinel")

#: Settings that the policy decides, with the task attribute that Celery fills from each.
TASK_SETTINGS = {name: f"task_{name}" for name in versions.TASK_ATTRIBUTES}


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Undeclared(int):
    """The value 0 for tasks that say nothing about ``acks_late``: told from a False that somebody wrote."""


UNDECLARED = _Undeclared(0)


@dataclass
class InForce:
    """What ``setup`` did to one app, kept for the checks."""

    app: Celery
    policy: Policy | None = None
    #: Values of derived settings that the project had set by hand.
    by_hand: dict[str, Any] = field(default_factory=dict)
    #: The project's own annotations and routes, prepared by Celery.
    annotations: list[Any] = field(default_factory=list)
    routes: list[Any] = field(default_factory=list)
    #: What each task said of itself before the policy was laid over it.
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Whether ``redelivery.broker`` carries the messages: then crashes are counted, and nothing is dropped.
    transport: bool = False
    #: Why the policy is not in force although it can be read; empty when it is.
    failure: str = ""
    cure: str = ""
    #: The project's own default queue.
    default_queue: str = ""


_in_force: InForce | None = None


def setup(app: Celery) -> None:
    """Put the ack policy in force on ``app``; the one line to call after ``app.config_from_object(...)``.

    Nothing is read here: it happens when the app reads its configuration, at the latest when Django is ready.
    """
    global _in_force
    if _in_force is None or _in_force.app is app:
        _in_force = InForce(app)
    else:
        _in_force = InForce(
            app, failure=f"redelivery.setup was called for two apps: {_in_force.app} and {app}"
        )
        _in_force.cure = "Call it for one of them: there is one policy, for the tasks of one app."
    log.connect()
    notify.connect()
    worker.connect(app)
    stopping.connect(app)
    recorder.connect()
    if app.configured:
        _apply(_in_force)
    else:
        app.on_after_configure.connect(_when_configured, sender=app, weak=False)


def in_force() -> InForce | None:
    """What was set up in this process, or None when ``setup`` was not called."""
    return _in_force


def ready() -> None:
    """Have the app read its configuration when Django is ready, so that mistakes show at the start."""
    if _in_force is not None:
        _in_force.app.conf.finalize()


def refuse(message: object) -> None:
    """Say on stderr why this process cannot run, and end it. Never returns.

    Under ``runserver`` the status is 1: its reloader takes 3 as "start me again".
    """
    print(f"redelivery: {message}", file=sys.stderr, flush=True)
    raise SystemExit(1 if os.environ.get("RUN_MAIN") == "true" else EXIT_UNUSABLE)


def _when_configured(sender: Celery, **_: Any) -> None:
    if _in_force is not None and _in_force.app is sender:
        _apply(_in_force)


def _apply(state: InForce) -> None:
    """Put the policy in force, or refuse: Celery would only log an exception, and run without it."""
    message = state.failure
    try:
        if not message:
            state.policy = policy.current()
            state.transport = transport_on(state.app)
            _remember(state)
            _set_tasks(state)
            _set_queues(state)
            _set_delivery(state)
    except PolicyError as error:
        message = str(error)
    except Exception as error:  # a setting of the project that Celery cannot use either
        message = state.failure = f"the ack policy could not be put in force: {error!r}"
        names = (setting(state.app, f"task_{key}") for key in ("routes", "queues", "annotations"))
        state.cure = f"Correct {', '.join(names)}."
    if message and not _reports_checks():
        refuse(message)


def _reports_checks() -> bool:
    """Whether this is a command of Django's, which reports mistakes as system checks; no server does.

    Whatever the program is called: a project may have its own name for ``manage.py``, or an entry point.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not ManagementUtility.execute.__code__:
        frame = frame.f_back
    return frame is not None and not "".join(sys.argv[1:2]).startswith("runserver")


def _remember(state: InForce) -> None:
    conf = state.app.conf
    derived = {*TASK_SETTINGS.values(), "task_acks_on_failure_or_timeout", "worker_prefetch_multiplier"}
    state.by_hand = {name: conf[name] for name in derived if versions.is_set(conf, name)}
    state.by_hand["broker_transport_options"] = dict(conf.broker_transport_options or {})
    state.default_queue = conf.task_default_queue
    state.annotations = list(prepare_annotations(conf.task_annotations))
    state.routes = list(prepare_routes(conf.task_routes))


def _set_tasks(state: InForce) -> None:
    conf = state.app.conf
    if "task_acks_late" not in state.by_hand:
        versions.put(conf, task_acks_late=UNDECLARED)
    versions.put(conf, task_annotations=[PolicyAnnotations(state)])
    versions.put(conf, task_routes=[PolicyRoutes(state)])


def _set_queues(state: InForce) -> None:
    """Declare the policy's queues as Celery would itself; those that the project declares stay."""
    conf = state.app.conf
    given = conf.task_queues or []
    queues = list(
        given
        if not isinstance(given, Mapping)
        else (q if isinstance(q, Queue) else Queue(name, **q) for name, q in given.items())
    )
    if not versions.is_set(conf, "task_default_queue"):
        versions.put(conf, task_default_queue=state.policy.default_queue)
    # It knows the project's kinds of queues and exchanges, and its default queue.
    missing = state.app.amqp.Queues(())
    names = {queue.name for queue in queues}
    for name in state.policy.queues:
        if name not in names:
            queues.append(missing[name] if name in missing else missing.new_missing(name))
    versions.put(conf, task_queues=queues)


def _set_delivery(state: InForce) -> None:
    conf, current, leased = state.app.conf, state.policy, state.transport
    versions.put(conf, worker_prefetch_multiplier=current.prefetch_multiplier)
    # Without leases a connection that drops gives its messages back at once, and unless this is set the second run
    # starts beside the first one (measured; Celery 6 makes it the default). With them the message stays held.
    if not versions.is_set(conf, "worker_cancel_long_running_tasks_on_connection_loss"):
        versions.put(conf, worker_cancel_long_running_tasks_on_connection_loss=not leased)
    if leased:
        from redelivery.broker.transports import Connection  # only now: it needs redis-py

        state.app.amqp.Connection = Connection
        if not versions.is_set(conf, "worker_consumer"):
            versions.put(conf, worker_consumer="redelivery.consumer:Consumer")
    else:
        settle.connect()
    if broker_scheme(state.app) in VISIBILITY_TRANSPORTS:
        options = {
            "lease_s": current.lease_s,
            "stock_visibility_s": current.stock_visibility_s,
            # Seconds without an answer until kombu takes a connection for dead; by default 25, looked at every 25.
            "health_check_interval": 5,
            **(conf.broker_transport_options or {}),
            "visibility_timeout": current.visibility_timeout_s,
            # kombu looks for expired messages every interval x throttle seconds: 100 by default (measured).
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
        versions.put(conf, broker_transport_options=options)
        # A worker then takes only what it can run now, so nothing waits in one that is busy or drains. The price,
        # for tasks of no length: 0.90 of bare Celery's throughput (`make bench`).
        if not versions.is_set(conf, "worker_disable_prefetch"):
            versions.put(conf, worker_disable_prefetch=True)


def transport_on(app: Celery) -> bool:
    """Whether messages are taken with leases: from Redis, unless ``REDELIVERY_TRANSPORT`` is off.

    It stands on private methods of kombu and on what Celery 5.7 does with a message after a hard time limit, so with
    other releases than those that it was tested with it is off, too.
    """
    return asks_for_leases(app) and versions.kombu_is_tested() and versions.SPLITS_TIMEOUTS


def asks_for_leases(app: Celery) -> bool:
    """Whether the settings want messages to be taken with leases."""
    return broker_scheme(app) in LEASE_TRANSPORTS and bool(getattr(settings, "REDELIVERY_TRANSPORT", True))


def broker_scheme(app: Celery) -> str:
    """The transport of the broker's URL, such as ``redis``."""
    url = app.conf.broker_url or ""
    first = url[0] if isinstance(url, (list, tuple)) else url.split(";")[0]
    return first.partition("://")[0]


def setting(app: Celery, key: str) -> str:
    """The name under which a project writes Celery's setting ``key``, such as ``CELERY_TASK_ROUTES``."""
    if app.namespace:
        return f"{app.namespace}_{key}".upper()
    return versions.OLD_NAMES.get(key, key) if reads_django_settings(app) else key


def reads_django_settings(app: Celery) -> bool:
    """Whether the app is configured by Django's settings, and not by a module of its own."""
    source = app._config_source
    if isinstance(source, str):
        return source in ("django.conf:settings", "django.conf.settings")
    return not isinstance(source, ModuleType)


class PolicyAnnotations:
    """The policy's annotations laid over the project's own.

    Celery lets the first annotation that fits win, and ``*`` win over names: so one object answers for all.
    """

    def __init__(self, state: InForce) -> None:
        self.state = state

    def annotate(self, task: type) -> dict[str, Any]:
        """The attributes to set on ``task``; called once for each task class, before any of them is set."""
        own: dict[str, Any] = {"Request": "redelivery.request:Request"}
        for annotation in resolve_annotations(self.state.annotations, task):
            own.update(annotation)
        entry = self.state.policy.tasks.get(task.name)
        if entry is None:
            return own
        self.state.declared[task.name] = self._declared(task)
        around = {"apply_async": publish.around(entry, self.state.policy)}
        if entry.ack == "late":
            around["retry"] = retry.around
        methods = {
            name: _laid_around(task, name, wrap, own.pop(f"@{name}", None)) for name, wrap in around.items()
        }
        return {**own, **entry.annotation(self.state.transport), **methods}

    def annotate_any(self) -> None:
        """Nothing: what the project says with ``*`` is part of ``annotate``."""

    def _declared(self, task: type) -> dict[str, Any]:
        """What the decorator or class says; Celery has filled by now from the settings what it left open."""
        conf = self.state.app.conf
        said = {name: getattr(task, name, None) for name in TASK_SETTINGS}
        said = {
            name: value
            for name, value in said.items()
            if value is not None
            and not isinstance(value, _Undeclared)
            and not self._is_default(conf, name, value)
        }
        said.update(
            {name: getattr(task, name) for name in ("queue", "serializer") if getattr(task, name, None)}
        )
        return said

    @staticmethod
    def _is_default(conf: Any, name: str, value: Any) -> bool:
        if name == "acks_late":
            return (
                versions.is_set(conf, "task_acks_late")
                and not isinstance(conf.task_acks_late, _Undeclared)
                and value == conf.task_acks_late
            )
        fallback = conf.get(TASK_SETTINGS[name])
        if fallback is None and name.startswith("acks_on"):
            fallback = conf.task_acks_on_failure_or_timeout
        return value == fallback


class PolicyRoutes:
    """The policy's queue for each of its tasks; what else the project's routes say (a priority) is kept."""

    def __init__(self, state: InForce) -> None:
        self.state = state
        self.own = Router(state.routes, app=state.app)

    def __call__(self, name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        route = self.own.lookup_route(name, args, kwargs, options, task)
        entry: TaskPolicy | None = self.state.policy.tasks.get(name)
        if entry is None:
            return route
        route = {} if route is None or isinstance(route, str) else dict(route)
        return {**route, "queue": entry.queue}


def _laid_around(task: type, name: str, wrap: Wrapper, own: Wrapper | None) -> Callable[..., Any]:
    """A method of a task class in the policy's wrapper, with the project's own annotation inside.

    Celery's ``@`` annotations are not used for it: they take off whatever decorator the project's base class has put
    on the method (measured).
    """
    method = getattr(task, name)
    method = getattr(method, "redelivery_inner", method)  # of a class derived from another task's
    wrapped = wrap(own(method) if own else method)
    wrapped.redelivery_inner = method
    return wrapped
