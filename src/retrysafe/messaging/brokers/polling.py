"""Consumers whose tasks fetch messages in the background, and which hand them out in the order of lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.arrival import arrival
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.messaging.brokers.single_flight import SingleFlight
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration


class PollingConsumer:
    """Hands out what its tasks put on a shelf.

    A message that is given back stays here: it and what follows it in its lane are handed out when the time has come.
    Subclasses say what the tasks are.
    """

    def __init__(
        self, topics: Collection[str], prefetch: int, prefetch_bytes: int, redelivery_window: Duration | None
    ) -> None:
        if not topics or min(prefetch, prefetch_bytes) < 1:
            raise ConfigurationError("topics= must not be empty; prefetch= and prefetch_bytes= are numbers from 1.")
        self._prefetch, self._bytes = prefetch, prefetch_bytes
        self._declared = None if redelivery_window is None else seconds_of(redelivery_window, "redelivery_window")
        self._shelf = LaneQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning = SingleFlight(self._begin)
        self._arrived, self._room, self._leaving = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages, in the order of their queues; waits so many seconds for the first one.

        Raises the errors of the client library, `OSError` or `TimeoutError` when the service cannot be reached, or
        refuses; the next call tries again. Raises `ConfigurationError` for what it would refuse again.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if not self._tasks:
            await self._beginning()
        while True:
            now = loop.time()
            self._arrived.clear()
            self._forget_lapsed(now)
            if taken := self._shelf.take(limit, now):
                return taken
            self._look()
            if now >= deadline:
                return []
            await arrival(self._arrived, self._shelf, deadline)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Hand it out again after so many seconds, and before what follows it in its lane."""
        self._shelf.give_back(delivery, asyncio.get_running_loop().time() + delay)
        self._arrived.set()

    def park(self, waiting: Mapping[str, int], /) -> Collection[str]:
        """Hold more, as so many of each partition wait for a retry; the partitions that are full of such messages."""
        self._shelf.parked = waiting
        self._room.set()
        return self._shelf.crowded(self._has_room)

    def _has_room(self, partition: str) -> bool:
        return self._shelf.load(partition) < self._prefetch and self._shelf.held_bytes(partition) < self._bytes

    def _look(self) -> None:
        """Raise what has failed."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        for task in self._tasks:
            if task.done():
                task.result()

    def _fails(self, error: BaseException) -> None:
        """Let `receive` raise it."""
        self._failure = error
        self._arrived.set()

    async def _pause(self, seconds: float) -> bool:
        """Wait so long, or until the consumer is closed: whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        return self._leaving.is_set()

    async def _begin(self) -> None:
        """Start the tasks. Raises what further calls raise."""
        raise NotImplementedError

    def _forget_lapsed(self, now: float) -> None:
        """Hand out nothing more of a queue when another consumer may have what comes before: it is received again."""
        raise NotImplementedError
