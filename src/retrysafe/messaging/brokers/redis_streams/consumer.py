"""Redis Streams: one consumer of a group owns a stream at a time, and begins with the messages left unsettled in it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, NamedTuple

import redis
import redis.asyncio

from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.consumer import AssignedConsumer, ConsumerSession, names_of
from retrysafe.messaging.brokers.redis_streams.client import twin_of
from retrysafe.messaging.brokers.redis_streams.entries import envelope_in
from retrysafe.messaging.brokers.redis_streams.leases import PartitionLeases
from retrysafe.messaging.brokers.redis_streams.publisher import stream_of
from retrysafe.messaging.brokers.single_flight import SingleFlight
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration

_LOOK = 1.0
"""Longest wait for new entries in seconds: shorter than the time limit of a client."""
_BRIEF = 0.05
"""Longest wait for new entries in seconds while another stream waits for memory, which any ack may free."""
_BEGINNING = "0-0"
_NAME = "retrysafe.consumer"
_MEMBER = "retrysafe"
"""The consumer in the group: always one, since a stream has one owner at a time."""

_READ = """
local owner = redis.call('GET', KEYS[2])
if owner and tonumber(owner) > tonumber(ARGV[1]) then return {'fenced'} end
if owner ~= ARGV[1] then redis.call('SET', KEYS[2], ARGV[1]) end
local function fact(facts, name)
    for at = 1, #facts, 2 do if facts[at] == name then return facts[at + 1] end end
end
local function group()
    local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
    for _, facts in ipairs(groups) do if fact(facts, 'name') == ARGV[2] then return facts end end
    redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
    return {'last-delivered-id', '0-0'}
