"""The gateway as an ASGI application: which policy a request has, the guard around the upstream, and who answers."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import partial
from typing import Any

import aiohttp

from retrysafe.claims.observers import logger
from retrysafe.gateway.admin import Admin
from retrysafe.gateway.failures import GATEWAY_STOPPED, NOT_BEGUN, FailureKind, UpstreamFailed, answer, becomes_of_key
from retrysafe.gateway.fields import (
    Hop,
    key_field,
    proxy_status,
    refuse_unclear,
    text_of,
    to_client,
    to_upstream,
    via,
)
from retrysafe.gateway.guards import GuardedRoute, Guards
from retrysafe.gateway.metrics import Metrics
from retrysafe.gateway.principals import finder_of
from retrysafe.gateway.settings import Settings, TrustedHeader
from retrysafe.gateway.upstream import ClientGone, Upstream, UpstreamExchange
from retrysafe.http import asgi
from retrysafe.http.asgi import Message, Receive, Scope, Send, request_of, send_response, serve_guarded
from retrysafe.http.key_header import HEADER
from retrysafe.http.messages import MARKER, Request
from retrysafe.http.nested import EXCHANGE
from retrysafe.http.principals import afind
from retrysafe.http.problems import Refusal, render

_SECONDS_TO_MARK = 10.0
"""Seconds for which requests that were cut off may mark that in the store."""


class Gateway:
    """The gateway that ``settings`` describe, for any ASGI server; see `retrysafe.gateway.serving` for ours.

    Arguments:
        settings: what it does.
        admin_port: the port on which health and metrics are served alone; without it they are under a prefix.

    Raises `ConfigurationError` for what cannot be kept. No connection is opened before the first request.
    """

    def __init__(self, settings: Settings, *, admin_port: int | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.guards = Guards(settings, [self.metrics])
        self._admin = Admin(self.guards, self.metrics)
        self._admin_port = admin_port
        self._upstream: Upstream | None = None
        self._issuer: aiohttp.ClientSession | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        elif (path := self._admin_path(scope)) is not None:
            await self._admin(path, send)
        else:
            await self._serve_counted(scope, receive, send)

    def _admin_path(self, scope: Scope) -> str | None:
        """Return the path of a request to the admin's endpoints; None for the upstream's."""
        prefix, path = self.settings.admin_prefix, str(scope["path"])
        asked = path.removeprefix(prefix) if path.startswith(prefix + "/") else None
        if self._admin_port is None:
            return asked
        server = scope.get("server")
        on_admin = server is not None and server[1] == self._admin_port
        return (path if asked is None else asked) if on_admin else None

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Wait until every request that the server has cut is recorded as such, and close all connections."""
        if self._running:
            await asyncio.wait(self._running, timeout=_SECONDS_TO_MARK)
        if self._upstream is not None:
            await self._upstream.close()
        if self._issuer is not None:
            await self._issuer.close()
        await self.guards.aclose()

    def _open_upstream(self) -> Upstream:
        """The upstream; made on the loop that serves."""
        if self._upstream is None:
            self._upstream = Upstream(self.settings)
            self._issuer = aiohttp.ClientSession()
            self.guards.open(finder_of(self.settings.principal, self._issuer))
        return self._upstream

    async def _serve_counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await ProxiedRequest(self, self._open_upstream(), scope).serve(receive, send)
        finally:
            self._running.discard(task)


