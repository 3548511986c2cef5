"""Azure Service Bus: messages are sent in batches, which the service takes or refuses as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.publisher import ACKED, BrokerPublisher, PublishEntry, PublisherSession
from retrysafe.messaging.brokers.servicebus.client import (
    FAILURES,
    LISTENS,
    Namespace,
    NamespaceClient,
    amend,
    end_reason_of,
    hang_up,
    namespace_of,
)
from retrysafe.messaging.brokers.servicebus.messages import message_of, name_of, session_of
from retrysafe.messaging.brokers.servicebus.results import alone, blames_one, is_silence, result_of
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration

_IDLE = 60.0
"""Seconds after which a connection without a message is made anew: nothing keeps it, and the service ends it later."""
_MARGIN = 1.0
"""Seconds more than the library may take, which does not hear of every refusal."""


class _Destination:
    """A queue or topic: its sender, which does one thing at a time."""

    def __init__(self, client: ServiceBusClient, name: str, timeout: float) -> None:
        self._client, self._name, self._timeout = client, name, timeout
        self._sender: ServiceBusSender | None = None
        self._used = 0.0
        self.turn = asyncio.Lock()

    async def open(self) -> ServiceBusSender:
        """A sender whose link is there."""
        now = asyncio.get_running_loop().time()
        if self._sender is not None and now - self._used > _IDLE:
            await self.close()
        if self._sender is None:
            sender = self._client.get_topic_sender(self._name, socket_timeout=LISTENS)  # or queue, as it may be
            sender = amend(sender)
            try:
                async with asyncio.timeout(self._timeout + _MARGIN):
                    await sender.__aenter__()
            except BaseException:
                await hang_up(sender, self._timeout)
                raise
            self._sender = sender
        self._used = now
        return self._sender

    async def send(self, content: Any) -> None:
        """Send a message or a batch, and wait for the answer. After a failure the next call connects again."""
        sender = await self.open()
        why = end_reason_of(sender)
        try:
            async with asyncio.timeout(self._timeout + _MARGIN):
                await sender.send_messages(content, timeout=self._timeout)
        except Exception as error:
            ended = why()
            if ended is not None or not blames_one(error):
                await self.close()  # or what comes next would be told the same
            if ended is not None:
                raise ended from error
            raise
        except BaseException:
            await self.close()
            raise

    async def why(self, error: Exception) -> Exception:
        """Return the error for a new link if the library has lost the reason why the last one was ended."""
        if is_silence(error) or result_of(error).status is not PublishStatus.UNKNOWN:
            return error
        try:
            await self.open()
        except FAILURES as refused:
            return refused if result_of(refused, sent=False).status is PublishStatus.STALLED else error
        return error

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await hang_up(sender, self._timeout)


class ServiceBusPublisher(BrokerPublisher["_ServiceBusPublishing"]):
    """Sends each message to the queue or topic of Service Bus named like its own, and waits for the service's answer.

    An answer means that the service has stored the message, for every subscription that there is. Make the queue or
    topic before, with `retrysafe.messaging.brokers.servicebus.declare`. One that is missing, disabled or full, or that
    we may not use, keeps its own messages waiting, which spend no attempt. A message that is larger than it takes is
    given up. With duplicate detection, as `declare` makes it, one that comes again is taken without a word.

    Arguments:
        url: of the namespace, such as "servicebus://NAME.servicebus.windows.net", with "POLICY:KEY@" before the name
            for a shared access policy. Else AZURE_SERVICEBUS_CONNECTION_STRING is used, or the credentials of the
            environment for Microsoft Entra, which need azure-identity. "?emulator=true" for a server without TLS.
        prefix: of the names of queues and topics.
        ordered: whether a message has a session, in which it keeps its order.
        partitions: over how many sessions the keys of each topic are spread; by default each key is one.
        mode: where the attributes of a CloudEvent are: "binary", in application properties, or "structured", in the
            body.
        timeout: how long the service may take; a message without an answer is sent again, under the same id.
    """

    by_topic = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        ordered: bool = True,
        partitions: int | None = None,
        mode: Mode = "binary",
        timeout: Duration = "10s",
    ) -> None:
        require_mode(mode)
        if partitions is not None and partitions < 1:
            raise ConfigurationError("partitions= is a number from 1.")
        self._prefix, namespace, within = prefix, namespace_of(url), seconds_of(timeout, "timeout")
        self.broker_address = broker_address_of(url, prefix)
        super().__init__(lambda: _ServiceBusPublishing(namespace, prefix, ordered, partitions, mode, within))

    def destination(self, envelope: Envelope, /) -> str:
        """The queue or topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"


