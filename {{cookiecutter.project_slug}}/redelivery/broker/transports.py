"""The transports, and the connection of an app that uses them."""

from __future__ import annotations

import kombu
from kombu.transport import redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from redelivery import broker
from redelivery.broker.channel import Channel


class SentinelChannel(Channel, redis.SentinelChannel):
    """A channel that asks Sentinel where Redis is."""


class Transport(redis.Transport):
    """``redis://`` and ``rediss://``. Outside of a worker's main process its channels are kombu's own."""

    #: To Celery a Redis that is full or read-only is one that is away: its workers wait for it, and do not end.
    connection_errors = (*redis.Transport.connection_errors, OutOfMemoryError, ReadOnlyError)
    Channel = property(lambda self: Channel if broker.current() else redis.Channel)


class SentinelTransport(Transport, redis.SentinelTransport):
    """``sentinel://``."""

    Channel = property(lambda self: SentinelChannel if broker.current() else redis.SentinelChannel)


#: What serves which scheme of URLs.
TRANSPORTS = {"redis": Transport, "rediss": Transport, "sentinel": SentinelTransport}


class Connection(kombu.Connection):
    """A connection that uses these transports; its URLs are Kombu's."""

    def get_transport_cls(self) -> type:
        """The transport of the URL's scheme."""
        return TRANSPORTS.get(self.transport_cls) or super().get_transport_cls()
