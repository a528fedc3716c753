"""Where a URL of Redis points to, in a form that can be compared: defaults are filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REDIS_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix", "socket", "redis+socket", "sentinel")
SOCKET_SCHEMES = ("unix", "socket", "redis+socket")
LOOPBACK = {"", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "ip6-localhost", "localhost.localdomain"}
DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379


@dataclass(frozen=True)
class Place:
    """One Redis database. ``instance`` is ``host:port`` (loopback names are one) or the path of a socket."""

    instance: str
    database: str

    def __str__(self) -> str:
        return f"{self.instance}, database {self.database}"


def places(url: Any, database: Any = None) -> set[Place]:
    """Every Redis database that a setting names.

    Args:
        url: a URL, several joined by ``;`` or ``,`` (failover, Sentinel), or a list of URLs. Others than
            Redis' count as none.
        database: the database if the URL names none.
    """
    urls = url if isinstance(url, (list, tuple)) else [url]
    return {place for one in urls if isinstance(one, str) for place in _places_of(one, database)}


def _places_of(url: str, database: Any) -> Iterable[Place]:
    scheme = ""
    for part in url.replace(",", ";").split(";"):
        before, separator, _ = part.strip().partition("://")
        scheme = (
            before.lower() if separator else scheme
        )  # in "redis://a;b" the second has the scheme of the first
        if scheme in REDIS_SCHEMES:
            yield _place(scheme, part.strip() if separator else f"{scheme}://{part.strip()}", database)


def _place(scheme: str, url: str, database: Any) -> Place:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if scheme in SOCKET_SCHEMES:
        instance, named = unquote(parts.path), ""
    else:
        try:
            port = parts.port
        except ValueError:
            port = None
        host = (parts.hostname or "").lower()
        host = "localhost" if host in LOOPBACK or host.startswith("127.") else host
        default = DEFAULT_SENTINEL_PORT if scheme == "sentinel" else DEFAULT_PORT
        instance, named = f"{host}:{port or default}", unquote(parts.path).strip("/")
    for key in ("db", "virtual_host"):
        named = query.get(key, [named])[-1].strip("/")
    if not named:
        named = "0" if database is None else str(database)
    return Place(instance, str(int(named)) if named.isdecimal() else named)
