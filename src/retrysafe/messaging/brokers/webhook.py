"""Webhooks: each message is an HTTP request to the endpoint of its topic, signed, as a CloudEvent in binary mode.

CloudEvents HTTP binding 1.0.2, section 3.1 (attributes are fields named ``ce-…``), over Standard Webhooks.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.publisher import BrokerPublisher
from retrysafe.messaging.cloudevents import attributes, header_value
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration
from retrysafe.runtime import PerProcess
from retrysafe.webhooks.delivering import Delivery, Endpoint, Message
from retrysafe.webhooks.sender import AsyncSender, Sender

Endpoints = Mapping[str, Endpoint] | Callable[[Envelope], Endpoint | None]
"""The endpoint of each topic, or a function that returns the endpoint of a message."""
_TRACE = ("traceparent", "tracestate")
_KEPT = 10_000
_UNDER_WAY = "the endpoint has not answered yet"
_ENDPOINT_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 408, 421, 423, 424, 425, 426, 429})
"""Statuses 4xx that concern the endpoint, its address or its load, not the message."""


A = TypeVar("A", "asyncio.Task[Delivery]", "Future[Delivery]")


class _DeliveryPool(Generic[A]):
    """Tracks the attempts in progress, and turns their outcomes into results. No I/O."""

    def __init__(self, endpoints: Endpoints, patience: Duration, concurrency: int) -> None:
        if concurrency < 1:
            raise ConfigurationError("concurrency= is a number from 1.")
        self._endpoints = endpoints
        self.by_topic = isinstance(endpoints, Mapping)
        self.patience = seconds_of(patience, "patience")
        self._most = concurrency
        self.under_way: dict[tuple[str, str], A] = {}
        self._busy: Counter[str] = Counter()
        self._hanging: set[str] = set()
        """Endpoints that did not answer in time, and of which no attempt has ended since."""
        self._counting = threading.Lock()

    def destination(self, envelope: Envelope) -> str:
        """The endpoint of a message: its host, and a digest of the rest of its URL, which may be secret."""
        endpoint = self._endpoint_of(envelope)
        return envelope.topic if endpoint is None else _place(endpoint)

    def begin(self, envelopes: Sequence[Envelope], start: Callable[[Message, Endpoint], A]) -> _Begun[A]:
        """Start attempts where allowed; return the results that are known at once, and the attempts to wait for."""
        begun: _Begun[A] = _Begun([], {})
        for envelope in envelopes:
            begun.known.append(self._begin(envelope, start, begun))
        return begun

    def _begin(
        self, envelope: Envelope, start: Callable[[Message, Endpoint], A], begun: _Begun[A]
    ) -> PublishResult | None:
        name = (envelope.source, envelope.id)
        if name in self.under_way:
            return None
        try:
            endpoint = self._endpoint_of(envelope)
            if endpoint is None:
                status = PublishStatus.STALLED if self.by_topic else PublishStatus.REJECTED
                return PublishResult(status, f"no endpoint takes {envelope.topic!r}")
            message = Message(envelope.id, envelope.payload)
            addressed = replace(endpoint, headers={**endpoint.headers, **_fields(envelope)})
        except ConfigurationError as error:
            return PublishResult(PublishStatus.REJECTED, error.detail or str(error))
        where = _place(endpoint)
        if self._busy[where] >= self._most:
            return self._postpone(where)
        if len(self.under_way) >= _KEPT:  # answers that were never asked for: other relays published the messages
            self.under_way = {key: one for key, one in self.under_way.items() if not one.done()}
        with self._counting:
            self._busy[where] += 1
        attempt = self.under_way[name] = start(message, addressed)
        if where not in self._hanging:
            begun.waited.setdefault(where, []).append(attempt)
        attempt.add_done_callback(lambda _: self._on_end(where))
        return None

    def _on_end(self, where: str) -> None:
        with self._counting:
            self._hanging.discard(where)
            self._busy[where] -= 1
            if not self._busy[where]:
                del self._busy[where]

    def results(self, envelopes: Sequence[Envelope], begun: _Begun[A]) -> list[PublishResult]:
        """The results of messages, as far as they are known, after the wait for their attempts."""
        for where, attempts in begun.waited.items():
            if not any(attempt.done() for attempt in attempts):
                with self._counting:
                    self._hanging.add(where)
        return [known or self._status_of(one) for one, known in zip(envelopes, begun.known, strict=True)]

    def _status_of(self, envelope: Envelope) -> PublishResult:
        name = (envelope.source, envelope.id)
        if not self.under_way[name].done():
            return self._postpone(self.destination(envelope))
        try:
            return _result_of(self.under_way.pop(name).result())
        except Exception as error:  # noqa: BLE001 - such as of the user's client: it concerns this message only
            return PublishResult(PublishStatus.UNKNOWN, f"{type(error).__name__}: {error}")

    def _postpone(self, where: str) -> PublishResult:
        """The result of a message whose endpoint is busy, or does not answer at all."""
        status = PublishStatus.STALLED if where in self._hanging else PublishStatus.POSTPONED
        return PublishResult(status, _UNDER_WAY, self.patience)

    def _endpoint_of(self, envelope: Envelope) -> Endpoint | None:
        if isinstance(self._endpoints, Mapping):
            return self._endpoints.get(envelope.topic)
        return self._endpoints(envelope)


class _Begun(NamedTuple, Generic[A]):
    """The results of a call that are known before the wait, and the attempts at each endpoint."""

    known: list[PublishResult | None]
    waited: dict[str, list[A]]

    @property
    def attempts(self) -> list[A]:
        return [attempt for attempts in self.waited.values() for attempt in attempts]


class _Attempts(NamedTuple):
    desk: _DeliveryPool[Future[Delivery]]
    threads: ThreadPoolExecutor


def _place(endpoint: Endpoint) -> str:
    return f"{endpoint.destination} ({hashlib.sha256(endpoint.url.encode()).hexdigest()[:8]})"


def _fields(envelope: Envelope) -> dict[str, str]:
    """The header fields of a CloudEvent; characters outside ASCII are percent-encoded (section 3.1.3.2)."""
    told = attributes(envelope)
    fields = {f"ce-{name}": header_value(value) for name, value in told.items() if name != "datacontenttype"}
    fields["content-type"] = envelope.media_type
    return fields | {name: told[name] for name in _TRACE if name in told}


def _result_of(delivery: Delivery) -> PublishResult:
    said = delivery.reason or f"status {delivery.status}"
    pause = delivery.retry_after or 0.0
    match delivery.outcome:
        case "delivered":
            return PublishResult(PublishStatus.ACKED)
        case "gone":
            return PublishResult(PublishStatus.REJECTED, "status 410: the endpoint wants no more")
        case "unknown":
            return PublishResult(PublishStatus.UNKNOWN, said, pause)
        case _:
            return PublishResult(_cause_of(delivery), said, pause)


def _cause_of(delivery: Delivery) -> PublishStatus:
    status = delivery.status
    if status is None:
        if delivery.reason == "PoolTimeout":  # of our client: other endpoints use its connections
            return PublishStatus.POSTPONED
        return PublishStatus.RETRYABLE if delivery.reason == "LocalProtocolError" else PublishStatus.STALLED
    if status == 500:
        return PublishStatus.UNKNOWN
    return (
        PublishStatus.RETRYABLE if 400 <= status < 500 and status not in _ENDPOINT_STATUSES else PublishStatus.STALLED
    )


class WebhookPublisher:
    """Delivers each message to the endpoint of its topic, one attempt at a time; the answer decides the result.

    2xx: the endpoint has the message. 410: it will never accept the message. 400, 413, 422 and other refusals of the
    message (4xx) spend an attempt. A failure of the endpoint spends none: it cannot be reached, or answers 3xx, 401,
    403, 404, 408, 429, 502, 503 or 504. The publisher then sends it nothing for a while, at least for its Retry-After,
    and then one message as a probe. Without an answer, and after 500, the cause is unknown: an attempt is spent if the
    endpoint accepts other messages. The endpoint recognises the message by its ``webhook-id``, which is the same on
    every attempt.

    An endpoint that is slow or hangs delays its own messages only: after ``patience`` the publisher continues
    without the answer, and finds it at the next call for this message. Two URLs are two endpoints, on one host too.

    Arguments:
        sender: the sender that signs and sends; its ``attempts`` must be 1, since the relay tries again.
        endpoints: the `Endpoint` of each topic, or a function that takes an envelope and returns an endpoint or None.
            The messages of a topic without an endpoint wait for one; a message for which the function returns None
            becomes a dead letter.
        patience: how long the publisher waits for an answer before it continues with other messages.
        concurrency: how many requests one endpoint receives at the same time, at most.
    """

    def __init__(
        self, sender: Sender, endpoints: Endpoints, *, patience: Duration = "1s", concurrency: int = 10
    ) -> None:
        _check(sender)
        self._sender = sender
        self._attempts = PerProcess(
            lambda: _Attempts(
                _DeliveryPool(endpoints, patience, concurrency), ThreadPoolExecutor(200, "retrysafe-webhooks")
            )
        )
        self.by_topic = self._attempts().desk.by_topic

    def destination(self, envelope: Envelope, /) -> str:
        """The endpoint of a message, without the secret parts of its URL."""
        return self._attempts().desk.destination(envelope)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Send the messages concurrently."""
        desk, threads = self._attempts()
        begun = desk.begin(envelopes, lambda message, endpoint: threads.submit(self._sender.send, message, endpoint))
        wait(begun.attempts, desk.patience)
        return desk.results(envelopes, begun)

    def close(self) -> None:
        """Wait for the attempts in progress. The client stays open: close it yourself."""
        self._attempts().threads.shutdown()


