"""Sends messages as Standard Webhooks: signed, one id over all attempts, again until an endpoint takes them.

Signatures, back-off and outcomes are decided in `retrysafe.webhooks.delivering`. Nothing is written down here: for
deliveries that survive this process, call `Sender.send` with ``attempts=1`` from what keeps messages, once per attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypedDict, Unpack

import httpx

from retrysafe.core import durations
from retrysafe.core.backoff import Backoff
from retrysafe.errors import ConfigurationError
from retrysafe.observers import LoggingObserver, Observers
from retrysafe.ports import Observer
from retrysafe.types import Duration
from retrysafe.webhooks.delivering import BACKOFF, Delivery, Endpoint, Message, Tried, is_over, judge, retry_after

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
"""What httpx raises before the first byte of a request has left."""
_FAILURES = (httpx.TransportError, httpx.InvalidURL)


class SenderOptions(TypedDict, total=False):
    """The choices of a sender, as keyword arguments.

    Attributes:
        attempts: how often one call of ``send`` tries at most; by default 5.
        backoff: the bounds of the pauses: each is random below a bound that doubles (full jitter), from 1 s to 60 s.
        deadline: no pause is begun that would end later than this after the call began; by default "5m".
        timeout: how long an endpoint may keep an attempt waiting for the next byte; by default "15s".
        observers: told of every attempt that is not the last, and of every outcome; by default a `LoggingObserver`.
        clock: what tells the time that is signed, in seconds since the Unix epoch.
        monotonic: what measures the deadline, in seconds.
        chance: what gives a random number in [0, 1).
    """

    attempts: int
    backoff: Backoff
    deadline: Duration
    timeout: Duration
    observers: Iterable[Observer]
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    chance: Callable[[], float]


class _Sending:
    """What senders of both colours have in common."""

    def __init__(self, options: SenderOptions) -> None:
        self._attempts = options.get("attempts", 5)
        if self._attempts < 1:
            raise ConfigurationError(f"attempts={self._attempts!r} must be at least 1.")
        self._backoff = options.get("backoff", BACKOFF)
        self._deadline = durations.seconds(options.get("deadline", "5m"), "deadline")
        self._timeout = durations.seconds(options.get("timeout", "15s"), "timeout")
        self._observers = Observers(options.get("observers", (LoggingObserver(),)))
        self._clock = options.get("clock", time.time)
        self._monotonic = options.get("monotonic", time.monotonic)
        self._chance = options.get("chance", random.random)

    def _request(self, message: Message, endpoint: Endpoint) -> dict[str, Any]:
        """One attempt, signed now, as the client's arguments."""
        return {
            "method": "POST",
            "url": endpoint.url,
            "content": message.body,
            "headers": endpoint.signed(message, self._clock()),
            "timeout": self._timeout,
            "follow_redirects": False,
        }

    def _answered(self, response: httpx.Response) -> Tried:
        """How an attempt went that was answered; the body is nothing to us, however long it is."""
        fields = response.headers
        wait = retry_after(fields.get("retry-after"), fields.get("date"), self._clock())
        return Tried(response.status_code, wait)

    def _judge(self, tried: Tried, message: Message, earlier: Delivery | None) -> Delivery:
        return judge(tried, message, earlier, self._backoff, self._chance())

    def _is_over(self, delivery: Delivery, made: int, began: float, endpoint: Endpoint) -> bool:
        """Whether this was the last attempt of the call; the observers are told."""
        over = is_over(delivery, made, self._attempts, began + self._deadline - self._monotonic())
        status = delivery.status or delivery.reason
        fields = {"destination": endpoint.destination, "attempts": delivery.attempts, "status": status}
        if over:
            self._tell("delivery_ended", delivery, outcome=delivery.outcome, **fields)
        else:
            self._tell("delivery_retried", delivery, pause=delivery.retry_after, **fields)
        return over

    def _tell(self, name: str, delivery: Delivery, **fields: Any) -> None:
        self._observers.tell(name, "", "webhook", hashlib.sha256(delivery.id.encode()).digest(), "", fields)


class Sender(_Sending):
    """Sends messages to endpoints, with retries.

    Arguments:
        client: the httpx client to send with; its TLS settings, proxies and limits hold. Redirects are not followed.
        sleep: what pauses, for tests.
        options: see `SenderOptions`.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(
        self,
        client: httpx.Client,
        *,
        sleep: Callable[[float], object] = time.sleep,
        **options: Unpack[SenderOptions],
    ) -> None:
        super().__init__(options)
        self._client = client
        self._sleep = sleep

    def send(self, message: Message, endpoint: Endpoint, *, earlier: Delivery | None = None) -> Delivery:
        """Send a message until it is delivered, unwanted, or out of attempts; returns what became of it.

        ``earlier`` is what an earlier call for the same message and endpoint returned, with which back-off and
        doubt go on. Never raises for what an endpoint does.
        """
        began, made = self._monotonic(), 0
        while True:
            earlier = self._judge(self._try(message, endpoint), message, earlier)
            made += 1
            if self._is_over(earlier, made, began, endpoint):
                return earlier
            self._sleep(earlier.retry_after or 0.0)

    def _try(self, message: Message, endpoint: Endpoint) -> Tried:
        tried: Tried | None = None
        try:
            with self._client.stream(**self._request(message, endpoint)) as response:
                tried = self._answered(response)
        except _FAILURES as error:
            return tried or _unanswered(error)
        return tried


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
        self._client = client
        self._sleep = sleep

    async def send(self, message: Message, endpoint: Endpoint, *, earlier: Delivery | None = None) -> Delivery:
        """As `Sender.send`."""
        began, made = self._monotonic(), 0
        while True:
            earlier = self._judge(await self._try(message, endpoint), message, earlier)
            made += 1
            if self._is_over(earlier, made, began, endpoint):
                return earlier
            await self._sleep(earlier.retry_after or 0.0)

    async def _try(self, message: Message, endpoint: Endpoint) -> Tried:
        tried: Tried | None = None
        try:
            async with self._client.stream(**self._request(message, endpoint)) as response:
                tried = self._answered(response)
        except _FAILURES as error:
            return tried or _unanswered(error)
        return tried


def _unanswered(error: Exception) -> Tried:
    return Tried(None, sent=not isinstance(error, _UNSENT), reason=type(error).__name__)
