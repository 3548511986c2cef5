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
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.cloudevents import attributes, header_value
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration
from retrysafe.webhooks.delivering import Delivery, Endpoint, Message
from retrysafe.webhooks.sender import AsyncSender, Sender

Endpoints = Mapping[str, Endpoint] | Callable[[Envelope], Endpoint | None]
"""The endpoint of each topic, or a function that finds that of a message."""
_TRACE = ("traceparent", "tracestate")
_KEPT = 10_000
_UNDER_WAY = "the endpoint has not answered yet"
_ENDPOINT_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 408, 421, 423, 424, 425, 426, 429})
"""Those of 4xx that say something about the endpoint, its address or its load, not about the message."""


class _Attempt(Protocol):
    """An attempt that may be under way: a task or a future."""

    def done(self) -> bool: ...

    def result(self) -> Delivery: ...

    def add_done_callback(self, told: Callable[[Any], object], /) -> object: ...


A = TypeVar("A", bound=_Attempt)


class _Desk(Generic[A]):
    """Which attempts are under way, and what is said of messages. No I/O."""

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
        """Endpoints of which no attempt has ended since they were waited for in vain."""
        self._counting = threading.Lock()

    def destination(self, envelope: Envelope) -> str:
        """The endpoint of a message: its host, and a digest of the rest of its URL, which may be secret."""
        endpoint = self._endpoint_of(envelope)
        return envelope.topic if endpoint is None else _place(endpoint)

    def begin(self, envelopes: Sequence[Envelope], start: Callable[[Message, Endpoint], A]) -> _Begun[A]:
        """Start the attempts that may be; what is known of the others at once, and what is to be waited for."""
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
            return self._postponed(where)
        if len(self.under_way) >= _KEPT:  # what was answered, and never asked for again: others have relayed it
            self.under_way = {key: one for key, one in self.under_way.items() if not one.done()}
        with self._counting:
            self._busy[where] += 1
        attempt = self.under_way[name] = start(message, addressed)
        if where not in self._hanging:
            begun.waited.setdefault(where, []).append(attempt)
        attempt.add_done_callback(lambda _: self._ended(where))
        return None

    def _ended(self, where: str) -> None:
        with self._counting:
            self._hanging.discard(where)
            self._busy[where] -= 1
            if not self._busy[where]:
                del self._busy[where]

    def said(self, envelopes: Sequence[Envelope], begun: _Begun[A]) -> list[PublishResult]:
        """What became of messages, as far as it is known, after their attempts have been waited for."""
        for where, attempts in begun.waited.items():
            if not any(attempt.done() for attempt in attempts):
                with self._counting:
                    self._hanging.add(where)
        return [known or self._status_of(one) for one, known in zip(envelopes, begun.known, strict=True)]

    def _status_of(self, envelope: Envelope) -> PublishResult:
        name = (envelope.source, envelope.id)
        if not self.under_way[name].done():
            return self._postponed(self.destination(envelope))
        try:
            return _received(self.under_way.pop(name).result())
        except Exception as error:  # noqa: BLE001 - of the user's client, say: it is this message's alone
            return PublishResult(PublishStatus.UNKNOWN, f"{type(error).__name__}: {error}")

    def _postponed(self, where: str) -> PublishResult:
        """A message that waits for an endpoint: one that is busy, or one that does not answer at all."""
        status = PublishStatus.STALLED if where in self._hanging else PublishStatus.POSTPONED
        return PublishResult(status, _UNDER_WAY, self.patience)

    def _endpoint_of(self, envelope: Envelope) -> Endpoint | None:
        if isinstance(self._endpoints, Mapping):
            return self._endpoints.get(envelope.topic)
        return self._endpoints(envelope)


class _Begun(NamedTuple, Generic[A]):
    """What is known of the messages of a call before anything is waited for, and the attempts at each endpoint."""

    known: list[PublishResult | None]
    waited: dict[str, list[A]]

    @property
    def attempts(self) -> list[A]:
        """What is to be waited for."""
        return [attempt for attempts in self.waited.values() for attempt in attempts]


def _place(endpoint: Endpoint) -> str:
    return f"{endpoint.destination} ({hashlib.sha256(endpoint.url.encode()).hexdigest()[:8]})"


def _fields(envelope: Envelope) -> dict[str, str]:
    """The header fields of a CloudEvent; what ASCII cannot say is percent-encoded (section 3.1.3.2)."""
    told = attributes(envelope)
    fields = {f"ce-{name}": header_value(value) for name, value in told.items() if name != "datacontenttype"}
    fields["content-type"] = envelope.media_type
    return fields | {name: told[name] for name in _TRACE if name in told}


