"""The proxy: forwards message after message, and lets a fault befall the k-th of them.

It is one thread with an event loop of its own, so that messages have an order over all connections, and a test that
counts threads counts none of ours come and go. A test arms it, performs its operation, and looks at what was hit.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from tests.faults.proxies.framing import Direction, Framing, Messages

T = TypeVar("T")

Kind = Literal["before", "after", "mid-message", "delayed", "set aside", "half-open", "duplicate"]
"""The fault of a message. It is not forwarded and its connection ends ("before"); it is forwarded and then its
connection ends ("after"); half of it is forwarded and its connection is reset; it and all that follows it in its
direction are kept until `Proxy.go`; it alone is kept until then; from it on everything is swallowed in both directions,
while the connection stays open; it is forwarded twice, and the first of the two replies is dropped.
"""

_OPPOSITE: dict[Direction, Direction] = {">": "<", "<": ">"}


class Fault(NamedTuple):
    """The fault of the k-th message, counted from 1 and from the arming on, over all connections and directions."""

    at: int
    kind: Kind


class Hit(NamedTuple):
    """A fault that was injected."""

    fault: Fault
    direction: Direction
    message: bytes

    @property
    def wording(self) -> str:
        """The fault, in the words of the proofs."""
        if self.fault.kind == "before":
            return "request lost" if self.direction == ">" else "reply lost"
        if self.fault.kind == "after":
            return "reply lost" if self.direction == ">" else "connection lost"
        return self.fault.kind


class Rule(NamedTuple):
    """A fault for the next message of a direction that a test describes."""

    kind: Kind
    direction: Direction
    matches: Callable[[bytes], bool]


class Proxy:
    """A port that leads to a server."""

    def __init__(self, upstream: tuple[str, int], framing: Callable[[], Framing]) -> None:
        self.upstream = upstream
        self.framing = framing
        self.passed: list[tuple[Direction, bytes]] = []
        """Every message on established connections that was forwarded, or was to be."""
        self.hits: list[Hit] = []
        """The faults that were injected since the last arming."""
        self.count = 0
        """The number of messages that were counted since the last arming."""
        self.holding = threading.Event()
        """Set while a delayed message is held."""
        self._faults: dict[int, Kind] = {}
        self._rule: Rule | None = None
        self._greetings = False
        self._links: set[_Link] = set()
        self._silent = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._server = self._wait(
            self._loop.create_server(lambda: _Side(_Link(self), ">"), sock=self._listener)  # type: ignore[arg-type]
        )

    # ------------------------------------------------------------ what a test says

    def arm(self, *faults: Fault, greetings: bool = False) -> None:
        """Inject these faults from now on; with ``greetings``, messages that establish connections count too."""

        def arm() -> None:
            self._faults = {fault.at: fault.kind for fault in faults}
            self._greetings, self._rule, self.count = greetings, None, 0
            self.hits = []
            self.holding.clear()

        self._do(arm)

    def arm_on(self, kind: Kind, direction: Direction, matches: Callable[[bytes], bool]) -> None:
        """Inject a fault at the next message of that direction which ``matches``."""
        self.arm()
        self._do(lambda: setattr(self, "_rule", Rule(kind, direction, matches)))

    def disarm(self) -> None:
        """Inject nothing more."""

        def disarm() -> None:
            self._faults, self._rule = {}, None

        self._do(disarm)

    def go(self) -> None:
        """Let go of what is held."""

        def go() -> None:
            self.holding.clear()
            for link in list(self._links):
                link.go()

        self._do(go)

    def drop(self) -> None:
        """Cut every connection that is open; a client may have new ones by the time the last of them is gone."""

        async def drop() -> None:
            links = list(self._links)
            for link in links:
                link.end()
            for link in links:
                await link.gone.wait()

        self._wait(drop())

    def stall(self) -> None:
        """Swallow everything on every connection, also on those to come."""
        self._do(lambda: setattr(self, "_silent", True))

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return self._do(lambda: len(self._links))

    @property
    def half_open(self) -> int:
        """The number of open connections on which everything is swallowed."""
        return self._do(lambda: sum(link.swallowing for link in self._links))

    def close(self) -> None:
        """Cut everything, and stop."""

        async def close() -> None:
            self._server.close()
            while self._links:  # also those that were accepted before
                link = next(iter(self._links))
                link.end()
                await link.gone.wait()

        self._wait(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    # ------------------------------------------------------------ on the loop

    def rewritten(self, direction: Direction, message: bytes) -> bytes:
        """Return the forwarded part of a message."""
        return message

    def fate(self, direction: Direction, message: bytes, establishing: bool) -> Kind | None:
        """Count a message, and find out what befalls it."""
        if not establishing:
            self.passed.append((direction, message))
        if establishing and not self._greetings:
            return None
        self.count += 1
        kind = self._faults.pop(self.count, None)
        rule = self._rule
        if rule is not None and rule.direction == direction and rule.matches(message):
            self._rule, kind = None, rule.kind
        if kind == "duplicate" and direction == "<":
            kind = None  # nobody may answer twice
        if kind is not None:
            self.hits.append(Hit(Fault(self.count, kind), direction, message))
        return kind

    def _with(self, link: _Link) -> None:
        self._links.add(link)

    def _without(self, link: _Link) -> None:
        self._links.discard(link)
        link.gone.set()

    def _do(self, action: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return action()

        return self._wait(on_the_loop())

    def _wait(self, work: Any) -> Any:
        done: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(60)


class _Side(asyncio.Protocol):
    """One of a link's two connections."""

    def __init__(self, link: _Link, direction: Direction) -> None:
        self._link = link
        self._direction: Direction = direction

    def connection_made(self, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.made(self._direction, transport)

    def data_received(self, data: bytes) -> None:
        self._link.received(self._direction, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self._direction)


class _Link:
    """A client's connection with the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._messages = Messages(proxy.framing())
        self._from: dict[Direction, Any] = {}
        """The connection from which messages of a direction come."""
        self._held: dict[Direction, deque[tuple[bytes, bool]]] = {}
        self._aside: list[tuple[Direction, bytes]] = []
        self._dropping = 0
        self._ending = False
        self.swallowing = False
        self.gone = asyncio.Event()

    def made(self, direction: Direction, transport: Any) -> None:
        self._from[direction] = transport
        if direction == ">":
            self._proxy._with(self)
            transport.pause_reading()
            self._connecting = asyncio.get_running_loop().create_task(self._connect(transport))

    async def _connect(self, client: Any) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Side(self, "<"), *self._proxy.upstream)
        except OSError:
            client.abort()
            return
        if client.is_closing():
            self.lost(">")
        else:
            client.resume_reading()

    def received(self, direction: Direction, data: bytes) -> None:
        for message, establishing in self._messages.feed(direction, data):
            self._pass(direction, message, establishing)

    def _pass(self, direction: Direction, message: bytes, establishing: bool) -> None:
        if self._ending or self.swallowing or self._proxy._silent:
            return
        if direction in self._held:
            self._held[direction].append((message, establishing))
            return
        if direction == "<" and self._dropping:
            self._dropping -= 1
            return
        kind = self._proxy.fate(direction, message, establishing)
        if kind == "half-open":
            self.swallowing = True
        elif kind == "delayed":
            self._held[direction] = deque([(message, establishing)])
            self._proxy.holding.set()
        elif kind == "set aside":
            self._aside.append((direction, message))
            self._proxy.holding.set()
        elif kind != "before":
            self._forward(direction, message[: (len(message) + 1) // 2] if kind == "mid-message" else message)
        if kind == "duplicate":
            self._forward(direction, message)
            self._dropping += 1
        if kind in ("before", "after"):
            self.end()
        elif kind == "mid-message":
            self.end(reset=True)

    def _forward(self, direction: Direction, message: bytes) -> None:
        target = self._from.get(_OPPOSITE[direction])
        if target is not None and not target.is_closing():
            target.write(self._proxy.rewritten(direction, message))

    def go(self) -> None:
        """Forward what was held; what was held first has met its fault already."""
        while self._aside:
            self._forward(*self._aside.pop(0))
        for direction in list(self._held):
            held = self._held.pop(direction)
            self._forward(direction, held.popleft()[0])
            for message, establishing in held:
                self._pass(direction, message, establishing)
        if len(self._from) < 2:
            self._close()

    def end(self, *, reset: bool = False) -> None:
        """Close both connections, after what was written to them; nothing more passes."""
        self._ending = True
        self._held.clear()
        for transport in self._from.values():
            if reset:
                linger = struct.pack("ii", 1, 0)
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._close()

    def lost(self, direction: Direction) -> None:
        """One side is gone: so is the other, when it has got what was on its way, and what is held."""
        rest = self._messages.rest(direction)
        if rest:
            self._pass(direction, rest, False)
        self._from.pop(direction, None)
        if direction not in self._held:
            self._close()
        if not self._from:
            self._proxy._without(self)

    def _close(self) -> None:
        for transport in self._from.values():
            transport.close()
