"""The transports, and the connection of an app that uses them."""

from __future__ import annotations

from typing import Any

import kombu
from kombu.transport import redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from redelivery.broker.channel import Channel, Poller


class Transport(redis.Transport):
    """``redis://`` and ``rediss://``."""

    Channel = Channel
    #: To Celery a Redis that is full or read-only is one that is away: its workers wait for it, and do not end.
    connection_errors = (*redis.Transport.connection_errors, OutOfMemoryError, ReadOnlyError)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cycle = Poller()


class SentinelChannel(Channel, redis.SentinelChannel):
    """A channel that asks Sentinel where Redis is."""


class SentinelTransport(Transport, redis.SentinelTransport):
    """``sentinel://``."""

    Channel = SentinelChannel


#: What serves which scheme of URLs.
TRANSPORTS = {"redis": Transport, "rediss": Transport, "sentinel": SentinelTransport}


class Connection(kombu.Connection):
    """A connection that uses these transports; its URLs are Kombu's."""

    def get_transport_cls(self) -> type:
        """The transport of the URL's scheme."""
        return TRANSPORTS.get(self.transport_cls) or super().get_transport_cls()
