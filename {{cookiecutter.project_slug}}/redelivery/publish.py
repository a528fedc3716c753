"""Publishing under the policy: what ``apply_async`` may not override, since it would win (measured)."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.db import connections

from redelivery import kills
from redelivery.policy import Policy, TaskPolicy

logger = logging.getLogger("redelivery")


class PolicyViolation(ValueError):
    """A call asks for what the ack policy rules out; the message names task, argument and entry."""


def around(entry: TaskPolicy, policy: Policy) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper for the ``apply_async`` of a task; Celery puts it there by an ``@`` annotation.

    It holds for ``delay``, ``apply_async``, ``retry``, signatures, chains, groups and beat alike, since all
    of them call ``apply_async``. A call that contradicts the policy raises ``PolicyViolation``; a retry is
    never refused, because Celery would drop the message: it is brought within the policy and logged. Messages
    carry no time limits of their own afterwards, so that the limits of the release that runs them hold, not
    of the one that sent them.

    While the entry is an open decision, a call that contradicts it is sent as it is, and logged.
    """

    def wrap(apply_async: Callable[..., Any]) -> Callable[..., Any]:
        limits = NO_LIMITS if _takes_options(apply_async) else {}

        @functools.wraps(apply_async)
        def checked(self: Any, *args: Any, **options: Any) -> Any:
            problems = dict(_problems(self, entry, policy, options))
            if problems and not entry.is_open and not options.get("retries"):
                raise PolicyViolation(
                    f"{entry.name}: {next(iter(problems.values()))} ({policy.where(entry)})"
                )
            for text in problems.values():
                done = (
                    "published all the same while its entry is open"
                    if entry.is_open
                    else "retried within the policy"
                )
                logger.error("%s: %s: %s (%s)", entry.name, done, text, policy.where(entry))
            if entry.is_open:
                options = {**limits, **options}
            else:
                _bring_within(problems, options, policy)
                options.update(limits)
            if options.get("headers"):
                options["headers"] = kills.published_again(options["headers"])
            if _in_transaction() and not options.get("retries"):
                logger.warning(
                    "%s is published inside a transaction: it may run before the commit, and runs after a rollback "
                    "too. Publish it with delay_on_commit.",
                    entry.name,
                )
            return apply_async(self, *args, **options)

        return checked

    return wrap


NO_LIMITS = {"time_limit": None, "soft_time_limit": None}


def _takes_options(apply_async: Callable[..., Any]) -> bool:
    """Whether a project's own ``apply_async`` takes whatever option Celery's takes."""
    parameters = inspect.signature(apply_async).parameters.values()
    return any(one.kind is one.VAR_KEYWORD for one in parameters)


def _in_transaction() -> bool:
    """Whether a transaction is open that is not the one a test case wraps itself in."""
    return any(
        not getattr(block, "_from_testcase", False)
        for connection in connections.all(initialized_only=True)
        for block in connection.atomic_blocks
    )


def _problems(task: Any, entry: TaskPolicy, policy: Policy, options: dict[str, Any]):
    """Yield (argument, what is wrong with it)."""
    for argument, allowed in (
        ("time_limit", entry.time_limit_s),
        ("soft_time_limit", entry.soft_time_limit_s),
    ):
        given = options.get(argument)
        if given is not None and given != allowed:
            yield (
                argument,
                f"{argument}={given} in the call contradicts {argument}_s = {allowed} of its entry",
            )
    queue = options.get("queue")
    queue = getattr(queue, "name", queue)
    if queue is not None and queue != entry.queue:
        yield "queue", f'queue="{queue}" in the call contradicts queue = "{entry.queue}" of its entry'
    waits_s = _seconds_ahead(task.app, options)
    if waits_s > policy.longest_countdown_s:
        argument = "eta" if options.get("eta") else "countdown"
        yield (
            argument,
            (
                f"{argument} is {waits_s:.0f} s ahead, more than longest_countdown_s = "
                f"{policy.longest_countdown_s}: keep what is due later in the database"
            ),
        )


def _seconds_ahead(app: Any, options: dict[str, Any]) -> float:
    """Seconds until the message is due; 0 for one without countdown or eta."""
    if options.get("countdown"):
        return float(options["countdown"])
    eta = options.get("eta")
    if isinstance(eta, str):
        eta = datetime.fromisoformat(eta)
    if not isinstance(eta, datetime):
        return 0.0
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=app.timezone)
    return (eta - datetime.now(UTC)).total_seconds()


def _bring_within(problems: dict[str, str], options: dict[str, Any], policy: Policy) -> None:
    """Change the options of a retry so that none of ``problems`` is left."""
    if "queue" in problems:
        options.pop("queue")
    if "eta" in problems or "countdown" in problems:
        options.pop("eta", None)
        options["countdown"] = policy.longest_countdown_s
