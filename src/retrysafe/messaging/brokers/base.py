"""Brokers: who takes messages, and who hands them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from retrysafe.protocol.messages import Delivery, Envelope, PublishResult


class Publisher(Protocol):
    """Hands messages to a broker, or to whatever takes them."""

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes, and say of each, in this order, how it was taken.

        Returns when each was taken as safely as it was asked to. An exception means that each outcome is unknown.
        """
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class AsyncPublisher(Protocol):
    """`Publisher` for async code."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes, and say of each, in this order, how it was taken."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...


class Routed(Protocol):
    """What a publisher may have beside `publish`: where each message goes. Without it, that is the message's topic.

    A relay leaves a destination alone that takes nothing, and goes on with the others; an async publisher that is
    routed is called for each destination apart, and none of them waits for another.
    """

    by_topic: bool
    """Whether all messages of one topic have one destination: the relay then reads no other of them meanwhile."""

    def destination(self, envelope: Envelope, /) -> str:
        """The queue, stream or endpoint that takes a message, by a name without secrets: events tell it."""
        ...


class Consumer(Protocol):
    """Takes messages from a broker, and tells it what became of them. On an event loop.

    What was received and not settled when the consumer goes, by a crash or by `aclose`, the broker hands out again.
    """

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after it was published a message may be handed out again; None: unknown.

        A consumer may read it from its broker, and know it when it has first received.
        """
        ...

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages, in the order of their partitions; waits so many seconds for the first one.

        Raises what the client library raises when the broker cannot be reached; the next call connects again. Raises
        `ConfigurationError` for what no further call can mend, and a subscription ends with it.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Acknowledge these deliveries. A message whose acknowledgement is lost comes again, which is harmless."""
        ...

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Let the broker hand it out again after about so many seconds, to this or another consumer."""
        ...

    async def aclose(self) -> None:
        """Close the connection; the broker delivers unsettled messages again."""
        ...


class Broker(Protocol):
    """A broker behind a URL, where every group of consumers gets every message of its topics once."""

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Make what the messages of topics wait in, for each group, before the first is published."""
        ...

    def publisher(self) -> AsyncPublisher:
        """A publisher, for one event loop."""
        ...

    def consumer(self, topic: str, group: str) -> Consumer:
        """A consumer of a topic in a group, for one event loop."""
        ...
