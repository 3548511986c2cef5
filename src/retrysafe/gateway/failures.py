"""The meaning of an upstream failure: whether the request was sent, the client's answer, and the time to wait.

The limit for silence rests while the client is the one that is waited for; there is a limit for the total too.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import NamedTuple

import aiohttp

from retrysafe.gateway.fields import proxy_status
from retrysafe.gateway.settings import Timeouts
from retrysafe.http.messages import Response
from retrysafe.http.problems import BASE, Refusal, render


class FailureKind(NamedTuple):
    """A way in which an upstream can fail.

    ``error`` is the name that RFC 9209 has for it; ``sent`` is whether the upstream may have begun with the request.
    """

    code: str
    error: str
    status: int
    sent: bool


CONNECT_TIMEOUT = FailureKind("upstream-unavailable", "connection_timeout", 504, sent=False)
UNKNOWN_HOST = FailureKind("upstream-unavailable", "dns_error", 502, sent=False)
CERTIFICATE = FailureKind("upstream-unavailable", "tls_certificate_error", 502, sent=False)
TLS = FailureKind("upstream-unavailable", "tls_protocol_error", 502, sent=False)
UNASKED = FailureKind("upstream-unavailable", "http_protocol_error", 502, sent=False)
REFUSED = FailureKind("upstream-unavailable", "connection_refused", 502, sent=False)
INCOMPLETE = FailureKind("upstream-lost", "http_response_incomplete", 502, sent=True)
NO_HTTP = FailureKind("upstream-lost", "http_protocol_error", 502, sent=True)
UNASKED_UPGRADE = FailureKind("upstream-lost", "http_upgrade_failed", 502, sent=True)
BROKEN = FailureKind("upstream-lost", "connection_terminated", 502, sent=True)
SILENT = FailureKind("upstream-timeout", "connection_read_timeout", 504, sent=True)
TOO_LONG = FailureKind("upstream-timeout", "http_response_timeout", 504, sent=True)
GATEWAY_STOPPED = FailureKind("upstream-lost", "proxy_internal_error", 503, sent=True)
NOT_BEGUN = FailureKind("upstream-unavailable", "proxy_internal_error", 503, sent=False)
"""The gateway itself is stopped, with a request that it has begun, and with one that it has not."""


class Unasked(aiohttp.ClientConnectionError):
    """Something came on a connection before a request was sent there; ``kept`` is whether it had one before."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__("A response that nobody had asked for came on the connection.")
        self.kept = kept


_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (Unasked, UNASKED),
    (aiohttp.ConnectionTimeoutError, CONNECT_TIMEOUT),
    (aiohttp.ClientConnectorDNSError, UNKNOWN_HOST),
    (aiohttp.ClientConnectorCertificateError, CERTIFICATE),
    (aiohttp.ClientConnectorSSLError, TLS),
    (aiohttp.ClientConnectorError, REFUSED),
    (aiohttp.ClientPayloadError, INCOMPLETE),
    (aiohttp.ClientResponseError, NO_HTTP),
    (aiohttp.ClientError, BROKEN),
    (OSError, BROKEN),
)
"""The errors of aiohttp. Only `Unasked`, and an error of its connector, are raised before a byte was sent."""


class UpstreamFailed(Exception):
    """The upstream did not answer: ends the guarded work, whose effects then decide what becomes of the key."""

    def __init__(self, failed: FailureKind, guarded: str = "") -> None:
        super().__init__(failed.error)
        self.failed = failed
        self.guarded = guarded
        """The fate of the key, for the client; empty if there is none."""


def failure_of(error: BaseException) -> FailureKind | None:
    """Find the upstream failure of an exception; None for an error of ours."""
    return next((failed for kind, failed in _KINDS if isinstance(error, kind)), None)


def becomes_of_key(failed: FailureKind, effects: str) -> str:
    """Tell a client how to go on with its key after this failure."""
    if not failed.sent:
        return ""
    if effects == "keyed":
        return " Send it again with the same key: the service behind recognises it."
    return " The key is kept as unknown, and nothing is sent again until somebody has settled it."


def answer(failure: UpstreamFailed, name: str, base: str = BASE) -> Response:
    """The gateway's own answer; ``Proxy-Status`` tells it from one that the upstream has sent."""
    failed = failure.failed
    refusal = Refusal(failed.code)
    refusal.detail += failure.guarded
    response = render(refusal, failed.status, base)
    return response._replace(headers=(*response.headers, proxy_status(name, f"error={failed.error}")))


class SilenceDeadline:
    """Ends the block with `TimeoutError` when the upstream is silent, or takes no bytes, for too long."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._read = timeouts.read
        self._loop = asyncio.get_running_loop()
        self._whole = asyncio.timeout(timeouts.total)
        self._silence = asyncio.timeout(timeouts.connect + timeouts.read)
        self._over = False

    async def __aenter__(self) -> SilenceDeadline:
        await self._whole.__aenter__()
        await self._silence.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        try:
            await self._silence.__aexit__(kind, error, trace)
        except TimeoutError as late:
            await self._whole.__aexit__(TimeoutError, late, trace)
            raise
        await self._whole.__aexit__(kind, error, trace)

    def rest(self) -> None:
        """Stop the clock while the other side is waited for."""
        self._reschedule(None)

    def begin(self) -> None:
        """The upstream is waited for, from now."""
        self._reschedule(self._loop.time() + self._read)

    def _reschedule(self, when: float | None) -> None:
        if not self._over and not self._silence.expired():
            self._silence.reschedule(when)

    @property
    def ended(self) -> FailureKind | None:
        """The limit that has ended the block, if one has."""
        if self._silence.expired():
            return SILENT
        return TOO_LONG if self._whole.expired() else None