class AsyncWebhookPublisher(BrokerPublisher["_WebhookPublishing"]):
    """`WebhookPublisher` for async code, on an `AsyncSender`.

    ``aclose`` waits for the attempts in progress. The client stays open: close it yourself.
    """

    def __init__(
        self, sender: AsyncSender, endpoints: Endpoints, *, patience: Duration = "1s", concurrency: int = 10
    ) -> None:
        _check(sender)
        self._desk: _DeliveryPool[asyncio.Task[Delivery]] = _DeliveryPool(endpoints, patience, concurrency)
        self.by_topic = self._desk.by_topic
        super().__init__(lambda: _WebhookPublishing(sender, _DeliveryPool(endpoints, patience, concurrency)))

    def destination(self, envelope: Envelope, /) -> str:
        """The endpoint of a message, without the secret parts of its URL."""
        return self._desk.destination(envelope)


class _WebhookPublishing:
    def __init__(self, sender: AsyncSender, desk: _DeliveryPool[asyncio.Task[Delivery]]) -> None:
        self._sender, self._desk = sender, desk

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        begun = self._desk.begin(envelopes, self._start)
        if begun.attempts:
            await asyncio.wait(begun.attempts, timeout=self._desk.patience)
        return self._desk.results(envelopes, begun)

    def _start(self, message: Message, endpoint: Endpoint) -> asyncio.Task[Delivery]:
        sending: Coroutine[Any, Any, Delivery] = self._sender.send(message, endpoint)
        return asyncio.create_task(sending, name=f"webhook {message.id}")

    async def close(self) -> None:
        """Wait for the attempts in progress. The client stays open: close it yourself."""
        tasks = [task for task in self._desk.under_way.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks)


def _check(sender: Sender | AsyncSender) -> None:
    if sender.attempts != 1:
        raise ConfigurationError("sender=: the relay tries again, so give its sender max_attempts=1.")
