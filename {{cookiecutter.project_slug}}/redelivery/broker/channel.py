"""Kombu's Redis channel, with a script that takes a message and registers it in the same step (``take.lua``).

When nothing is there, the script is sent once more and Redis told to remember what it reads (``CLIENT TRACKING``): it
then says when one of the lists changes. That takes and writes nothing, for any number of queues and priorities.
"""

from __future__ import annotations

import logging
import math
import time
from queue import Empty
from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import loads
from redis.exceptions import NoScriptError, ResponseError

from redelivery import broker, kills

logger = logging.getLogger("redelivery")
#: Seconds after which an idle worker looks unasked; the first and the longest pause when Redis refuses.
LOOK_S, PAUSE_S, LONGEST_PAUSE_S = 1.0, 0.5, 4.0


class QoS(virtual.QoS):
    """Counts what the channel holds. The rest is the holder's, so a connection that is lost gives nothing back."""

    restore_at_shutdown = False

    def ack(self, delivery_tag: str) -> None:
        """Have a message removed."""
        self.reject(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Have a message removed, or put back."""
        self.channel.holder.settle(delivery_tag, requeue)
        super().ack(delivery_tag)


class Poller(redis.MultiChannelPoller):
    """To kombu a channel always waits for an answer: so it reads what Redis says unasked, when there is room."""

    def on_poll_start(self) -> None:
        """Let kombu send what is due."""
        for channel in self._channels:
            if channel.due_at <= time.monotonic() and channel.qos.can_consume():
                channel._in_poll = None
        super().on_poll_start()


class Channel(redis.Channel):
    """A channel. In the main process of a worker it has a ``holder``, for queues whose messages are acknowledged."""

    #: When to take next: never while an answer is outstanding, or where kombu's own poll is used.
    due_at = math.inf
    takes = _armed = False
    _tracked, _sent, _pause_s = None, 0, PAUSE_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if current := broker.current():
            self.holder, self.QoS = current, QoS

    def basic_consume(self, queue: str, *args: Any, **options: Any) -> Any:
        """Consume from a queue."""
        if self.QoS is QoS and not self.takes and not options.get("no_ack"):
            self.holder.attach(self)
            self.takes = True
        return super().basic_consume(queue, *args, **options)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if not self.takes:
            return super()._brpop_start(timeout)
        if self.holder.draining:
            return None
        queues, prefix = self._queue_cycle.consume(len(self.active_queues)), self.global_keyprefix
        keys = [prefix + self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        connection, commands = self.client.connection, []
        if connection._sock is not self._tracked:
            commands.append(("CLIENT", "TRACKING", "ON", "OPTIN"))
        if self._armed:
            commands.append(("CLIENT", "CACHING", "YES"))
        commands.append(("EVALSHA", self.holder.take.sha, len(keys), *keys, prefix, self.holder.worker))
        connection.send_packed_command(connection.pack_commands(commands))
        self._in_poll, self._brpop_sent_at, self.due_at = connection, time.monotonic(), math.inf
        self._tracked, self._sent = connection._sock, len(commands)
        return None

    def _brpop_read(self, **options: Any) -> bool:
        if not self.takes:
            return super()._brpop_read(**options)
        self.due_at = 0
        if not self._sent or self._closing:
            raise Empty  # said unasked, or lost: the next take reads it. A last answer: the holder gives it back
        *said, taken = [self._answer() for _ in range(self._sent)]
        self._sent, self._brpop_sent_at = 0, None
        for refused in said:
            if isinstance(refused, ResponseError):
                logger.warning("redelivery: idle workers look once a second, not at once: %s", refused)
        if isinstance(taken, ResponseError):
            return self._refused(taken)
        self._pause_s = PAUSE_S
        for item in taken[0]:
            kills.log_parked(item.decode(errors="replace"))
        if len(taken) > 1:
            self._armed = False
            return self._deliver(*taken[1:])
        # What it said may have come with the answer, into the client's buffer, where no poll sees it (measured).
        waits = self._armed and not self.client.connection.can_read()
        self.due_at = time.monotonic() + LOOK_S if waits else 0
        self._armed = True
        raise Empty

    def _answer(self) -> Any:
        try:
            return self.client.connection.read_response()  # passes over what is said unasked
        except ResponseError as error:
            return error
        except self.connection_errors:
            self.client.connection.disconnect()
            raise

    def _refused(self, error: ResponseError) -> bool:
        if isinstance(error, NoScriptError):  # the first time, or Redis was restarted
            self.holder.client.script_load(self.holder.take.script)
            raise Empty
        logger.error("redelivery: Redis gives no message, next try in %s s: %s", self._pause_s, error)
        self.due_at = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        raise Empty

    def _deliver(self, key: bytes, tag: bytes, raw: bytes, waits: int) -> bool:
        tag, queue = tag.decode(), key.decode()[len(self.global_keyprefix) :].rsplit(self.sep, 1)[0]
        if not self.holder.add(tag, bool(waits)):
            raise Empty  # a drain began meanwhile: the holder gives it back
        self._queue_cycle.rotate(queue)
        try:
            message = loads(raw.decode())
            message["properties"]["delivery_tag"] = tag
            self.connection._deliver(message, queue)
        except Exception as error:
            if tag in self.qos._delivered:
                raise  # it could be read: the error is the consumer's
            self.holder.park(tag, f"it cannot be decoded: {error!r}")
        return True
