"""Redis Streams: a stream for each topic. A script keeps a message from being added twice while it remembers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.lanes import partition, partitions_of
from retrysafe.messaging.cloudevents import attributes
from retrysafe.messaging.redis_entries import PAYLOAD
from retrysafe.types import Duration, Envelope, Published, Reception

_ACKED, _DUPLICATE = Published(Reception.ACKED), Published(Reception.DUPLICATE)
_SCRIPT = """
if redis.call('EXISTS', KEYS[2]) == 1 then
    return 0
end
redis.call('XADD', KEYS[1], unpack(ARGV, 2))
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
"""
"""Redis before 8.6 has no idempotent XADD. A script is not rolled back where it fails, so the mark comes after the entry:
a mark without an entry would have the message taken for a duplicate, and lost."""


def stream_of(prefix: str, partition: str) -> str:
    """The name of the stream of a topic or partition."""
    return f"{prefix}{{{partition}}}"


class _Commands:
    """What is asked of Redis for a message. Pure."""

    def __init__(self, prefix: str, partitions: int | None, remember: Duration, length: int | None) -> None:
        partitions_of("", partitions)  # refuses a wrong number
        self._prefix, self._partitions, self._length = prefix, partitions, length
        self._remembered = round(seconds_of(remember, "remember") * 1000)

    def call(self, envelope: Envelope) -> tuple[Any, ...]:
        """Keys and arguments of the script; both keys are in the slot of the stream."""
        place = partition(envelope.topic, envelope.key, envelope.id, self._partitions)
        tagged = stream_of(self._prefix, place)
        trim = () if self._length is None else ("MAXLEN", "~", self._length)
        fields = [part for pair in attributes(envelope).items() for part in pair]
        arguments = (self._remembered, *trim, "*", *fields, PAYLOAD, envelope.payload)
        return 2, tagged, f"{tagged}:seen:{envelope.source}:{envelope.id}", *arguments


_LOST = (redis.ConnectionError, redis.TimeoutError)
_UNABLE = ("OOM", "MISCONF", "READONLY", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")
"""What a server says that takes nothing from anybody: it is full, cannot save, or is not the one that writes."""
_IN_NO_STATE = (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError, redis.exceptions.ClusterDownError)


def _judged(answers: Sequence[Any]) -> list[Published]:
    return [_one(answer) for answer in answers]


def _one(answer: Any) -> Published:
    if isinstance(answer, redis.RedisError):
        if isinstance(answer, _LOST):
            return Published(Reception.UNKNOWN, str(answer))
        unable = isinstance(answer, _IN_NO_STATE) or str(answer).startswith(_UNABLE)
        return Published(Reception.UNAVAILABLE if unable else Reception.RETRYABLE, str(answer))
    return _ACKED if answer == 1 else _DUPLICATE


class RedisStreamsPublisher:
    """Adds messages to the streams named ``prefix`` and topic, in one pipeline.

    Arguments:
        client: of redis-py; how safe an entry is when it is acknowledged is what its server is set to.
        prefix: of the streams' names.
        partitions: over how many streams a topic is spread, named "TOPIC.0" and so on: all messages of one key go to
            one of them. By default one stream, named like the topic. Their number is not to be changed while messages
            are under way, and consumers must be told the same.
        remember: for how long a message that comes again is recognised; after that only the inbox of a consumer
            recognises it.
        length: about how many entries a stream keeps; by default all. What a consumer has not settled by then is lost.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "",
        partitions: int | None = None,
        remember: Duration = "24h",
        length: int | None = None,
    ) -> None:
        self._client, self._commands = client, _Commands(prefix, partitions, remember, length)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Publish them in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for envelope in envelopes:
            pipeline.eval(_SCRIPT, *self._commands.call(envelope))
        try:
            return _judged(pipeline.execute(raise_on_error=False))
        except redis.RedisError as error:
            if isinstance(error, _LOST) and not self._is_there():
                return [Published(Reception.UNAVAILABLE, str(error))] * len(envelopes)
            return [_one(error)] * len(envelopes)

    def _is_there(self) -> bool:
        """Whether it was the connection that was lost, or the server."""
        try:
            self._client.ping()
        except _LOST:
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self._client.close()


class AsyncRedisStreamsPublisher:
    """The same for async code."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        prefix: str = "",
        partitions: int | None = None,
        remember: Duration = "24h",
        length: int | None = None,
    ) -> None:
        self._client, self._commands = client, _Commands(prefix, partitions, remember, length)

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Publish them in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for envelope in envelopes:
            pipeline.eval(_SCRIPT, *self._commands.call(envelope))
        try:
            return _judged(await pipeline.execute(raise_on_error=False))
        except redis.RedisError as error:
            if isinstance(error, _LOST) and not await self._is_there():
                return [Published(Reception.UNAVAILABLE, str(error))] * len(envelopes)
            return [_one(error)] * len(envelopes)

    async def _is_there(self) -> bool:
        """Whether it was the connection that was lost, or the server."""
        try:
            await self._client.ping()
        except _LOST:
            return False
        return True

    async def aclose(self) -> None:
        """Hang up."""
        await self._client.aclose()
