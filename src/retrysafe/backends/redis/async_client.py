"""redis-py for async code: one auto-pipelined connection to each server.

redis-py connects: it knows TLS, authentication and Sentinel. Then its connection is taken over by a protocol
that writes what the tasks of one turn of the loop ask in one go, and hands each reply to the task that waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import hiredis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError, ResponseError

from retrysafe.backends.backend import hang_up
from retrysafe.backends.redis.client import (
    Reply,
    Words,
    answer_of,
    by_digest,
    by_source,
    code_of,
    cursor_after,
    is_redirection,
    not_connected,
    page_commands,
    place_of,
    settings_commands,
    settings_of,
)
from retrysafe.backends.redis.requests import Scan, Scanned, Script, Settings
from retrysafe.backends.spec import WithoutTransactions
from retrysafe.cancellation import await_shared, reraise_cancellation
from retrysafe.errors import StoreUnavailable

SILENCE = 5.0
"""Seconds without any reply after which a connection with requests in flight is given up."""


class Wire(asyncio.Protocol):
    """A connection on which many requests are in flight; Redis replies in their order.

    A cancelled waiter leaves its place in the queue, so that its reply is dropped and no other is disturbed.
    """

    def __init__(self, silence: float | None, hear: Callable[[Reply], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence = silence
        self._hear = hear
        self._reader = hiredis.Reader()
        self._outgoing: list[bytes] = []
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._heard = self._loop.time()
        """The time of the last reply: a request behind many others waits for as long as replies keep coming."""
        self._watch: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self._before: Any = None
        self._streams: tuple[Any, ...] = ()
        """redis-py's reader and writer: were they to go, they would close the transport."""
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def over(cls, connection: Any, hear: Callable[[Reply], None] | None = None) -> Wire:
        """Connect, and take the connection over from redis-py."""
        try:
            await reraise_cancellation(connection.connect())
        except (RedisError, OSError) as error:
            raise not_connected(error) from error
        except BaseException:  # cancelled half-way: nothing else would hang up
            await connection.disconnect(nowait=True)
            raise
        silence = getattr(connection, "socket_timeout", None) or SILENCE  # a silent server must not hang a claim
        wire = cls(silence, hear)
        wire._streams = connection._reader, connection._writer
        connection._reader = connection._writer = None
        wire._transport = wire._streams[1].transport
        wire._before = wire._transport.get_protocol()
        wire._transport.set_protocol(wire)
        if wire._transport.is_closing():
            wire.connection_lost(None)
        return wire

    @property
    def is_open(self) -> bool:
        return not self.lost.done()

    def ask(self, words: Words) -> asyncio.Future[Reply]:
        """Send a command with what else this turn of the loop sends; the future is its reply, errors as values."""
        answer: asyncio.Future[Reply] = self._loop.create_future()
        if not self.is_open:  # hung up on since it was laid: no answer would ever come
            answer.set_exception(StoreUnavailable("the server has closed the connection", unsent=True))
            return answer
        self.send(words)
        self._waiting.append((answer, self._loop.time()))
        if self._watch is None and self._silence is not None:
            self._watch = self._loop.call_later(self._silence, self._look)
        return answer

    def send(self, words: Words) -> None:
        """Send a command whose replies are heard, or waited for by `ask`."""
        packed = hiredis.pack_command(words)
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(packed)

    def _flush(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        if self.is_open:
            self._transport.write(data)

    def _look(self) -> None:
        """Give the connection up if the oldest request has waited for too long, and no other was answered meanwhile."""
        self._watch = None
        if self._waiting and self._silence is not None and self.is_open:
            until = max(self._waiting[0][1], self._heard) + self._silence
            if until <= self._loop.time():
                self._fail(f"no reply within {self._silence:g} seconds")
                self._transport.abort()
            else:
                self._watch = self._loop.call_at(until, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._receive(reply)
        except hiredis.ProtocolError as error:
            self._fail(str(error))
            self._transport.abort()

    def _receive(self, reply: Reply) -> None:
        if self._hear is not None:
            self._hear(reply)
        elif not isinstance(reply, hiredis.PushNotification) and self._waiting:
            answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc is not None else "the server has closed the connection")
        before, self._before = self._before, None
        if before is not None:
            before.connection_lost(exc)

    def _fail(self, text: str) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if not self.lost.done():
            self.lost.set_result(None)
        while self._waiting:
            answer, _ = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(StoreUnavailable(text))

    def close(self) -> None:
        self._fail("the client was closed")
        self._transport.abort()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        hang_up(self._transport)


class Lane:
    """The wire to one server, laid when it is needed and again when it is broken."""

    def __init__(self, connection: Callable[[], Any]) -> None:
        self._connection = connection
        self._wire: Wire | None = None
        self._laying: asyncio.Task[Wire] | None = None

    async def ask(self, words: Words) -> Reply:
        wire = self._wire
        if wire is None or not wire.is_open:
            wire = await self._ensure_laid()
        reply = await wire.ask(words)
        if code_of(reply) == "READONLY":  # a master no more: Sentinel knows the new one
            wire.close()
        return reply

    async def _ensure_laid(self) -> Wire:
        """Lay the wire once for all who wait; one of them may be cancelled."""
        if self._laying is None:
            self._laying = asyncio.get_running_loop().create_task(self._lay())
            self._laying.add_done_callback(_no_warning)
        try:
            return await await_shared(self._laying, StoreUnavailable("The client was closed meanwhile."))
        except StoreUnavailable as error:
            raise type(error)(error.detail, unsent=True) from error

    async def _lay(self) -> Wire:
        try:
            self._wire = await Wire.over(self._connection())
            return self._wire
        finally:
            self._laying = None

    async def aclose(self) -> None:
        laying, wire = self._laying, self._wire
        if laying is not None:
            laying.cancel()
            await asyncio.wait([laying])
            wire = self._wire
        if wire is not None and wire.is_open:
            wire.close()
            await asyncio.sleep(0)

    def abandon(self) -> None:
        if self._wire is not None and self._wire.is_open:
            self._wire.abandon()


def _no_warning(task: asyncio.Task[Any]) -> None:
    """All waiters may be cancelled: retrieve the exception here."""
    if not task.cancelled():
        task.exception()


class AsyncMasters(NamedTuple):
    """The servers to send requests to, each by its address, as `retrysafe.backends.redis.client.Masters`."""

    of_key: Callable[[bytes], Awaitable[tuple[str, Callable[[], Any]]]]
    all: Callable[[], Awaitable[dict[str, Callable[[], Any]]]]
    elsewhere: Callable[[Script], Awaitable[Reply]] | None
    aclose: Callable[[], Awaitable[None]]
    abandon: Callable[[], None]


def one_server(client: redis.asyncio.Redis, *, ours: bool, beside: Sequence[redis.asyncio.Redis] = ()) -> AsyncMasters:
    """A server of its own, which may be found by the Sentinels ``beside`` it."""
    pool: Any = client.connection_pool

    async def of_key(key: bytes) -> tuple[str, Callable[[], Any]]:
        return "", pool.make_connection

    async def everyone() -> dict[str, Callable[[], Any]]:
        return {"": pool.make_connection}

    async def aclose() -> None:
        for one in (client, *beside) if ours else ():
            await one.aclose()

    def abandon() -> None:
        for one in (client, *beside) if ours else ():
            _abandon(getattr(one.connection_pool, "_available_connections", ()))

    return AsyncMasters(of_key, everyone, None, aclose, abandon)


def _abandon(connections: Iterable[Any]) -> None:
    for connection in connections:
        writer, connection._writer, connection._reader = connection._writer, None, None
        if writer is not None:
            hang_up(writer.transport)


def cluster(client: RedisCluster, *, ours: bool) -> AsyncMasters:
    """A cluster: redis-py knows its nodes, and follows redirections."""
    nodes: Any = client

    async def known() -> Any:
        try:
            return await reraise_cancellation(nodes.initialize())
        except (RedisError, OSError) as error:
            raise not_connected(error) from error

    def connecting(node: Any) -> Callable[[], Any]:
        return lambda: node.connection_class(**node.connection_kwargs)

    async def of_key(key: bytes) -> tuple[str, Callable[[], Any]]:
        node = (await known()).get_node_from_key(key)
        if node is None:
            raise StoreUnavailable("No node of the cluster serves the key's slot.", unsent=True)
        return node.name, connecting(node)

    async def everyone() -> dict[str, Callable[[], Any]]:
        return {node.name: connecting(node) for node in (await known()).get_primaries()}

    async def elsewhere(script: Script) -> Reply:
        """redis-py follows redirections, and learns from them; a script may so be run twice, as after a lost reply."""
        try:
            return await reraise_cancellation(nodes.execute_command(*by_source(script), NEVER_DECODE=True))
        except ResponseError as error:
            return error
        except (RedisError, OSError) as error:
            raise StoreUnavailable(str(error)) from error

    async def aclose() -> None:
        if ours:
            await nodes.aclose()

    def abandon() -> None:
        known = nodes.nodes_manager
        for node in (*known.nodes_cache.values(), *known.startup_nodes.values()) if ours else ():
            _abandon(getattr(node, "_connections", ()))
        if ours:
            nodes._initialize = True  # it has nothing open, and would complain that it was not closed

    return AsyncMasters(of_key, everyone, elsewhere, aclose, abandon)


class AsyncRedisClient(WithoutTransactions):
    """Requests over one lane to each server; it belongs to one event loop."""

    def __init__(self, masters: AsyncMasters) -> None:
        self._masters = masters
        self._lanes: dict[str, Lane] = {}

    async def __call__(self, request: Script | Scan | Settings, /) -> Any:
        if isinstance(request, Scan):
            return await self._scan(request)
        if isinstance(request, Settings):
            return await self._settings(request)
        return answer_of(await self._run(request))

    def _lane(self, name: str, connection: Callable[[], Any]) -> Lane:
        found = self._lanes.get(name)
        if found is None:
            found = self._lanes[name] = Lane(connection)
        return found

    async def _run(self, script: Script) -> Reply:
        elsewhere = self._masters.elsewhere
        try:
            reply = await self._run_on(self._lane(*await self._masters.of_key(script.keys[0])), script)
        except StoreUnavailable as error:
            if elsewhere is None or not error.unsent:
                raise
            return await elsewhere(script)
        return await elsewhere(script) if elsewhere is not None and is_redirection(reply) else reply

    async def _run_on(self, lane: Lane, script: Script) -> Reply:
        reply = await lane.ask(by_digest(script))
        return await lane.ask(by_source(script)) if code_of(reply) == "NOSCRIPT" else reply

    async def _settings(self, request: Settings) -> list[dict[str, str]]:
        commands, masters = settings_commands(request), await self._masters.all()
        return [settings_of(await _together(self._lane(*master), commands)) for master in masters.items()]

    async def _scan(self, request: Scan) -> Scanned:
        masters = await self._masters.all()
        name, inside = place_of(request.cursor, list(masters))
        lane = self._lane(name, masters[name])
        after, keys = answer_of(await lane.ask(page_commands(request, inside)))
        keys = list(dict.fromkeys(keys))
        if request.lasting and keys:
            left = await _together(lane, [("PTTL", key) for key in keys])
            keys = [key for key, milliseconds in zip(keys, left, strict=True) if milliseconds == -1]
        if keys:
            await lane.ask(("SCRIPT", "LOAD", request.script.source))
        replies = await asyncio.gather(*(self._run(request.script._replace(keys=(key,))) for key in keys))
        found = [(key, answer_of(reply)) for key, reply in zip(keys, replies, strict=True)]
        return Scanned(found, cursor_after(name, int(after), list(masters)))

    async def aclose(self) -> None:
        for lane in self._lanes.values():
            await lane.aclose()
        await self._masters.aclose()

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.abandon()
        self._masters.abandon()


async def _together(lane: Lane, commands: Sequence[Words]) -> list[Reply]:
    return await asyncio.gather(*(lane.ask(command) for command in commands))
