"""Webhooks: each message is an HTTP request to the endpoint of its topic, signed, as a CloudEvent in binary mode.

CloudEvents HTTP binding 1.0.2, section 3.1 (attributes are fields named ``ce-…``), over Standard Webhooks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from retrysafe.core.durations import seconds as seconds_of
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.cloudevents import attributes
from retrysafe.types import Duration, Envelope, Published, Reception
from retrysafe.webhooks.delivering import Delivery, Endpoint, Message
from retrysafe.webhooks.sender import AsyncSender, Sender

Endpoints = Mapping[str, Endpoint] | Callable[[Envelope], Endpoint | None]
"""The endpoint of each topic, or a function that finds that of a message."""
_PRINTABLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_TRACE = ("traceparent", "tracestate")
_KEPT = 10_000
_UNDER_WAY = "the endpoint has not answered yet"


class _Attempt(Protocol):
    """An attempt that may be under way: a task or a future."""

    def done(self) -> bool: ...

    def result(self) -> Delivery: ...

    def add_done_callback(self, told: Callable[[Any], object], /) -> object: ...


A = TypeVar("A", bound=_Attempt)


class _Desk(Generic[A]):
    """Which attempts are under way, and what is said of messages. No I/O."""

    def __init__(self, endpoints: Endpoints, patience: Duration, at_once: int) -> None:
        if at_once < 1:
            raise ConfigurationError("at_once= is a number from 1.")
        self._endpoints = endpoints
        self.patience = seconds_of(patience, "patience")
        self._most = at_once
        self.under_way: dict[tuple[str, str], A] = {}
        self._busy: Counter[str] = Counter()
        self._counting = threading.Lock()

    def begin(self, envelope: Envelope, start: Callable[[Message, Endpoint], A]) -> Published | None:
        """Start an attempt, unless one is under way; what is known of the message at once."""
        name = (envelope.source, envelope.id)
        if name in self.under_way:
            return None
        try:
            endpoint = self._endpoint_of(envelope)
            message = Message(envelope.id, envelope.payload)
        except ConfigurationError as error:
            return Published(Reception.FATAL, error.detail or str(error))
        if endpoint is None:
            return Published(Reception.FATAL, f"no endpoint takes {envelope.topic!r}")
        where = endpoint.destination
        if self._busy[where] >= self._most:
            said = f"{where} keeps {self._busy[where]} messages waiting"
            return Published(Reception.POSTPONED, said, self.patience)
        if len(self.under_way) >= _KEPT:  # what was answered, and never asked for again: others have relayed it
            self.under_way = {key: one for key, one in self.under_way.items() if not one.done()}
        with self._counting:
            self._busy[where] += 1
        attempt = self.under_way[name] = start(message, endpoint)
        attempt.add_done_callback(lambda _: self._ended(where))
        return None

    def _ended(self, where: str) -> None:
        with self._counting:
            self._busy[where] -= 1
            if not self._busy[where]:
                del self._busy[where]

    def said(self, envelope: Envelope) -> Published:
        """What became of the attempt of a message, as far as it is known."""
        name = (envelope.source, envelope.id)
        if not self.under_way[name].done():
            return Published(Reception.POSTPONED, _UNDER_WAY, self.patience)
        try:
            return _received(self.under_way.pop(name).result())
        except Exception as error:  # noqa: BLE001 - of the user's client, say: it is this message's alone
            return Published(Reception.UNKNOWN, f"{type(error).__name__}: {error}")

    def _endpoint_of(self, envelope: Envelope) -> Endpoint | None:
        if isinstance(self._endpoints, Mapping):
            endpoint = self._endpoints.get(envelope.topic)
        else:
            endpoint = self._endpoints(envelope)
        if endpoint is None:
            return None
        return replace(endpoint, headers={**endpoint.headers, **_fields(envelope)})


def _fields(envelope: Envelope) -> dict[str, str]:
    """The header fields of a CloudEvent; what ASCII cannot say is percent-encoded (section 3.1.3.2)."""
    told = attributes(envelope)
    fields = {f"ce-{name}": quote(value, safe=_PRINTABLE) for name, value in told.items() if name != "datacontenttype"}
    fields["content-type"] = envelope.media_type
    return fields | {name: told[name] for name in _TRACE if name in told}


def _received(delivery: Delivery) -> Published:
    said = delivery.reason or f"status {delivery.status}"
    pause = delivery.retry_after or 0.0
    match delivery.outcome:
        case "delivered":
            return Published(Reception.ACKED)
        case "gone":
            return Published(Reception.FATAL, "status 410: the endpoint wants no more")
        case "unknown":
            return Published(Reception.UNKNOWN, said, pause)
        case _:
            return Published(Reception.RETRYABLE, said, pause)


class WebhookPublisher:
    """Delivers each message to the endpoint of its topic, one attempt at a time, and judges by the answer.

    2xx: it has it. 410: it will never take it. Anything else: tried again, not before its Retry-After. Without an
    answer nobody can tell; the endpoint recognises the message by its ``webhook-id``, the same on every attempt.

    An endpoint that is slow keeps its own messages waiting, no others: after ``patience`` the publisher goes on without
    its answer, which the next look at the message finds.

    Arguments:
        sender: signs and sends; its ``attempts`` must be 1, since the relay tries again.
        endpoints: the `Endpoint` of each topic, or a function that is given an envelope and returns one, or None. A
            message without an endpoint is given up.
        patience: how long an answer is waited for before other messages go on.
        at_once: how many requests one endpoint gets at the same time, at most.
    """

    def __init__(self, sender: Sender, endpoints: Endpoints, *, patience: Duration = "1s", at_once: int = 10) -> None:
        _check(sender)
        self._sender = sender
        self._desk: _Desk[Future[Delivery]] = _Desk(endpoints, patience, at_once)
        self._threads = ThreadPoolExecutor(200, "retrysafe-webhooks")

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Send them at the same time."""
        known = [self._desk.begin(envelope, self._start) for envelope in envelopes]
        waited = [
            self._desk.under_way[one.source, one.id] for one, said in zip(envelopes, known, strict=True) if said is None
        ]
        wait(waited, self._desk.patience)
        return [said or self._desk.said(one) for one, said in zip(envelopes, known, strict=True)]

    def _start(self, message: Message, endpoint: Endpoint) -> Future[Delivery]:
        return self._threads.submit(self._sender.send, message, endpoint)

    def close(self) -> None:
        """Wait for the attempts that are under way; the client is yours to close."""
        self._threads.shutdown()


class AsyncWebhookPublisher:
    """`WebhookPublisher` for async code, on an `AsyncSender`."""

    def __init__(
        self, sender: AsyncSender, endpoints: Endpoints, *, patience: Duration = "1s", at_once: int = 10
    ) -> None:
        _check(sender)
        self._sender = sender
        self._desk: _Desk[asyncio.Task[Delivery]] = _Desk(endpoints, patience, at_once)

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Send them at the same time."""
        known = [self._desk.begin(envelope, self._start) for envelope in envelopes]
        waited = [
            self._desk.under_way[one.source, one.id] for one, said in zip(envelopes, known, strict=True) if said is None
        ]
        if waited:
            await asyncio.wait(waited, timeout=self._desk.patience)
        return [said or self._desk.said(one) for one, said in zip(envelopes, known, strict=True)]

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
        raise ConfigurationError("sender=: the relay tries again, so give its sender attempts=1.")
