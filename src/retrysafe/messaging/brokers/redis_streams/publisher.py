"""Redis Streams: a stream for each topic. A script adds a message once, as long as its mark is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)

from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.publisher import ACKED, BrokerPublisher
from retrysafe.messaging.brokers.redis_streams.client import twin_of
from retrysafe.messaging.brokers.redis_streams.entries import PAYLOAD
from retrysafe.messaging.cloudevents import attributes
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import partition, partitions_of
from retrysafe.protocol.records import Duration

_DUPLICATE = PublishResult(PublishStatus.DUPLICATE)
_AT_ONCE, _BYTES_AT_ONCE = 100, 1 << 20
"""The messages, and bytes of payloads and headers, of one call of the script, which blocks the server."""
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_SCRIPT = """
local answers, entries = {}, cjson.decode(ARGV[2])
local function add(at)
    local entry = entries[at - 1]
    entry[#entry + 1] = ARGV[at + 1]
    return redis.pcall('XADD', KEYS[1], unpack(entry))
end
for at = 2, #KEYS do
    local said = redis.pcall('SET', KEYS[at], '', 'NX', 'PX', ARGV[1])
    if type(said) == 'table' and not said.err then
        local came, answer = pcall(add, at)
        said = came and answer or {err = tostring(answer)}
        if type(said) == 'table' then redis.call('DEL', KEYS[at]) end
    end
    answers[at - 1] = type(said) == 'table' and said.err or said and 1 or 0
end
return answers
"""
"""Redis before 8.6 has no idempotent XADD. One script writes the mark and the entry, so that both exist or neither.

KEYS: the stream, then the marks of the messages. ARGV: how long the marks are kept; the arguments of XADD before the
payload of each message, as one JSON text, which costs the client a third of separate arguments; and the payloads. For
each message it returns 1 when the entry was added, 0 when its mark existed, or the error of XADD. After an error the
mark is removed: otherwise the message would count as added when it is published again.
"""


def stream_of(prefix: str, partition: str) -> str:
    return f"{prefix}{{{partition}}}"


class _Commands:
    def __init__(self, prefix: str, partitions: int | None, remember: Duration, length: int | None) -> None:
        partitions_of("", partitions)  # refuses a wrong number
        self._prefix, self._partitions = prefix, partitions
        self._place = ("*",) if length is None else ("MAXLEN", "~", str(length), "*")
        self._remembered = round(seconds_of(remember, "remember") * 1000)

    def fill(self, pipeline: Any, envelopes: Sequence[Envelope]) -> list[_Call]:
        """Add the calls of the script, each for messages of one stream, in their order; return them."""
        found: list[_Call] = []
        filling: dict[str, _Call] = {}
        for place, envelope in enumerate(envelopes):
            stream = stream_of(self._prefix, partition(envelope.topic, envelope.key, envelope.id, self._partitions))
            call = filling.get(stream)
            if call is None or call.is_full(envelope.size):
                call = filling[stream] = _Call(stream, self._place)
                found.append(call)
            call.add(place, envelope)
        for call in found:  # all keys are in the slot of the stream
            keys = call.stream, *call.marks
            pipeline.eval(_SCRIPT, len(keys), *keys, self._remembered, _json(call.entries), *call.payloads)
        return found


class _Call:
    """One call of the script, by the places of its messages."""

    def __init__(self, stream: str, place: tuple[str, ...]) -> None:
        self.stream = stream
        self._place = place
        self.places: list[int] = []
        self.marks: list[str] = []
        self.entries: list[list[str]] = []
        self.payloads: list[bytes] = []
        self._bytes = 0

    def is_full(self, more: int) -> bool:
        return len(self.places) >= _AT_ONCE or self._bytes + more > _BYTES_AT_ONCE

    def add(self, place: int, envelope: Envelope) -> None:
        self.places.append(place)
        self.marks.append(f"{self.stream}:seen:{len(envelope.source)}:{envelope.source}{envelope.id}")
        self.entries.append([*self._place, *chain.from_iterable(attributes(envelope).items()), PAYLOAD])
        self.payloads.append(envelope.payload)
        self._bytes += envelope.size


def _results_of(calls: Sequence[_Call], answers: Sequence[Any]) -> list[PublishResult]:
    found: dict[int, PublishResult] = {}
    for call, answer in zip(calls, answers, strict=True):
        said = [answer] * len(call.places) if isinstance(answer, Exception) else answer
        found.update(zip(call.places, map(_one, said), strict=True))
    return [found[place] for place in range(len(found))]


_LOST = (redis.ConnectionError, redis.TimeoutError)
_UNABLE = (
    *("OOM", "MISCONF", "READONLY", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "BUSY", "UNBLOCKED"),
    *("TRYAGAIN", "NOAUTH", "WRONGPASS"),
)
"""First words of errors of a server that accepts no writes: it is full, cannot save, or is not the master."""
_UNABLE_ERRORS = (AuthenticationError, BusyLoadingError, OutOfMemoryError, ReadOnlyError, ClusterDownError)
_MISPLACED = ("WRONGTYPE", "NOPERM", "MOVED", "ASK")
"""First words of errors of one stream: its key has another type, or writing to it is not permitted."""


def _one(answer: Any, *, is_away: bool = False) -> PublishResult:
    if isinstance(answer, int):
        return ACKED if answer == 1 else _DUPLICATE
    said = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    if is_away:
        return PublishResult(PublishStatus.UNAVAILABLE, said)
    if isinstance(answer, _LOST) and not isinstance(answer, _UNABLE_ERRORS):
        return PublishResult(PublishStatus.UNKNOWN, said)
    word = said.lstrip("-")
    if isinstance(answer, _UNABLE_ERRORS) or word.startswith(_UNABLE):
        return PublishResult(PublishStatus.UNAVAILABLE, said)
    if isinstance(answer, NoPermissionError) or word.startswith(_MISPLACED):
        return PublishResult(PublishStatus.STALLED, said)
    return PublishResult(PublishStatus.RETRYABLE, said)


def _address_of(client: Any, prefix: str) -> str:
    given = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    host, port, db = given.get("host", ""), given.get("port") or 6379, given.get("db") or 0
    return broker_address_of(f"redis://{host}:{port}/{db}", prefix)


class RedisStreamsPublisher:
    """Adds messages to the streams of their topics, whose names begin with ``prefix``, in one pipeline.

    Arguments:
        client: a client of redis-py. How durable an acknowledged entry is depends on the settings of its server.
        prefix: prefix of the streams' names.
        partitions: over how many streams a topic is spread, named "TOPIC.0" and so on: all messages of one key go to
            one of them. By default one stream, named like the topic. Do not change the number while messages are
            unsettled; consumers need the same number.
        remember: how long a message is known; if it is published again later, only the inbox of a consumer recognises
            it.
        length: about how many entries a stream keeps at most (default: all). Entries that are trimmed before a consumer
            has settled them are lost.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "",
        partitions: int | None = None,
        remember: Duration = "1h",
        length: int | None = None,
    ) -> None:
        self._client, self._commands = client, _Commands(prefix, partitions, remember, length)
        self.broker_address = _address_of(client, prefix)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish the messages in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        calls = self._commands.fill(pipeline, envelopes)
        try:
            return _results_of(calls, pipeline.execute(raise_on_error=False))
        except redis.RedisError as error:
            is_away = isinstance(error, _LOST) and not self._is_there()
            return [_one(error, is_away=is_away)] * len(envelopes)

    def _is_there(self) -> bool:
        """Tell whether the server answers: then only the connection was lost."""
        try:
            self._client.ping()
        except redis.RedisError:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class AsyncRedisStreamsPublisher(BrokerPublisher["_RedisPublishing"]):
    """`RedisStreamsPublisher` for async code."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        prefix: str = "",
        partitions: int | None = None,
        remember: Duration = "1h",
        length: int | None = None,
    ) -> None:
        clients = chain((client,), map(twin_of, repeat(client)))
        commands = _Commands(prefix, partitions, remember, length)
        self.broker_address = _address_of(client, prefix)
        super().__init__(lambda: _RedisPublishing(next(clients), commands))


class _RedisPublishing:
    def __init__(self, client: redis.asyncio.Redis, commands: _Commands) -> None:
        self._client, self._commands = client, commands

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        pipeline = self._client.pipeline(transaction=False)
        calls = self._commands.fill(pipeline, envelopes)
        try:
            return _results_of(calls, await pipeline.execute(raise_on_error=False))
        except redis.RedisError as error:
            is_away = isinstance(error, _LOST) and not await self._is_there()
            return [_one(error, is_away=is_away)] * len(envelopes)

    async def _is_there(self) -> bool:
        try:
            await self._client.ping()
        except redis.RedisError:
            return False
        return True

    async def close(self) -> None:
        await self._client.aclose()
