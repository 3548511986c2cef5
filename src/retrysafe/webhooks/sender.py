"""Sends messages as Standard Webhooks: signed, with one id for all attempts, and retried until an endpoint accepts
them.

`retrysafe.webhooks.delivering` decides signatures, back-off and outcomes. Nothing is stored here: for deliveries that
survive this process, store the messages elsewhere, and call `Sender.send` with ``max_attempts=1`` for each attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypedDict, Unpack

from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.protocol import durations
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.events import Observer
from retrysafe.protocol.options import refuse_unknown
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.delivering import (
    BACKOFF,
    Delivery,
    Endpoint,
    Message,
    Tried,
    is_final,
    is_over,
    judge,
    retry_after,
)

with NeedsExtra("webhooks", "httpx"):
    import httpx

__all__ = ["AsyncSender", "Delivery", "Endpoint", "Message", "Sender", "SenderOptions"]

_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.LocalProtocolError,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
"""Errors that httpx raises before the first byte of a request is sent."""
_FAILURES = (httpx.TransportError, httpx.InvalidURL, TimeoutError)
_ATTEMPT = "retrysafe.attempt"


class _Attempt:
    """One attempt, whose answer is read by a hook of the client.

    The caller may not see the answer itself: the client can raise an error for it, such as for an invalid redirect, and
    so can other hooks, such as `httpx.HTTPStatusError`.
    """

    def __init__(self, client: httpx.Client | httpx.AsyncClient, clock: Callable[[], float]) -> None:
        self._cookies, self._clock = client.cookies.jar, clock
        self._tried: Tried | None = None

    def asks(self) -> None:
        """Note that a request is sent: the answer to an earlier one, such as for authentication, does not count."""
        self._tried = None

    def note_answer(self, response: httpx.Response) -> None:
        """Note an answer; its body is not read, and its cookies are not kept."""
        fields = response.headers
        wait = retry_after(fields.get("retry-after"), fields.get("date"), self._clock())
        self._tried = Tried(response.status_code, wait)
        for cookie in response.cookies.jar:
            with suppress(KeyError):
                self._cookies.clear(cookie.domain, cookie.path, cookie.name)

    def result(self, error: Exception | None = None) -> Tried:
        """The result of the attempt. Raises ``error`` when the endpoint did not cause it."""
        if self._tried is not None:
            return self._tried
        if isinstance(error, _FAILURES):
            return Tried(None, sent=not isinstance(error, _UNSENT), reason=type(error).__name__)
        raise error or AssertionError("the client has neither returned nor raised")


def _asks(request: httpx.Request) -> None:
    attempt = request.extensions.get(_ATTEMPT)
    if attempt is not None:
        attempt.asks()


def _is_answered(response: httpx.Response) -> None:
    attempt = response.request.extensions.get(_ATTEMPT)
    if attempt is not None:
        attempt.note_answer(response)


async def _aasks(request: httpx.Request) -> None:
    _asks(request)


async def _ais_answered(response: httpx.Response) -> None:
    _is_answered(response)


def _hook(client: httpx.Client | httpx.AsyncClient, asks: Any, answered: Any) -> None:
    """Add hooks to a client, before its other hooks, that pass answers to attempts; other requests are ignored."""
    for name, ours in (("request", asks), ("response", answered)):
        hooks = client.event_hooks[name]
        if ours not in hooks:
            hooks.insert(0, ours)


class SenderOptions(TypedDict, total=False):
    """The options of a sender, as keyword arguments.

    Attributes:
        max_attempts: how many attempts one call of ``send`` makes at most; by default 5.
        backoff: the bounds of the pauses: each is random below a bound that doubles (full jitter), by default from 1 s
            to 60 s.
        deadline: time limit of a call: a pause that would end later is not begun; by default "5m". An attempt of an
            `AsyncSender` ends at the deadline too, or after ``timeout`` if that is later.
        timeout: how long an attempt waits for the next byte of the endpoint; by default "15s".
        observers: receive an event for every attempt but the last, and every outcome; by default a `LoggingObserver`.
        clock: returns the time that is signed, in seconds since the Unix epoch.
        monotonic: returns the monotonic time that measures the deadline, in seconds.
        chance: returns a random number in [0, 1).
    """

    max_attempts: int
    backoff: Backoff
    deadline: Duration
    timeout: Duration
    observers: Iterable[Observer]
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    chance: Callable[[], float]


class _Sending:
    """The common base of sync and async senders."""

    def __init__(self, options: SenderOptions) -> None:
        refuse_unknown(options, SenderOptions.__annotations__)
        self._attempts = options.get("max_attempts", 5)
        if self._attempts < 1:
            raise ConfigurationError(f"max_attempts={self._attempts!r} must be at least 1.")
        self._backoff = options.get("backoff", BACKOFF)
        self._deadline = durations.seconds(options.get("deadline", "5m"), "deadline")
        self._timeout = durations.seconds(options.get("timeout", "15s"), "timeout")
        self._observers = Observers(options.get("observers", (LoggingObserver(),)))
        self._clock = options.get("clock", time.time)
        self._monotonic = options.get("monotonic", time.monotonic)
        self._chance = options.get("chance", random.random)

    @property
    def attempts(self) -> int:
        return self._attempts

    def _request(self, message: Message, endpoint: Endpoint, attempt: _Attempt) -> dict[str, Any]:
        if not isinstance(endpoint, Endpoint):
            raise ConfigurationError(
                f"endpoint= is a {type(endpoint).__qualname__}; expected Endpoint(url, secret), with the secret by "
                "which the receiver verifies the signature."
            )
        return {
            "method": "POST",
            "url": endpoint.url,
            "content": message.body,
            "headers": endpoint.signed(message, self._clock()),
            "timeout": self._timeout,
            "follow_redirects": False,
            "extensions": {_ATTEMPT: attempt},
        }

    def _time_left(self, began: float) -> float:
        return began + self._deadline - self._monotonic()

    def _judge(self, tried: Tried, message: Message, earlier: Delivery | None) -> Delivery:
        return judge(tried, message, earlier, self._backoff, self._chance())

    def _is_over(self, delivery: Delivery, made: int, began: float, endpoint: Endpoint) -> bool:
        """Tell whether this was the last attempt of the call; emits an event."""
        over = is_over(delivery, made, self._attempts, self._time_left(began))
        status = delivery.status or delivery.reason
        fields = {"destination": endpoint.destination, "attempts": delivery.attempts, "status": status}
        if over:
            self._emit("delivery_ended", delivery, outcome=delivery.outcome, **fields)
        else:
            self._emit("delivery_retried", delivery, pause=delivery.retry_after, **fields)
        return over

    def _emit(self, name: str, delivery: Delivery, **fields: Any) -> None:
        self._observers.emit(name, "", "webhook", hashlib.sha256(delivery.id.encode()).digest(), "", fields)


class Sender(_Sending):
    """Sends messages to endpoints, with retries.

    Arguments:
        client: the httpx client that sends, with its TLS settings, proxies and limits. Redirects are not followed, and
            cookies of endpoints are not kept. The sender adds event hooks for its own requests to the client.
        sleep: the function that waits between attempts; tests replace it.
        options: see `SenderOptions`.

    Raises `ConfigurationError` for invalid arguments.
    """

    def __init__(
        self,
        client: httpx.Client,
        *,
        sleep: Callable[[float], object] = time.sleep,
        **options: Unpack[SenderOptions],
    ) -> None:
        super().__init__(options)
        given: object = client
        if isinstance(given, httpx.AsyncClient):
            raise ConfigurationError("client= is an httpx.AsyncClient: use AsyncSender and await it, or httpx.Client.")
        self._client = client
        self._sleep = sleep

    def send(self, message: Message, endpoint: Endpoint, *, earlier: Delivery | None = None) -> Delivery:
        """Send a message until it is delivered, refused for good, or out of attempts; return the outcome.

        ``earlier`` is the result of an earlier call for the same message and endpoint: this call continues its back-off
        and its doubt about the outcome. If it is "delivered" or "gone", it is returned unchanged. Answers and failures
        of an endpoint never raise. Raises `ConfigurationError` when ``earlier`` is the result of another message.

        Sync code cannot be interrupted: an endpoint that sends its answer byte by byte can prolong this call without
        limit. Only the wait for the next byte is limited, by ``timeout``.
        """
        if earlier is not None and is_final(earlier, message):
            return earlier
        began, made = self._monotonic(), 0
        while True:
            earlier = self._judge(self._try(message, endpoint), message, earlier)
            made += 1
            if self._is_over(earlier, made, began, endpoint):
                return earlier
            self._sleep(earlier.retry_after or 0.0)

    def _try(self, message: Message, endpoint: Endpoint) -> Tried:
        _hook(self._client, _asks, _is_answered)
        attempt = _Attempt(self._client, self._clock)
        try:
            with self._client.stream(**self._request(message, endpoint, attempt)):
                return attempt.result()
        except Exception as error:  # noqa: BLE001 - an error after an answer does not replace the answer
            return attempt.result(error)


class AsyncSender(_Sending):
    """`Sender` for async code, on an `httpx.AsyncClient`."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **options: Unpack[SenderOptions],
    ) -> None:
        super().__init__(options)
        given: object = client
        if isinstance(given, httpx.Client):
            raise ConfigurationError("client= is an httpx.Client: use Sender, or give an httpx.AsyncClient.")
        self._client = client
        self._sleep = sleep

    async def send(self, message: Message, endpoint: Endpoint, *, earlier: Delivery | None = None) -> Delivery:
        """`Sender.send` for async code; an attempt that exceeds deadline and ``timeout`` has an unknown outcome."""
        if earlier is not None and is_final(earlier, message):
            return earlier
        began, made = self._monotonic(), 0
        while True:
            earlier = self._judge(await self._try(message, endpoint, self._time_left(began)), message, earlier)
            made += 1
            if self._is_over(earlier, made, began, endpoint):
                return earlier
            await self._sleep(earlier.retry_after or 0.0)

    async def _try(self, message: Message, endpoint: Endpoint, left: float) -> Tried:
        _hook(self._client, _aasks, _ais_answered)
        attempt = _Attempt(self._client, self._clock)
        request = self._request(message, endpoint, attempt)
        try:
            async with asyncio.timeout(max(left, self._timeout)), self._client.stream(**request):
                return attempt.result()
        except Exception as error:  # noqa: BLE001 - an error after an answer does not replace the answer
            return attempt.result(error)
