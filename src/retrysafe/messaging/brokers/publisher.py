"""The publisher of every broker but Kafka for event loops: an engine, for which a broker's folder writes a session.

`PublisherSession` publishes by destinations: to several at the same time, to each in order. `BatchSession` does so in
batches, for services that take or refuse a batch as a whole:

- A message that cannot be encoded (`ValueError`) is RETRYABLE, one that is too large is REJECTED; the others go on.
- A batch that is refused for what is wrong with one of its messages is sent again message by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from retrysafe.messaging.brokers.sessions import ClosableSession, SessionOwner
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

GRACE = 1.0
"""Seconds that a close waits for a publish in progress."""
ACKED = PublishResult(PublishStatus.ACKED)
_CUT_OFF = PublishResult(
    PublishStatus.UNKNOWN, "The publisher was closed while it published: the message may have been published."
)


class ClosablePublisher(ClosableSession, Protocol):
    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order."""
        ...


P = TypeVar("P", bound=ClosablePublisher)


class BrokerPublisher(SessionOwner[P], Generic[P]):
    """Implements `retrysafe.messaging.brokers.base.AsyncPublisher` by sessions; each broker adds arguments."""

    _ends_with_loop = True
    broker_address: str = ""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes, and wait for every answer; the results, in the same order."""
        session = await self._enter()
        return await self._until_closed(session.publish(envelopes), lambda: [_CUT_OFF] * len(envelopes), GRACE)


class PublishEntry(NamedTuple):
    """A message to send, and its place among the messages of one call."""

    place: int
    content: Any
    size: int = 0


class BatchLimits(NamedTuple):
    """The largest number of messages and of bytes in a batch, and the largest message in bytes."""

    messages: int
    bytes: int
    largest: int


class PublisherSession:
    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        results: dict[int, PublishResult] = {}
        entries: dict[Hashable, list[PublishEntry]] = {}
        for place, envelope in enumerate(envelopes):
            try:
                destination, entry = self._encode(place, envelope)
                entries.setdefault(destination, []).append(entry)
            except ValueError as error:
                results[place] = PublishResult(PublishStatus.RETRYABLE, str(error))
        for found in await asyncio.gather(*(self._publish_to(to, some) for to, some in entries.items())):
            results.update(found)
        return [results[place] for place in range(len(envelopes))]

    def _encode(self, place: int, envelope: Envelope) -> tuple[Any, PublishEntry]:
        """Return the destination and the entry of a message. Raises `ValueError` if it cannot be encoded."""
        raise NotImplementedError

    async def _publish_to(self, destination: Any, entries: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        """Publish to one destination; return the results by place."""
        raise NotImplementedError


class BatchSession(PublisherSession):
    _errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of its calls."""

    async def _publish_to(self, destination: Any, entries: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        try:
            limits = await self._limits(destination)
        except self._errors as error:
            return dict.fromkeys((entry.place for entry in entries), self._judge(error, sent=False))
        too_large = PublishResult(PublishStatus.REJECTED, f"larger than the {limits.largest} bytes of a message")
        results = {entry.place: too_large for entry in entries if entry.size > limits.largest}
        for batch in _batches([entry for entry in entries if entry.place not in results], limits):
            results.update(await self._send_divided(destination, batch))
        return results

    async def _send_divided(self, destination: Any, batch: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        try:
            return await self._send(destination, batch)
        except self._errors as error:
            if len(batch) > 1 and self._blames_one(error):
                alone = [await self._send_divided(destination, [entry]) for entry in batch]
                return {place: result for one in alone for place, result in one.items()}
            return dict.fromkeys((entry.place for entry in batch), self._judge(error, sent=True))

    async def _limits(self, destination: Any) -> BatchLimits:
        """Return the limits of a destination. May raise one of the failures."""
        raise NotImplementedError

    async def _send(self, destination: Any, batch: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        """Send a batch; return the results by place. May raise one of the failures, for the batch as a whole."""
        raise NotImplementedError

    @staticmethod
    def _judge(error: Exception, *, sent: bool) -> PublishResult:
        """Return the result that a failure means; ``sent``: whether the call would have published the messages."""
        raise NotImplementedError

    @staticmethod
    def _blames_one(error: Exception) -> bool:
        """Tell whether a whole batch was refused because of one of its messages."""
        raise NotImplementedError


def _batches(entries: Sequence[PublishEntry], limits: BatchLimits) -> Iterator[list[PublishEntry]]:
    """Divide the entries into as few batches as the limits allow."""
    batch: list[PublishEntry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) == limits.messages or size + entry.size > limits.bytes):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def error_text(error: BaseException) -> str:
    """The type of an error, and its text if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