class ProxiedRequest:
    """One request on its way through."""

    def __init__(self, gateway: Gateway, upstream: Upstream, scope: Scope) -> None:
        self._settings = gateway.settings
        self._metrics = gateway.metrics
        self._upstream = upstream
        self._scope = scope
        self._request = request_of(scope)
        self._place: GuardedRoute = gateway.guards.of(self._request)
        self._status = 0
        self._by = "gateway"
        self._forwarded = False
        self._begun_upstream = False
        self._guarded = False

    async def serve(self, receive: Receive, send: Send) -> None:
        base = self._place.guard.policy.problem_base

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = self._begin_response(message)
            await send(message)

        try:
            refuse_unclear(self._request, self._scope["method"], self._scope.get("http_version"))
            guard = self._place.guard
            await serve_guarded(guard, self._forward, self._scope, receive, answering, partial(afind, guard.principal))
        except UpstreamFailed as failure:
            if self._status:
                raise
            await send_response(answering, answer(failure, self._settings.name, base))
        except Refusal as refusal:
            if self._status:
                raise
            response = render(refusal, base=base)
            if refusal.code == "upgrade-unsupported":
                response = response._replace(headers=(*response.headers, (b"connection", b"close")))
            await send_response(answering, response)
        except ClientGone:
            return
        except asyncio.CancelledError:  # the server has stopped waiting for this request; the guard has recorded it
            if not self._status:
                failed = GATEWAY_STOPPED if self._begun_upstream else NOT_BEGUN
                cut = UpstreamFailed(failed, self._becomes(failed))
                await send_response(answering, answer(cut, self._settings.name, base))
            raise

    def _begin_response(self, message: Message) -> Message:
        """The start of whatever response it is: with a date, and an error of ours signed as such."""
        self._status = status = message["status"]
        headers = list(message["headers"])
        if via(self._settings.name) in headers:
            self._by = "upstream" if self._forwarded else "record"
        elif not self._forwarded and any(name == MARKER for name, _ in headers):  # settled to it by a person
            self._by = "record"
        if not any(name == b"date" for name, _ in headers):
            headers.append((b"date", formatdate(usegmt=True).encode()))
        if self._by == "gateway" and not any(name == b"proxy-status" for name, _ in headers):
            error = "proxy_internal_error" if status >= 500 else "http_request_denied"
            headers.append(proxy_status(self._settings.name, f"error={error}"))
        self._metrics.requests.labels(self._place.route.match, str(status), self._by).inc()
        return {**message, "headers": headers}

    # ------------------------------------------------------------ the application inside the guard

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: asgi.AsgiExchange | None = scope.get(EXCHANGE)
        route = self._place.route
        key, header = None, HEADER
        if exchange is not None and exchange.tried is not None:
            header = exchange.guard.policy.header
            key = key_field(exchange.tried.key_for("upstream"), route.forward_key)
        length = None if exchange is None else exchange.body_length
        request, settings = self._request, self._settings
        try:
            url = self._upstream.url(request.path, request.query)
            host = None if settings.host == "keep" else self._upstream.host
            lines = to_upstream(request, self._hop(), host=host, key=key, length=length, header=header)
        except Refusal:
            self._not_sent(exchange)
            raise

        async def head(status: int, headers: list[tuple[bytes, bytes]]) -> None:
            self._forwarded = True
            if status in route.unexecuted:
                self._not_sent(exchange)
            out = to_client(headers, status, settings.name)
            await send({"type": "http.response.start", "status": status, "headers": out})

        began = time.perf_counter()
        working = UpstreamExchange(self._upstream, route.timeouts, receive, send)
        self._guarded = exchange is not None and exchange.claim is not None
        self._begun_upstream = True
        try:
            body = length > 0 if length is not None else _has_body(request)
            await working.run(request.method, url, lines, head, body=body, abandons=not self._guarded)
        except UpstreamFailed as failure:
            self._record_failure(failure, exchange)
            raise
        finally:
            self._metrics.duration.labels(route.match).observe(time.perf_counter() - began)

    def _record_failure(self, failure: UpstreamFailed, exchange: asgi.AsgiExchange | None) -> None:
        """Say what it means for the key; then the error takes its course through the guard."""
        error, sent = failure.failed.error, failure.failed.sent
        self._metrics.failures.labels(self._place.route.match, error).inc()
        if exchange is None or exchange.claim is None:
            logger().warning("The upstream did not answer: %s (%s)", error, "it may have begun" if sent else "not sent")
            return
        failure.guarded = self._becomes(failure.failed)
        exchange.claim._emit("upstream_failed", error=error, sent=sent)
        if not sent:
            exchange.claim.not_executed()

    def _becomes(self, failed: FailureKind) -> str:
        return becomes_of_key(failed, self._place.route.effects) if self._guarded else ""

    def _not_sent(self, exchange: asgi.AsgiExchange | None) -> None:
        if exchange is not None and exchange.claim is not None:
            exchange.claim.not_executed()

    def _hop(self) -> Hop:
        scope, settings = self._scope, self._settings
        found = scope.get("client")
        client = found[0] if found else None
        believed = frozenset(map(_field, settings.trust_headers))
        header = settings.principal if isinstance(settings.principal, TrustedHeader) else None
        if header is not None and client is not None and header.trusts(client):
            believed |= {_field(header.header)}
        return Hop(
            name=settings.name,
            version=scope.get("http_version", "1.1"),
            scheme=scope.get("scheme", "http"),
            client=client,
            trusted=settings.trust_forwarded,
            believed=believed,
            principal=b"" if header is None else _field(header.header),
        )


def _field(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _has_body(request: Request) -> bool:
    lengths = request.lines(b"content-length")
    return bool(request.lines(b"transfer-encoding")) or any(
        text_of(value).strip() not in ("", "0") for value in lengths
    )
