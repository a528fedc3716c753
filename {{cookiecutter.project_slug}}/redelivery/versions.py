"""The releases of Celery that this runs on, 5.6 and 5.7, and what the older one lacks."""

from __future__ import annotations

from typing import Any

import celery
import kombu
from celery.app.defaults import _TO_OLD_KEY as OLD_NAMES
from celery.app.defaults import SETTING_KEYS
from celery.app.utils import Settings

#: Whether a task may acknowledge failures and timeouts differently, and retry when its process is lost.
SPLITS_TIMEOUTS = "task_acks_on_timeout" in SETTING_KEYS

#: The attributes of a task that the policy sets, as the installed Celery has them.
TASK_ATTRIBUTES = ("acks_late", "reject_on_worker_lost", "time_limit", "soft_time_limit",
                   *(("retry_on_worker_lost", "acks_on_failure", "acks_on_timeout") if SPLITS_TIMEOUTS
                     else ("acks_on_failure_or_timeout",)))  # fmt: skip

#: The setting with which each feature came that Celery 5.6 lacks, and what is off there.
NEWER = {
    "task_acks_on_timeout": "a hard time limit acknowledges the message, as without this app; messages are taken from "
    "Redis without leases, and crashes are not counted",
    "task_retry_on_worker_lost": "it does not read retry_on_worker_lost, so that is not looked for",
}


#: The series of kombu whose private methods ``redelivery.broker`` was written for and tested with.
KOMBU = "5.7"


def kombu_release() -> str:
    """The installed release of kombu, such as ``5.7.0``."""
    return kombu.__version__


def kombu_is_tested() -> bool:
    """Whether the installed kombu is of the series that the transport with leases was tested with."""
    return kombu.__version__.startswith(f"{KOMBU}.")


def missing() -> dict[str, str]:
    """What is off because the installed Celery lacks a setting, by setting."""
    return {name: text for name, text in NEWER.items() if name not in SETTING_KEYS}


def release() -> str:
    """The installed release of Celery, such as ``5.7.0``."""
    return celery.__version__


def is_set(conf: Any, name: str) -> bool:
    """Whether a project has set ``name`` itself, under any of its names.

    As ``conf.value_set_for``, which does not see settings with a namespace, nor old names, before Celery 5.7
    (measured).
    """
    conf.finalize()
    own = Settings({}, conf.maps[:-1], conf._keys, conf.prefix)
    return name in own or (not conf.prefix and OLD_NAMES.get(name) in own)


def put(conf: Any, **settings: Any) -> None:
    """Set settings of an app, whatever the project has set itself.

    Before Celery 5.7 a setting with a namespace wins over ``conf[name] = value`` (measured).
    """
    conf.finalize()
    for name, value in settings.items():
        conf[name] = value
        if not SPLITS_TIMEOUTS:
            conf.changes.update(dict.fromkeys(conf._to_keys(name), value))


def readable(annotation: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a task, written for Celery 5.7, as the installed release reads them."""
    older = {"acks_on_failure_or_timeout": annotation["acks_on_failure"]}
    return {name: value for name, value in {**annotation, **older}.items() if name in TASK_ATTRIBUTES}
