"""The interfaces of brokers: publishers and consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from retrysafe.protocol.messages import Delivery, Envelope, PublishResult


class Publisher(Protocol):
    """Publishes messages to a broker, or to another destination."""

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order.

        Returns when every message was accepted with the durability that was configured, or refused. An exception means
        that the outcome of every message is unknown; only `ConfigurationError`, that none was published. The relay
        publishes those that are refused so in smaller calls, until it knows which it concerns.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class AsyncPublisher(Protocol):
    """`Publisher` for async code, in one process and on one event loop, or on one after another.

    Those of this package, but for Kafka's, raise `ConfigurationError` elsewhere: in a process that was forked when they
    had been used, and on another event loop while that of before is not closed.
    """

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class Routed(Protocol):
    """An optional interface of publishers: the destination of each message. Without it, the topic is the destination.

    A relay stops publishing to a destination that accepts nothing, and continues with the others. It calls an async
    publisher with this interface once for each destination, so that no destination waits for another.
    """

    by_topic: bool
    """True if all messages of a topic go to one destination; if so, the relay skips the topic while that fails."""

    def destination(self, envelope: Envelope, /) -> str:
        """The name of the queue, stream or endpoint of a message, without secrets, because it appears in events."""
        ...


def broker_address_of(url: str, *more: str) -> str:
    """The address that a publisher publishes to, as relays of one database compare it: without user and options."""
    parts = urlsplit(url)
    hosts = ",".join(sorted(parts.netloc.rpartition("@")[2].lower().split(",")))
    return " ".join((f"{parts.scheme}://{hosts}/{unquote(parts.path).strip('/')}", *more))


class Consumer(Protocol):
    """Receives messages from a broker, and acknowledges them or gives them back. It runs on an event loop.

    When the consumer ends, by a crash or by `aclose`, the broker delivers its unsettled messages again. Until then it
    belongs to the process and the event loop that use it. Elsewhere those of this package raise `ConfigurationError`.
    After `aclose` the next `receive` begins anew.
    """

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after its publication a message may be handed out again; None: unknown.

        A consumer may read it from its broker; then it may be unknown until `receive` has returned once.
        """
        ...

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Return up to ``limit`` messages, in the order of their partitions; wait up to ``wait`` seconds for the first.

        Raises the errors of the client library when the broker cannot be reached; the next call connects again. Raises
        `ConfigurationError` for errors that further calls would meet again; it ends a subscription.
        """
        ...

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Acknowledge these deliveries. A message whose acknowledgement is lost comes again, which is harmless."""
        ...

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Let the broker deliver the message again after about ``delay`` seconds, to this or another consumer."""
        ...

    async def aclose(self) -> None:
        """Close the connection; the broker delivers unsettled messages again.

        A `receive` that is under way returns without messages, and does not connect again.
        """
        ...


class Lagging(Protocol):
    """An optional interface of consumers: how far they are behind. Subscriptions tell it their observers."""

    async def lag(self) -> Mapping[str, int]:
        """Count the messages that its group has not settled, by queue, stream or partition.

        As far as the broker can tell; what it cannot tell is left out. Raises the errors of `receive`.
        """
        ...


class RetryRoom(Protocol):
    """An optional interface of consumers that hold a limited number of messages: some of them are tried again."""

    def make_room(self, retried: Mapping[str, int], /) -> Collection[str]:
        """Take note of how many messages of each partition are in lanes whose first message is tried again.

        They count a tenth towards what the consumer may hold, where it decides that itself. Returns the partitions of
        which it receives nothing more all the same, because there are so many.
        """
        ...


class Assigned(Lagging, Protocol):
    """An optional interface of consumers that have partitions to themselves.

    A subscription watches these partitions: when one has messages and gives none for a minute, it closes the consumer,
    so that the next `receive` connects anew.
    """

    @property
    def assigned(self) -> Collection[str]:
        """The partitions that this consumer alone has at this moment, by the names that `lag` gives them."""
        ...


class Broker(NamedTuple):
    """A broker behind a URL, where every group of consumers gets every message of its topics once.

    declare_for: creates the queues or streams of topics for a group.
    publisher: makes a publisher, for one event loop.
    consumer: makes a consumer of a topic in a group, for one event loop.
    """

    declare_for: Callable[[list[str], str], Awaitable[None]]
    publisher: Callable[[], AsyncPublisher]
    consumer: Callable[[str, str], Consumer]

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Create the queues or streams of the topics for each group, before the first message is published."""
        names = list(topics)
        for group in groups:
            await self.declare_for(names, group)
