"""Checks of the Redis databases of broker, cache and results, and of the cache that keeps markers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.checks import CheckMessage, Error, Warning

from redelivery.force import InForce
from redelivery.marker import cache_alias
from redelivery.places import Place, places

#: Caches that cannot keep a marker, and why.
UNFIT_CACHES = (
    (DummyCache, "keeps nothing"),
    (LocMemCache, "is private to each process and dies with it"),
    (FileBasedCache, "is private to each host and drops entries at random when it is full"),
)


def shared_databases(state: InForce) -> Iterator[CheckMessage]:
    """Broker, caches and results in one Redis database: clearing a Django cache is FLUSHDB."""
    stores = {"the broker": broker_places(state), "the results": result_places(state)}
    stores |= {f"cache {alias!r}": found for alias, found in cache_places().items()}
    for (one, ones), (other, others) in combinations(stores.items(), 2):
        if one.startswith("cache") and other.startswith("cache"):
            continue
        for place in sorted(ones & others, key=str):
            if not other.startswith("cache"):
                yield Warning(
                    f"The broker and the results share one Redis database ({place}): results that nobody fetches take "
                    "the memory that queues need, and neither can be emptied alone.",
                    hint="Give the results a database of their own.",
                    id="redelivery.W014",
                )
                continue
            yield Error(
                f"{one[0].upper()}{one[1:]} and {other} share one Redis database ({place}): clearing a "
                "cache empties its whole database.",
                hint="Give each a database of its own, in production an instance of its own.",
                id="redelivery.E014",
            )


def marker_cache(state: InForce) -> Iterator[CheckMessage]:
    """The cache of the markers must be seen by all workers and outlive them."""
    entry = next((it for it in state.policy.tasks.values() if it.guard == "marker"), None)
    if entry is None:
        return
    alias = cache_alias()
    markers = f"The markers of {entry.name} ({state.policy.where(entry)})"
    try:
        cache = caches[alias]
    except (InvalidCacheBackendError, ImportError) as error:
        yield _unfit(f"{markers} need cache {alias!r}, which does not work: {error}.")
        return
    for kind, why in UNFIT_CACHES:
        if isinstance(cache, kind):
            yield _unfit(f"{markers} cannot be kept in cache {alias!r}: {kind.__name__} {why}.")
    if _hides_errors(alias):
        yield _unfit(
            f"{markers} cannot be kept in cache {alias!r}: it ignores errors, so that an unreachable cache "
            "looks as if nothing had been done yet."
        )


def broker_places(state: InForce) -> set[Place]:
    """The Redis databases of the broker, for reading and writing."""
    conf = state.app.conf
    options = conf.broker_transport_options or {}
    return places(conf.broker_read_url, options.get("db")) | places(conf.broker_write_url, options.get("db"))


def result_places(state: InForce) -> set[Place]:
    """The Redis databases of the results, also when they go through one of Django's caches."""
    backend = state.app.conf.result_backend
    if backend == "django-cache":
        return cache_places().get(state.app.conf.cache_backend or "default", set())
    if backend == "redis" and not state.app.conf.get("redis_host"):
        return places("redis://")
    return places(backend)


def cache_places() -> dict[str, set[Place]]:
    """The Redis databases of each cache alias."""
    found = {}
    for alias, config in settings.CACHES.items():
        if "redis" in config.get("BACKEND", "").lower() or "valkey" in config.get("BACKEND", "").lower():
            location: Any = config.get("LOCATION") or "redis://"
            found[alias] = places(location, (config.get("OPTIONS") or {}).get("db"))
    return found


def _hides_errors(alias: str) -> bool:
    """django-redis' options that turn an unreachable server into a miss (its documentation)."""
    options = settings.CACHES[alias].get("OPTIONS") or {}
    is_django_redis = settings.CACHES[alias].get("BACKEND", "").startswith("django_redis.")
    everywhere = is_django_redis and getattr(settings, "DJANGO_REDIS_IGNORE_EXCEPTIONS", False)
    return bool(options.get("IGNORE_EXCEPTIONS", everywhere))


def _unfit(message: str) -> CheckMessage:
    return Error(
        message,
        hint="Use Redis or Memcached without hidden errors, or name such a cache in REDELIVERY_MARKER_CACHE.",
        id="redelivery.E017",
    )
