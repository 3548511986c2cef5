"""The service behind the gateway: one request sent on, streaming both ways, and never a second time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from yarl import URL

from retrysafe.gateway.failures import (
    CONNECT_TIMEOUT,
    NO_HTTP,
    UNASKED_UPGRADE,
    SilenceDeadline,
    Unasked,
    UpstreamFailed,
    failure_of,
)
from retrysafe.gateway.fields import Lines, has_controls
from retrysafe.gateway.settings import Settings, Timeouts
from retrysafe.http.asgi import Receive, Send
from retrysafe.http.messages import is_endless, lower
from retrysafe.http.problems import Refusal

if TYPE_CHECKING:
    from aiohttp.connector import Connection

Head = Callable[[int, list[tuple[bytes, bytes]]], Awaitable[None]]
_OF_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_LONGEST_FIELD = 1 << 16
_SWITCHING = 101


_sending: ContextVar[UpstreamExchange] = ContextVar("retrysafe_gateway_sending")


class _Request(aiohttp.ClientRequest):
    """Tells the exchange which connection it was given, so that it can be cut; takes none on which something waits."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        exchange = _sending.get()
        await asyncio.sleep(0)  # arrived bytes are read
        assert conn.protocol is not None
        if conn.protocol.should_close:
            raise Unasked(kept=conn.protocol in exchange.used)
        exchange.used.add(conn.protocol)
        exchange.transport, exchange.sent = conn.transport, True
        return await super().send(conn)


class ClientGone(Exception):
    """The client has left, and what it asked for is not to be recorded."""


class Upstream:
    """Connections to the service, kept and used again; for one event loop."""

    def __init__(self, settings: Settings) -> None:
        parts = urlsplit(settings.upstream)
        self._base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.host = parts.netloc
        context: ssl.SSLContext | bool = True
        if settings.ca_file is not None:
            context = ssl.create_default_context(cafile=settings.ca_file)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.connections, keepalive_timeout=settings.idle, ssl=context, ttl_dns_cache=10
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            auto_decompress=False,
            skip_auto_headers=_OF_OURS,
            max_line_size=_LONGEST_FIELD,
            max_field_size=_LONGEST_FIELD,
        )
        self.used: WeakSet[object] = WeakSet()
        """Connections that have had a request."""
        # aiohttp repeats idempotent methods when a kept connection breaks; whether that is right is not ours to say.
        self.session._retry_connection = False

    async def close(self) -> None:
        await self.session.close()

    def url(self, path: bytes, query: bytes) -> URL:
        """Build a request's URL from the bytes of path and query. Raises `Refusal` for what is no path."""
        try:
            target = (path + b"?" + query if query else path).decode("ascii")
            if not target.startswith("/") or "#" in target:
                raise ValueError(target)
            return URL(self._base + target, encoded=True)
        except ValueError:
            raise Refusal("request-invalid", "Nothing was done. The path is invalid.") from None


class UpstreamExchange:
    """One request to the upstream, and its response."""

    def __init__(self, upstream: Upstream, timeouts: Timeouts, receive: Receive, send: Send) -> None:
        self._upstream = upstream
        self._timeouts = timeouts
        self._receive = receive
        self._send = send
        self._uploaded = asyncio.Event()
        self._gone = False
        self._patience: SilenceDeadline | None = None
        self.used = upstream.used
        self.sent = False
        self.transport: asyncio.Transport | None = None

    async def run(self, method: str, url: URL, lines: Lines, head: Head, *, body: bool, abandons: bool) -> None:
        """Send the request, and its response to the client by ``head`` and the ASGI server.

        With ``abandons`` it is broken off when the client leaves. Raises `UpstreamFailed`, and `ClientGone`.
        """
        _sending.set(self)
        patience = self._patience = SilenceDeadline(self._timeouts)
        if not body:
            self._uploaded.set()
        watching = asyncio.create_task(self._watch(asyncio.current_task())) if abandons else None
        try:
            async with patience, await self._response(method, url, lines, body=body) as response:
                _refuse_unwritable(response)
                if watching is None and is_endless(lower(response.raw_headers)):
                    watching = asyncio.create_task(self._watch(asyncio.current_task()))
                try:
                    await self._answer(response, head, patience)
                finally:
                    if response.connection is None:  # it was read to its end, and may serve another request by now
                        self.transport = None
        except asyncio.CancelledError:
            if not self._gone or _is_cancelled_by_others():
                raise
            raise ClientGone from None
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if self._gone:
                raise ClientGone from None
            ended = patience.ended if self.sent else patience.ended and CONNECT_TIMEOUT
            failed = ended or failure_of(error)
            assert failed is not None
            raise UpstreamFailed(failed) from error
        finally:
            if watching is not None:
                watching.cancel()
            if self.transport is not None:  # waiting bytes must not follow when we have given up
                self.transport.abort()

    async def _response(self, method: str, url: URL, lines: Lines, *, body: bool) -> aiohttp.ClientResponse:
        """The head of the response. A kept connection on which something came unasked is left for another one."""
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect)
        while True:
            data = self._body() if body else None
            try:
                return await self._upstream.session.request(
                    method, url, headers=lines, data=data, allow_redirects=False, timeout=timeout
                )
            except Unasked as unasked:
                if not unasked.kept:
                    raise

    async def _answer(self, response: aiohttp.ClientResponse, head: Head, patience: SilenceDeadline) -> None:
        patience.rest()
        await head(response.status, list(response.raw_headers))
        more = True
        while more:
            patience.begin()
            chunk = await response.content.readany()
            patience.rest()
            more = not response.content.at_eof()
            await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def _body(self) -> AsyncIterator[bytes]:
        """The body, as fast as the upstream takes it and the client gives it."""
        patience = self._patience
        assert patience is not None
        more = True
        while more:
            patience.rest()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                raise ConnectionResetError("The client left before the end of its request.")
            patience.begin()
            more = message.get("more_body", False)
            yield message.get("body", b"")
        self._uploaded.set()

    async def _watch(self, working: asyncio.Task[Any] | None) -> None:
        """Break the exchange off when the client leaves."""
        await self._uploaded.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if working is not None:
            working.cancel()


def _refuse_unwritable(response: aiohttp.ClientResponse) -> None:
    """Refuse a response that cannot be passed on, so that it is not recorded as an answer."""
    if response.status == _SWITCHING:
        raise UpstreamFailed(UNASKED_UPGRADE)
    fields = b"".join(part for line in response.raw_headers for part in line)
    if not 200 <= response.status <= 599 or has_controls(fields):
        raise UpstreamFailed(NO_HTTP)


def _is_cancelled_by_others() -> bool:
    """Take a cancellation of our own back; whether there is one more."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() > 0