end
local entries, room, bytes = {}, tonumber(ARGV[4]), tonumber(ARGV[7])
local function keep(found)
    for _, entry in ipairs(found) do
        for _, value in ipairs(entry[2]) do bytes = bytes - #value end
        entries[#entries + 1] = entry
    end
    room = room - #found
end
local read = fact(group(), 'last-delivered-id')
if ARGV[5] ~= '' then
    local cursor, lost = ARGV[5], {}
    repeat
        local left = redis.call('XAUTOCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, cursor, 'COUNT', math.min(room, 10))
        cursor = left[1]
        keep(left[2])
        for _, id in ipairs(left[3] or {}) do lost[#lost + 1] = id end
    until cursor == '0-0' or room <= 0 or bytes <= 0
    return {'left', cursor, entries, lost, read}
end
if read ~= ARGV[6] then return {'missed'} end
repeat
    local count = math.min(room, 10)
    local new = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', count, 'STREAMS', KEYS[1], '>')
    if new then keep(new[1][2]) end
until not new or #new[1][2] < count or room <= 0 or bytes <= 0
if #entries > 0 then return {'new', entries} end
return {'none', fact(redis.call('XINFO', 'STREAM', KEYS[1]), 'last-generated-id')}
"""
"""Reads a stream for its owner. KEYS: stream, owner; ARGV: token, group, member, count, cursor of what was left, read,
and bytes.

It reads ten entries at a time until it reaches the count or the bytes, because the size of an entry is unknown before
it is read.

A consumer that has lost the stream and does not know it yet is refused by the higher token of the new owner: otherwise
it would read entries that the owner never sees. No entries are skipped when an answer is lost, here or in a client that
retries by itself: the script notices that the group has read further than the owner knows. A group that does not exist,
or was removed with its stream, is created, and begins with the first entry.
"""

_TRIM_EVERY = 60.0
"""Seconds between two trimmings of a stream."""
_TRIM = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local function parts(id) return tonumber(id:match('^%d+')), tonumber(id:match('%d+$')) end
local function before(one, other)
    local ms, number = parts(one)
    local other_ms, other_number = parts(other)
    return ms < other_ms or ms == other_ms and number < other_number
end
local now = redis.call('TIME')
local least = string.format('%.0f-0', math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1]))
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then return 0 end
for _, facts in ipairs(groups) do
    local group = {}
    for at = 1, #facts, 2 do group[facts[at]] = facts[at + 1] end
    local waits = group['last-delivered-id']
    if group['pending'] > 0 then waits = redis.call('XPENDING', KEYS[1], group['name'])[2] end
    if before(waits, least) then least = waits end
end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', least, 'LIMIT', 10000)
"""
"""Removes entries that are old enough and that every group of the stream has settled. ARGV: retention in milliseconds.

Redis frees whole blocks of some 100 entries, and here at most 10,000 entries at a time, so that other clients do not
wait for long.
"""


class _EntryTag(NamedTuple):
    stream: str
    id: bytes


class _Stream:
    """The read position of a stream's owner."""

    def __init__(self) -> None:
        self.cursor = _BEGINNING
        """The cursor in the unsettled entries; empty when all of them were read."""
        self.read = b""
        """The last entry that the group has read, as far as the owner knows."""
        self.end = b"0-0"
        """The last entry of the stream when there was nothing new."""


class RedisStreamsConsumer(AssignedConsumer["_RedisStreamsSession"]):
    """Receives messages from the streams of topics, for a group, which is created when it does not exist.

    One consumer of the group owns a stream at a time and holds a lease on it; consumers share the streams evenly. A new
    owner begins with the unsettled messages, the oldest first. A message that is given back stays with this consumer:
    after its delay, the consumer hands out this message and those that follow it in its lane. Other lanes do not wait
    for it.

    Needs Redis 7.0 or later: one server, or one with replicas and failover. A cluster is not supported.

    Arguments:
        client: a client of redis.asyncio, without ``decode_responses``. `aclose` closes it.
        topics: one or more topics.
        group: name of the group, such as "inventory": its consumers together receive each message once.
        partitions: over how many streams each topic is spread; the publishers need the same number.
        prefix: prefix of the streams' names; the publishers need the same.
        prefetch: how many unsettled messages of a stream are in memory at most. Those that wait for a retry count a
            tenth: when the limit is reached, the stream is not read.
        prefetch_bytes: how many bytes of unsettled messages of a stream are in memory at most; ten messages more may be
            read, because their sizes are known only afterwards.
        lease: for how long a dead or disconnected consumer keeps its streams.
        leases: the store of the consumers' leases, if it is not the broker; in the form that ``Boundary(store=…)``
            takes.
        delete: whether settled entries are removed at once: for the only group; another one that reads the stream would
            miss them. By default entries stay for ``keep``.
        keep: for how long after its publication an entry is kept; then it is removed, once every group of its stream
            has settled it. Unsettled entries stay. A group that is created later misses the entries that were removed
            before. None: entries stay until publishers trim the stream by their ``length``.
        redelivery_window: for how long after its publication a message may be handed out again; by default unknown,
            since a stream keeps its entries.
        observers: receive an event when messages were lost because a stream was trimmed; by default a
            `LoggingObserver`.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        topics: str | Iterable[str],
        *,
        group: str,
        partitions: int | None = None,
        prefix: str = "",
        prefetch: int = 200,
        prefetch_bytes: int = 16 << 20,
        lease: Duration = "15s",
        leases: Any = None,
        delete: bool = False,
        keep: Duration | None = "1d",
        redelivery_window: Duration | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        names = names_of(topics, prefetch, prefetch_bytes, group)
        if client.get_encoder().decode_responses:  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                "client= has decode_responses=True, but payloads are bytes: give a client without it."
            )
        places = [place for topic in names for place in partitions_of(topic, partitions)]
        streams = {stream_of(prefix, place): place for place in places}
        others = [stream_of(prefix, place) for one in names for place in partitions_of(one, None if partitions else 1)]
        kept = None if keep is None else round(seconds_of(keep, "keep") * 1000)
        watching = Observers((LoggingObserver(),) if observers is None else observers)
        clients, stores = (chain((one,), map(twin_of, repeat(one))) for one in (client, leases))
        held_for = seconds_of(lease, "lease")

        def new_session() -> _RedisStreamsSession:
            own, store = next(clients), next(stores)
            leases = PartitionLeases(own, list(streams), group, own if store is None else store, held_for)
            limits = prefetch, prefetch_bytes
            return _RedisStreamsSession(own, leases, streams, others, group, limits, delete, kept, watching)

        super().__init__(new_session, redelivery_window)


class _RedisStreamsSession(ConsumerSession):
    """The streams that are held, which `receive` reads."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        leases: PartitionLeases,
        streams: Mapping[str, str],
        others: Sequence[str],
        group: str,
        limits: tuple[int, int],
        delete: bool,
        keep: int | None,
        observers: Observers,
    ) -> None:
        super().__init__(*limits)
        self._client, self._leases, self._streams, self._group = client, leases, streams, group
        self._others = others
        self._delete, self._keep, self._observers = delete, keep, observers
        self._trimmed: dict[str, float] = {}
        self._read: defaultdict[str, _Stream] = defaultdict(_Stream)
        self._filling, self._more = SingleFlight(self._fill), False
        self._owed: defaultdict[str, list[bytes]] = defaultdict(list)
        self._room = self._arrived

    async def open(self) -> None:
        """Raises `QueueMissing` when there are only streams of publishers that have other ``partitions``."""
        if await self._client.exists(*self._streams):
            return
        with suppress(redis.ResponseError):  # the user may have no rights to them
            for other in self._others:
                if await self._client.exists(other):
                    raise QueueMissing(
                        f"Redis has the stream {other!r}, and none of {', '.join(self._streams)}: give partitions= "
                        "(--partitions) as the publishers do."
                    )

    def take(self, limit: int, now: float) -> Sequence[Delivery]:
        self._forget(self._leases.find_lost())
        self._leaving = self._leases.leaving
        return super().take(limit, now)

    async def look(self) -> bool:
        await self._filling()
        return self._more

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge these deliveries; acknowledgements that fail now are sent before the next read.

        Deliveries of a stream that this consumer has lost meanwhile are settled too, whichever consumer holds it.
        """
        for stream, entries in self._release(deliveries).items():
            self._owed[stream] += [entry.id for entry in entries]
        with suppress(redis.RedisError):
            await self._settle_owed()

    @property
    def assigned(self) -> Collection[str]:
        return [*self._leases.tokens()]

    async def lag(self) -> Mapping[str, int]:
        """Count the entries of each stream that the group has not settled, if the server can tell, as it mostly can."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in self._streams:
            pipeline.xinfo_groups(stream)
        answers = await pipeline.execute(raise_on_error=False)
        found = {}
        for stream, groups in zip(self._streams, answers, strict=True):
            if isinstance(groups, redis.ResponseError):
                continue  # there is no such stream yet
            if isinstance(groups, Exception):
                raise groups
            for group in groups:
                if group["name"] == self._group.encode() and group["lag"] is not None:
                    found[stream] = group["lag"] + group["pending"]
        return found

    async def close(self) -> None:
        """Release the streams; their next consumer takes the unsettled messages."""
        await self._filling.aclose()
        await self._leases.aclose()
        await self._client.aclose()

    # ------------------------------------------------------------ streams

    def _forget(self, streams: Iterable[str]) -> None:
        """Forget streams that this consumer has lost; their next owners receive the unsettled messages."""
        for stream in streams:
            self._lanes.forget(stream)
            self._read.pop(stream, None)

    async def _fill(self) -> None:
        """Take and leave streams, and read as many entries as memory allows."""
        gone = [stream for stream in self._leases.leaving if not self._lanes.out(stream)] + self._leases.find_lost()
        self._forget(gone)
        await self._leases.leave(gone)
        await self._leases.share()
        await self._settle_owed()
        self._more = await self._read_on()  # which creates the group if it does not exist
        await self._trim()

    async def _read_on(self) -> bool:
        """Read new entries; return whether there may be more messages to hand out than before."""
        pipeline = self._client.pipeline(transaction=False)
        asked: list[str] = []
        for stream, token in self._leases.tokens().items():
            if self._has_room(stream):
                room, space = self._prefetch - self._lanes.load(stream), self._bytes - self._lanes.count_bytes(stream)
                asked.append(stream)
                keys = (stream, f"{stream}:owner:{self._group}")
                state = self._read[stream]
                pipeline.eval(_READ, 2, *keys, str(token), self._group, _MEMBER, room, state.cursor, state.read, space)
        answers: list[Any] = await pipeline.execute(raise_on_error=False) if asked else []
        taken = [self._took(stream, answer) for stream, answer in zip(asked, answers, strict=True)]
        for failure in answers:
            if isinstance(failure, Exception):
                raise failure
        return any(taken)

    def _took(self, stream: str, answer: Any) -> bool:
        """Keep the entries of an answer; return whether to read again at once."""
        state = self._read[stream]
        match answer:
            case [b"left", cursor, entries, lost, read]:
                state.cursor, state.read = "" if cursor == _BEGINNING.encode() else cursor.decode(), read
                self._put(stream, entries, again=True)
                self._tell_lost(stream, len(lost))
            case [b"new", entries]:
                state.read = entries[-1][0]
                self._put(stream, entries, again=False)
            case [b"missed"]:
                state.cursor = _BEGINNING
            case [b"none", end]:
                state.end = end
                return False
            case [b"fenced"]:
                self._lanes.forget(stream)
                self._leases.drop(stream)
        return True

    def _tell_lost(self, stream: str, messages: int) -> None:
        if messages:
            fields = {"stream": stream, "group": self._group, "messages": messages}
            self._observers.emit("messages_trimmed", _NAME, "", b"", "", fields)

    def _put(self, stream: str, entries: Sequence[Any], *, again: bool) -> None:
        for number, flat in entries:
            entry = _EntryTag(stream, number)
            if not (again and self._lanes.has(entry)):
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                self._lanes.put(Delivery(envelope_in(fields, self._streams[stream]), entry, stream, again))

    async def wait(self, until: float) -> None:
        """Wait until there may be new entries, or memory for them."""
        wakes, now = self._lanes.wakes(), asyncio.get_running_loop().time()
        seconds = min(until, now + _LOOK, until if wakes is None else wakes) - now
        held = self._leases.tokens()
        waiting = [stream for stream in held if self._has_room(stream)]
        if not waiting or seconds < 0.001:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._arrived.wait()
            return
        if any(self._lanes.out(stream) for stream in held if stream not in waiting):
            seconds = min(seconds, _BRIEF)
        await self._client.xread({stream: self._read[stream].end for stream in waiting}, 1, max(1, int(seconds * 1000)))

    async def _trim(self) -> None:
        """Remove entries that every group has settled from the streams that are held, at intervals."""
        now = asyncio.get_running_loop().time()
        due = [one for one in self._leases.tokens() if now >= self._trimmed.get(one, -_TRIM_EVERY) + _TRIM_EVERY]
        if self._keep is None or not due:
            return
        pipeline = self._client.pipeline(transaction=False)
        for stream in due:
            pipeline.eval(_TRIM, 1, stream, str(self._keep))
        await pipeline.execute()
        self._trimmed = {stream: self._trimmed.get(stream, now) for stream in self._leases.tokens()}
        self._trimmed.update(dict.fromkeys(due, now))

    async def _settle_owed(self) -> None:
        owed = {stream: list(tags) for stream, tags in self._owed.items() if tags}
        if not owed:
            return
        pipeline = self._client.pipeline(transaction=False)
        for stream, tags in owed.items():
            pipeline.xack(stream, self._group, *tags)
            if self._delete:
                pipeline.xdel(stream, *tags)
        await pipeline.execute()
        for stream, tags in owed.items():
            told = set(tags)
            self._owed[stream] = [tag for tag in self._owed[stream] if tag not in told]
