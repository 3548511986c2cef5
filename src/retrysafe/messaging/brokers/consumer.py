"""The consumer of every broker: an engine, for which a broker's folder writes a session.

    BrokerConsumer                      ConsumerSession (a broker's)
    receive ── open() ───────────────▶  connects, and begins to fetch
            ◀─ take() ────────────────  what has arrived, in the order of lanes
    ack     ── settle(deliveries) ───▶  tells the broker
    aclose  ── close() ──────────────▶  hangs up; the broker delivers again what was not settled

A session that cannot be opened, or has lost its connection, is closed, and the next one opened in its place. What is
given back stays in its session: it and what follows it in its lane are handed out when the time has come. A delivery of
an earlier session settles nothing, since tags of two sessions are never equal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.messaging.brokers.sessions import SessionOwner
from retrysafe.messaging.brokers.single_flight import SingleFlight
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_AGAIN = Backoff(base=0.05, cap=1.0)
"""The pauses before it opens a session, after sessions that failed or did not last."""
_LASTING = 5.0
"""Seconds after which a session has lasted."""
_LOOK = 1.0
"""Poll interval for the connection and the tasks, which may end without setting an event."""
C = TypeVar("C", bound="ConsumerSession")


class ConsumerSession:
    """The connections, tasks and unsettled messages of a consumer, from one opening to the next.

    Arguments:
        prefetch: how many messages of a partition are received and not settled.
        prefetch_bytes: how many bytes of them.
    """

    redelivery_window: float | None = None
    """Seconds after publication within which a message may be handed out again; None until the broker tells."""
    failures = 0
    """The number of earlier sessions since the last one that lasted."""
    was_opened = False
    """True once `open` has succeeded."""
    is_failing = False
    """True from an error of a task, of which `receive` tells once, until the broker answers that task."""

    def __init__(self, prefetch: int, prefetch_bytes: int = 1 << 62) -> None:
        self._prefetch, self._bytes = prefetch, prefetch_bytes
        self._lanes = LaneQueue()
        self._leaving: set[str] = set()
        """Partitions that another consumer is to have; nothing of them is handed out any more."""
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived, self._room, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None

    # ------------------------------------------------------------ of a broker

    async def open(self) -> None:
        """Connect, and start the tasks. After an error, the next `receive` opens another session."""

    @property
    def is_open(self) -> bool:
        """True while the opened connection lasts."""
        return True

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the broker that these are settled. What it does not hear of is delivered again."""
        raise NotImplementedError

    async def lag(self) -> Mapping[str, int]:
        """Count the unsettled messages of the group by partition."""
        return {}

    @property
    def assigned(self) -> Collection[str]:
        """The partitions that this session has to itself, without those that it is leaving."""
        return ()

    async def close(self) -> None:
        """Close the connections, also after a partial open or close. The broker redelivers unsettled messages."""
        raise NotImplementedError

    # ------------------------------------------------------------ for the engine

    def take(self, limit: int, now: float) -> Sequence[Delivery]:
        """Hand out up to so many messages."""
        self._arrived.clear()
        return self._lanes.take(limit, now, self._leaving)

    async def look(self) -> bool:
        """Raise the error of a task or callback, if any; return whether to take again at once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        for task in self._tasks:
            if task.done():
                task.result()
        return False

    async def wait(self, until: float) -> None:
        """Wait for a message, for the end of a lane's rest, or for the next poll, at most ``until`` (loop time)."""
        wakes = self._lanes.wakes()
        until = min(until, asyncio.get_running_loop().time() + _LOOK, until if wakes is None else wakes)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._arrived.wait()

    def give_back(self, delivery: Delivery, until: float) -> None:
        """Hand the message out again at that time, before those that follow it in its lane."""
        self._lanes.give_back(delivery, until)
        self._arrived.set()

    def make_room(self, retried: Mapping[str, int]) -> Collection[str]:
        """Hold more, as so many of each partition are tried again; return the partitions full of such messages."""
        self._lanes.retried = retried
        self._room.set()
        return self._lanes.crowds(self._has_room)

    # ------------------------------------------------------------ for sessions

    def _has_room(self, partition: str) -> bool:
        return self._lanes.load(partition) < self._prefetch and self._lanes.count_bytes(partition) < self._bytes

    def _release(self, deliveries: Iterable[Delivery]) -> dict[str, list[Any]]:
        """Remove settled deliveries from the queue; return all their tags by partition."""
        tags: dict[str, list[Any]] = {}
        for delivery in deliveries:
            self._lanes.settle(delivery)
            tags.setdefault(delivery.partition, []).append(delivery.tag)
        self._room.set()
        return tags

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._arrived.set()

    async def _pause(self, seconds: float) -> bool:
        """Wait so long, or until the session is closed; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        return self._closing.is_set()

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BrokerConsumer(SessionOwner[C], Generic[C]):
    """A `retrysafe.messaging.brokers.base.Consumer` with a `RetryRoom`, by sessions; each broker adds arguments."""

    _began, _failures = -_LASTING, 0
    """The time of the last opening, and the number of sessions since one that lasted."""

    def __init__(self, new_session: Callable[[], C], redelivery_window: Duration | None = None) -> None:
        super().__init__(new_session)
        self._declared = None if redelivery_window is None else seconds_of(redelivery_window, "redelivery_window")

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after it was published a message may be handed out again; None: unknown."""
        told = None if self._session is None else self._session.redelivery_window
        return told if self._declared is None else self._declared

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Return up to ``limit`` messages, in the order of their partitions; wait up to ``wait`` seconds for the first.

        Raises the errors of the client library, `OSError` or `TimeoutError` when the broker cannot be reached, or
        refuses; the next call tries again. Raises `ConfigurationError` for what it would refuse again.
        """
        await self._enter()  # first: a new session clears the calls that `_until_closed` notes
        return await self._until_closed(self._receive(limit, wait), list)

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Settle these deliveries. If the broker does not hear of one, it redelivers it, which is harmless."""
        if (session := self._session_here()) is not None:
            await session.settle(deliveries)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Hand the message out again after ``delay`` seconds, before those that follow it in its lane."""
        if (session := self._session_here()) is not None:
            session.give_back(delivery, asyncio.get_running_loop().time() + delay)

    @property
    def is_failing(self) -> bool:
        """True while the broker does not answer what is asked beside `receive`."""
        return self._session is not None and self._session.is_failing

    def make_room(self, retried: Mapping[str, int], /) -> Collection[str]:
        """Hold more, as so many of each partition are tried again; return the partitions full of such messages."""
        return () if self._session is None else self._session.make_room(retried)

    # ------------------------------------------------------------ sessions

    async def _receive(self, limit: int, wait: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            session = await self._enter()
            if not (session.was_opened and session.is_open):
                await self._opening()
                session = await self._enter()
            if taken := session.take(limit, loop.time()):
                return taken
            if await session.look():
                continue
            if loop.time() >= deadline:
                return []
            await session.wait(deadline)

    async def _open(self) -> None:
        """Open the session, or a new one if this one has lost its connection."""
        session, loop = await self._enter(), asyncio.get_running_loop()
        if session.was_opened:
            await session.close()
            session = self._make_session()
        self._failures = self._failures + 1 if loop.time() - self._began < _LASTING else 0
        if self._failures > 1:
            await asyncio.sleep(_AGAIN.delay(self._failures - 2, 0.5 + random.random() / 2))
        self._began, session.failures = loop.time(), self._failures
        try:
            await session.open()
            session.was_opened = True
        except BaseException:
            await session.close()
            if self._session is session:
                self._make_session()
            raise

    def _begin_here(self) -> C:
        self._opening = SingleFlight(self._open)
        self._began, self._failures = -_LASTING, 0
        return super()._begin_here()

    async def _hang_up(self, session: C) -> None:
        await self._opening.aclose()
        await session.close()


class LaggingConsumer(BrokerConsumer[C], Generic[C]):
    """A consumer that can tell how far its group is behind: `retrysafe.messaging.brokers.base.Lagging`."""

    async def lag(self) -> Mapping[str, int]:
        """Count the unsettled messages of the group by partition, as far as the broker can tell."""
        if (session := self._session_here()) is None:
            return {}
        return await self._until_closed(session.lag(), dict[str, int])


class AssignedConsumer(LaggingConsumer[C], Generic[C]):
    """A consumer that has partitions to itself: `retrysafe.messaging.brokers.base.Assigned`."""

    @property
    def assigned(self) -> Collection[str]:
        """The partitions that this consumer has to itself now, without those that it is leaving to another one."""
        return () if self._session is None else self._session.assigned


def names_of(
    topics: str | Iterable[str], prefetch: int, prefetch_bytes: int = 1, group: str | None = None
) -> list[str]:
    """Return the topics as a list. Raises `ConfigurationError` if they, the group or a limit are empty."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or group == "" or min(prefetch, prefetch_bytes) < 1:
        raise ConfigurationError(
            "topics= and group= must not be empty, and prefetch= and prefetch_bytes= are numbers from 1."
        )
    return names