def _received(delivery: Delivery) -> PublishResult:
    """How an endpoint took a message, by its answer."""
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
            return PublishResult(_refused(delivery), said, pause)


def _refused(delivery: Delivery) -> PublishStatus:
    """The cause of a failure: the message, the endpoint, or unknown."""
    status = delivery.status
    if status is None:
        if delivery.reason == "PoolTimeout":  # of our client: other endpoints have its connections
            return PublishStatus.POSTPONED
        return PublishStatus.RETRYABLE if delivery.reason == "LocalProtocolError" else PublishStatus.STALLED
    if status == 500:
        return PublishStatus.UNKNOWN
    return (
        PublishStatus.RETRYABLE if 400 <= status < 500 and status not in _ENDPOINT_STATUSES else PublishStatus.STALLED
    )


class WebhookPublisher:
    """Delivers each message to the endpoint of its topic, one attempt at a time, and judges by the answer.

    2xx: it has it. 410: it will never take it. 400, 413, 422 and other refusals of the message (4xx) spend an attempt.
    A failure of the endpoint spends none: it cannot be reached, or answers 3xx, 401, 403, 404, 408, 429, 502, 503 or
    504. The publisher sends it nothing for a while, at least for its Retry-After, and then one message as a probe.
    Without an answer, and after 500, the cause is not known: an attempt is spent if the endpoint accepts other
    messages. The endpoint recognises the message by its ``webhook-id``, the same on every attempt.

    An endpoint that is slow or hangs delays its own messages only: after ``patience`` the publisher continues
    without the answer, and finds it at the next call for this message. Two URLs are two endpoints, on one host too.

    Arguments:
        sender: signs and sends; its ``attempts`` must be 1, since the relay tries again.
        endpoints: the `Endpoint` of each topic, or a function that is given an envelope and returns one, or None. A
            topic without an endpoint waits for one; a message for which the function returns None is given up.
        patience: how long an answer is waited for before other messages go on.
        concurrency: how many requests one endpoint gets at the same time, at most.
    """

    def __init__(
        self, sender: Sender, endpoints: Endpoints, *, patience: Duration = "1s", concurrency: int = 10
    ) -> None:
        _check(sender)
        self._sender = sender
        self._desk: _Desk[Future[Delivery]] = _Desk(endpoints, patience, concurrency)
        self._threads = ThreadPoolExecutor(200, "retrysafe-webhooks")
        self.by_topic = self._desk.by_topic

    def destination(self, envelope: Envelope, /) -> str:
        """The endpoint of a message, without what of its URL may be secret."""
        return self._desk.destination(envelope)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Send them at the same time."""
        begun = self._desk.begin(envelopes, self._start)
        wait(begun.attempts, self._desk.patience)
        return self._desk.said(envelopes, begun)

    def _start(self, message: Message, endpoint: Endpoint) -> Future[Delivery]:
        return self._threads.submit(self._sender.send, message, endpoint)

    def close(self) -> None:
        """Wait for the attempts that are under way; the client is yours to close."""
        self._threads.shutdown()


class AsyncWebhookPublisher:
    """`WebhookPublisher` for async code, on an `AsyncSender`."""

    def __init__(
        self, sender: AsyncSender, endpoints: Endpoints, *, patience: Duration = "1s", concurrency: int = 10
    ) -> None:
        _check(sender)
        self._sender = sender
        self._desk: _Desk[asyncio.Task[Delivery]] = _Desk(endpoints, patience, concurrency)
        self.by_topic = self._desk.by_topic

    def destination(self, envelope: Envelope, /) -> str:
        """The endpoint of a message, without what of its URL may be secret."""
        return self._desk.destination(envelope)

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Send them at the same time."""
        begun = self._desk.begin(envelopes, self._start)
        if begun.attempts:
            await asyncio.wait(begun.attempts, timeout=self._desk.patience)
        return self._desk.said(envelopes, begun)

    def _start(self, message: Message, endpoint: Endpoint) -> asyncio.Task[Delivery]:
        sending: Coroutine[Any, Any, Delivery] = self._sender.send(message, endpoint)
        return asyncio.create_task(sending, name=f"webhook {message.id}")

    async def aclose(self) -> None:
        """Wait for the attempts that are under way; the client is yours to close."""
        tasks = [task for task in self._desk.under_way.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks)


def _check(sender: Sender | AsyncSender) -> None:
    if sender.attempts != 1:
        raise ConfigurationError("sender=: the relay tries again, so give its sender max_attempts=1.")
