"""A broker in memory: publishers and consumers of one process, for tests and for services that share one."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from retrysafe.protocol.messages import Delivery, Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import lane

_ACKED = PublishResult(PublishStatus.ACKED)
_SOONEST = 0.001


@dataclass(slots=True)
class _Entry:
    """A message in a partition: its place, and from when on it may be handed out."""

    number: int
    envelope: Envelope
    lane: int
    not_before: float = 0.0
    redelivered: bool = False
    held: bool = False


class MemoryBroker:
    """Keeps messages until they are acked, in the order of their partitions, in the memory of one process.

    Arguments:
        partitions: into how many a topic is divided, by key; a partition has one consumer at a time.
        clock: tells monotonic seconds, for deliveries that are given back for some time.
    """

    def __init__(self, *, partitions: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._partitions = partitions
        self._clock = clock
        self._entries: dict[tuple[str, int], dict[int, _Entry]] = {}
        self._owners: dict[tuple[str, int], MemoryConsumer] = {}
        self._consumers: list[MemoryConsumer] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def publisher(self) -> MemoryBrokerPublisher:
        """A `Publisher`."""
        return MemoryBrokerPublisher(self)

    def apublisher(self) -> AsyncMemoryBrokerPublisher:
        """An `AsyncPublisher`."""
        return AsyncMemoryBrokerPublisher(self)

    def consumer(self, *topics: str, redelivery_window: float | None = math.inf) -> MemoryConsumer:
        """A `Consumer` of these topics; ``redelivery_window`` is the one that it reports to subscriptions."""
        return MemoryConsumer(self, topics, redelivery_window)

    def put(self, envelopes: Sequence[Envelope]) -> list[PublishResult]:
        """Take messages, from any thread."""
        with self._lock:
            for envelope in envelopes:
                of = lane(envelope.topic, envelope.key, envelope.id)
                entry = _Entry(next(self._numbers), envelope, of)
                self._entries.setdefault((envelope.topic, of % self._partitions), {})[entry.number] = entry
        self._wake()
        return [_ACKED] * len(envelopes)

    def depth(self, topic: str | None = None) -> int:
        """Count the messages that are not acked."""
        with self._lock:
            return sum(len(entries) for (of, _), entries in self._entries.items() if topic in (None, of))

    # ------------------------------------------------------------ for its consumers

    def _take(self, consumer: MemoryConsumer, most: int) -> tuple[list[Delivery], float]:
        """Return the messages that may be handed out now, or the seconds until one may."""
        found: list[Delivery] = []
        rest = math.inf
        now = self._clock()
        with self._lock:
            self._assign(consumer)
            for partition, entries in self._entries.items():
                if self._owners.get(partition) is not consumer:
                    continue
                name = f"{partition[0]}.{partition[1]}"
                waiting: set[int] = set()
                for entry in entries.values():
                    if entry.held:
                        continue
                    if entry.not_before > now:
                        waiting.add(entry.lane)
                        rest = min(rest, entry.not_before - now)
                    elif entry.lane not in waiting and len(found) < most:
                        entry.held = True
                        found.append(Delivery(entry.envelope, (partition, entry.number), name, entry.redelivered))
        return found, rest

    def _assign(self, consumer: MemoryConsumer) -> None:
        """Give it free partitions, up to its share."""
        rivals = sum(1 for other in self._consumers if set(other.topics) & set(consumer.topics))
        ours = [partition for partition in self._entries if partition[0] in consumer.topics]
        share = math.ceil(len(ours) / max(1, rivals))
        held = sum(1 for partition in ours if self._owners.get(partition) is consumer)
        for partition in ours:
            if held < share and partition not in self._owners:
                self._owners[partition] = consumer
                held += 1

    def _ack(self, deliveries: Sequence[Delivery], consumer: MemoryConsumer) -> None:
        with self._lock:
            for delivery in deliveries:
                partition, number = delivery.tag
                if self._owners.get(partition) is consumer:
                    self._entries[partition].pop(number, None)

    def _give_back(self, delivery: Delivery, delay: float, consumer: MemoryConsumer) -> None:
        partition, number = delivery.tag
        with self._lock:
            entry = self._entries[partition].get(number)
            if entry is not None and self._owners.get(partition) is consumer:
                entry.held, entry.redelivered, entry.not_before = False, True, self._clock() + delay
        self._wake()

    def _leave(self, consumer: MemoryConsumer) -> None:
        with self._lock:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            for partition in [one for one, owner in self._owners.items() if owner is consumer]:
                del self._owners[partition]
                for entry in self._entries[partition].values():
                    entry.redelivered, entry.held = entry.redelivered or entry.held, False
        self._wake()

    def _join(self, consumer: MemoryConsumer) -> None:
        with self._lock:
            if consumer not in self._consumers:
                self._consumers.append(consumer)

    def _lag(self, topics: Sequence[str]) -> dict[str, int]:
        with self._lock:
            return {
                f"{topic}.{number}": len(entries)
                for (topic, number), entries in self._entries.items()
                if topic in topics
            }

    def _wake(self) -> None:
        for consumer in tuple(self._consumers):
            consumer.wake()


class MemoryBrokerPublisher:
    """Publishes to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Hand them over."""
        return self._broker.put(envelopes)

    def close(self) -> None:
        """Nothing to hang up."""


class AsyncMemoryBrokerPublisher:
    """`MemoryBrokerPublisher` for async code."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Hand them over."""
        return self._broker.put(envelopes)

    async def aclose(self) -> None:
        """Nothing to hang up."""


class MemoryConsumer:
    """Consumes from a `MemoryBroker`, on an event loop."""

    def __init__(self, broker: MemoryBroker, topics: Sequence[str], redelivery_window: float | None) -> None:
        self.topics = tuple(topics)
        self._broker = broker
        self._redelivery_window = None if redelivery_window == math.inf else redelivery_window
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: asyncio.Event | None = None
        self._closed = 0
        """The number of times it was closed: a `receive` that was under way then hands out nothing any more."""

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after it was published a message may be handed out again; None: unknown."""
        return self._redelivery_window

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages; waits so many seconds for the first one."""
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._broker._join(self)
        closed, end = self._closed, self._loop.time() + wait
        while self._closed == closed:
            self._bell.clear()
            left = end - self._loop.time()
            found, rest = self._broker._take(self, limit)
            if found or left <= 0:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(max(_SOONEST, min(left, rest))):
                    await self._bell.wait()
        return []

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Forget them."""
        self._broker._ack(deliveries, self)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Let it be handed out again, in its place, after so many seconds; what follows it in its lane waits."""
        self._broker._give_back(delivery, delay, self)

    async def lag(self) -> Mapping[str, int]:
        """Count the unsettled messages of each partition."""
        return self._broker._lag(self.topics)

    async def aclose(self) -> None:
        """Leave; what is not settled is handed out again."""
        self._closed += 1
        self._broker._leave(self)
        self.wake()

    def wake(self) -> None:
        """Look again."""
        loop, bell = self._loop, self._bell
        if loop is not None and bell is not None and not loop.is_closed():
            loop.call_soon_threadsafe(bell.set)
