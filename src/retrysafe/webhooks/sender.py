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
from typing import Any, Generic, TypeVar

import httpx

from retrysafe.core import durations
from retrysafe.core.backoff import Backoff
from retrysafe.errors import ConfigurationError
from retrysafe.observers import LoggingObserver, Observers
from retrysafe.ports import Observer
from retrysafe.types import Duration
from retrysafe.webhooks.delivering import BACKOFF, Delivery, Endpoint, Message, Tried, is_over, judge, retry_after

__all__ = ["AsyncSender", "Delivery", "Endpoint", "Message", "Sender"]

_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""What httpx raises before the first byte of a request has left."""
TIMEOUT = 15.0
"""Seconds that an endpoint may take; the specification recommends 15 to 30."""

C = TypeVar("C", httpx.Client, httpx.AsyncClient)
S = TypeVar("S")


class _Sending(Generic[C, S]):
    """What senders of both colours have in common."""

    def __init__(
        self,
        client: C,
        *,
        attempts: int = 5,
        backoff: Backoff = BACKOFF,
        deadline: Duration = "5m",
        timeout: Duration = TIMEOUT,
        observers: Iterable[Observer] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], S],
        chance: Callable[[], float] = random.random,
    ) -> None:
        if attempts < 1:
            raise ConfigurationError(f"attempts={attempts!r} must be at least 1.")
        self._client = client
        self._attempts = attempts
        self._backoff = backoff
        self._deadline = durations.seconds(deadline, "deadline")
        self._timeout = durations.seconds(timeout, "timeout")
        self._observers = Observers((LoggingObserver(),) if observers is None else observers)
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._chance = chance

    def _request(self, message: Message, endpoint: Endpoint) -> dict[str, Any]:
        """One attempt, signed now, as the client's arguments."""
        headers = endpoint.signed(message, self._clock())
        return {
            "method": "POST",
            "url": endpoint.url,
            "content": message.body,
            "headers": headers,
            "timeout": self._timeout,
            "follow_redirects": False,
        }

    def _answered(self, response: httpx.Response) -> Tried:
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


class Sender(_Sending[httpx.Client, None]):
    """Sends messages to endpoints, with retries.

    Arguments:
        client: the httpx client to send with; its TLS settings, proxies and limits hold. Redirects are not followed.
        attempts: how often one call of `send` tries at most.
        backoff: the bounds of the pauses between: each is random below a bound that doubles (full jitter).
        deadline: after how long one call of `send` begins no more pauses.
        timeout: how long an endpoint may keep an attempt waiting for the next byte.
        observers: told of every attempt that is not the last, and of every outcome; by default a `LoggingObserver`.
        clock, monotonic, sleep, chance: time and chance, for tests.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(self, client: httpx.Client, *, sleep: Callable[[float], None] = time.sleep, **options: Any) -> None:
        super().__init__(client, sleep=sleep, **options)

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
        try:
            with self._client.stream(**self._request(message, endpoint)) as response:
                return self._answered(response)
        except httpx.TransportError as error:
            return _unanswered(error)


class AsyncSender(_Sending[httpx.AsyncClient, Awaitable[None]]):
    """`Sender` for async code, on an `httpx.AsyncClient`."""

    def __init__(
        self, client: httpx.AsyncClient, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, **options: Any
    ) -> None:
        super().__init__(client, sleep=sleep, **options)

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
        try:
            async with self._client.stream(**self._request(message, endpoint)) as response:
                return self._answered(response)
        except httpx.TransportError as error:
            return _unanswered(error)


def _unanswered(error: httpx.TransportError) -> Tried:
    return Tried(None, sent=not isinstance(error, _UNSENT), reason=type(error).__name__)
