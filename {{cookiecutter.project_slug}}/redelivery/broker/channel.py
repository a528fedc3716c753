"""Kombu's Redis channel, with a script that takes a message and registers it in the same step (``take.lua``).

Redis remembers which lists the script has read (``CLIENT TRACKING``), and says when one of them changes. So waiting
takes and writes nothing, for any number of queues and priorities.
"""

from __future__ import annotations

import logging
import time
from queue import Empty
from typing import Any

from kombu.transport import redis
from redis.exceptions import NoScriptError, ResponseError

from redelivery import broker
from redelivery.broker import giveback
from redelivery.broker.holder import QoS

logger = logging.getLogger("redelivery")
#: Redis says something unasked in its third protocol only. No command waits longer than two seconds.
CONNECTION = {"protocol": 3, "socket_timeout": 2.0, "socket_connect_timeout": 2.0}


class Channel(redis.Channel):
    """In the main process of a worker. Kombu polls when there is room and ``_in_poll`` is empty."""

    QoS = QoS
    holder = property(lambda self: broker.current())
    takes, _refusal = False, ""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        polls = {"redis_connect_func": _track} if asynchronous else {}
        return super()._connparams(asynchronous) | CONNECTION | polls

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **options: Any) -> Any:
        """Consume from a queue. What is not acknowledged is left to kombu."""
        if not no_ack and not self.takes:
            self.holder.attach(self)
            self.takes = True
        return super().basic_consume(queue, no_ack, *args, **options)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if not self.takes:
            return super()._brpop_start(timeout)
        if self._brpop_sent_at:
            giveback.give_back_unheard(self.holder)  # the connection was lost, and with it an answer
        queues, prefix = self._queue_cycle.consume(len(self.active_queues)), self.global_keyprefix
        keys = [prefix + self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        command = ("EVALSHA", self.holder.take.sha, len(keys), *keys, prefix, self.holder.worker)
        self._in_poll, self._brpop_sent_at = self.client.connection, time.monotonic()
        self._in_poll.send_command(*command)
        return None

    def _brpop_read(self, **options: Any) -> bool:
        if not self.takes:
            return super()._brpop_read(**options)
        connection, asked = self.client.connection, self._brpop_sent_at
        self._brpop_sent_at = self._in_poll = None
        if not asked or self._closing:
            raise Empty  # said unasked, or lost: the next poll reads it. A last answer: the holder gives it back
        try:
            taken = connection.read_response()  # passes over what is said unasked
        except ResponseError as error:
            taken = self._refused(error)
        if taken:
            return self.holder.receive(self, *taken)
        # What Redis says may have come with the answer, into the client's buffer, where no poll sees it (measured).
        if not connection.can_read():
            self._in_poll = connection
        raise Empty

    def _refused(self, error: ResponseError) -> None:
        """Redis is full, takes no writes, or has lost the script: try again when an idle worker looks anyway."""
        if str(error) != self._refusal:
            logger.error("redelivery: Redis gives no message, this goes on being tried: %s", error)
        self._refusal = str(error)
        if isinstance(error, NoScriptError):
            self.holder.client.script_load(self.holder.take.script)


def _track(connection: Any) -> None:
    """Have Redis say when a list changes that was read over this connection, once for each read."""
    connection.on_connect()
    try:
        connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
        connection.read_response()
    except ResponseError as error:
        logger.warning("redelivery: idle workers look once a second, not at once: %s", error)