class _ServiceBusPublishing(PublisherSession):
    def __init__(
        self, namespace: Namespace, prefix: str, ordered: bool, partitions: int | None, mode: Mode, timeout: float
    ) -> None:
        self._namespace, self._prefix, self._timeout = namespace, prefix, timeout
        self._ordered, self._partitions = ordered, partitions
        self._mode: Mode = mode
        self._client: NamespaceClient | None = None
        self._destinations: dict[str, _Destination] = {}

    def _encode(self, place: int, envelope: Envelope) -> tuple[str, PublishEntry]:
        session = session_of(envelope, self._partitions) if self._ordered else None
        return name_of(self._prefix, envelope.topic), PublishEntry(place, message_of(envelope, self._mode, session))

    async def close(self) -> None:
        destinations, self._destinations = self._destinations, {}
        client, self._client = self._client, None
        await asyncio.gather(*(one.close() for one in destinations.values()))
        if client is not None:
            await client.aclose()

    async def _publish_to(self, destination: str, entries: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        """Publish the entries, and return each result; after an unanswered batch the rest is not sent."""
        said: dict[int, PublishResult] = {}
        try:
            to = self._destination(destination)
            async with to.turn:
                await self._send_all(to, entries, said)
        except FAILURES as error:
            return said | {one.place: result_of(error, sent=False) for one in entries if one.place not in said}
        waits = PublishResult(PublishStatus.POSTPONED, "a batch before it was not answered")
        return {one.place: said.get(one.place, waits) for one in entries}

    async def _send_all(
        self, to: _Destination, entries: Sequence[PublishEntry], said: dict[int, PublishResult]
    ) -> bool:
        """Add what became of each; whether all were answered."""
        for some, content in await _batches(await to.open(), entries):
            if not await self._send_some(to, some, content, said):
                return False
        return True

    async def _send_some(
        self, to: _Destination, entries: Sequence[PublishEntry], content: Any, said: dict[int, PublishResult]
    ) -> bool:
        try:
            await to.send(content)
        except FAILURES as error:
            if len(entries) > 1 and blames_one(error):
                for part in _parts(entries):
                    if not await self._send_all(to, part, said):
                        return False
                return True
            why = alone(await to.why(error), entries[0].content.session_id)
            said.update((entry.place, why) for entry in entries)
            return why.status in _GOES_ON
        said.update((entry.place, ACKED) for entry in entries)
        return True

    def _destination(self, name: str) -> _Destination:
        if self._client is None:
            self._client = self._namespace.client(self._timeout)
        if name not in self._destinations:
            self._destinations[name] = _Destination(self._client.messages, name, self._timeout)
        return self._destinations[name]


_GOES_ON = (PublishStatus.ACKED, PublishStatus.RETRYABLE, PublishStatus.REJECTED)
"""Statuses of single messages, which say nothing of their destination."""


def _parts(entries: Sequence[PublishEntry]) -> Iterator[list[PublishEntry]]:
    """By sessions, as entities with partitions want it, or one by one."""
    parts: dict[object, list[PublishEntry]] = {}
    several = len({entry.content.session_id for entry in entries}) > 1
    for entry in entries:
        parts.setdefault(entry.content.session_id if several else entry.place, []).append(entry)
    yield from parts.values()


async def _batches(
    sender: ServiceBusSender, entries: Sequence[PublishEntry]
) -> Iterator[tuple[list[PublishEntry], Any]]:
    """As few as the size allows that the service has told; a message that fits into none goes alone."""
    found: list[tuple[list[PublishEntry], Any]] = []
    batch, some = await sender.create_message_batch(), list[PublishEntry]()
    for entry in entries:
        try:
            batch.add_message(entry.content)
        except MessageSizeExceededError:
            if some:
                found.append((some, batch))
                batch, some = await sender.create_message_batch(), []
            try:
                batch.add_message(entry.content)
            except MessageSizeExceededError:
                found.append(([entry], entry.content))
                continue
        some.append(entry)
    if some:
        found.append((some, batch))
    return iter(found)
