"""Azure Service Bus: a session has one consumer at a time, which has the lock of all its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, SessionLockLostError

from retrysafe.cancellation import reraise_cancellation
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.consumer import BrokerConsumer, ConsumerSession, names_of
from retrysafe.messaging.brokers.leased import Tag
from retrysafe.messaging.brokers.servicebus.client import (
    FAILURES,
    LISTENS,
    Namespace,
    NamespaceClient,
    amend,
    condition_of,
    hang_up,
    namespace_of,
)
from retrysafe.messaging.brokers.servicebus.locks import Lock, QueueLock, SessionLock, handle_of
from retrysafe.messaging.brokers.servicebus.messages import EntitySource, envelope_from, source_of
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.servicebus.results import for_a_consumer
from retrysafe.messaging.brokers.servicebus.topology import declare
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_PAUSE = 0.5
"""Seconds before a receiver that follows one that failed."""
_SLICE = 0.02
"""Seconds for which messages are waited for while others are held, which may have to be settled."""
_LOOK = 0.5
"""Seconds for which messages of a queue without sessions are waited for, before it is looked whether to close."""
_AHEAD = 20
"""The messages of a session that the library fetches ahead: none is sent back, which would cost their order."""
_TURN = 30.0
"""Seconds after which a session is left to others as soon as nothing of it is held."""
_RESTING = 100
"""The number of sessions that may wait, beside those at work, for messages that were given back."""
_MOST_SESSIONS = 10_000
"""Each has a task and a receiver."""
_NO_SESSION = "com.microsoft:timeout"
"""The condition of an answer that there is no free session with messages."""


class _SessionGate:
    """Lets one task look for a session at a time, and all of them for as long as sessions are found."""

    def __init__(self) -> None:
        self._looking = 0
        self._plenty = asyncio.Event()

    async def enter(self) -> None:
        """Wait until it makes sense to look."""
        while self._looking and not self._plenty.is_set():
            await self._plenty.wait()
        self._looking += 1

    def leave(self, *, found: bool) -> None:
        """Say whether there was a session. A task that found none looks again, and lets the others wait for that."""
        self._looking -= 1
        if found:
            self._plenty.set()
        else:
            self._plenty.clear()


class ServiceBusConsumer(BrokerConsumer["_ServiceBusSession"]):
    """Takes messages from queues, or a group's subscriptions. Make them before, with `brokers.servicebus.declare`.

    A session is a key, or a partition of keys, as publishers were told; one consumer has it at a time, until nothing of
    it is left, so any number of consumers keep the order of keys. A message that is given back stays with this
    consumer: it and what follows it in its lane are handed out when the time has come, other lanes go on. While it is
    held the lock is renewed, however long that takes. A lock that is lost settles nothing: messages come again.

    Arguments:
        url: of the namespace, as for `ServiceBusPublisher`.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory", whose subscriptions are
            consumed; by default the one queue of each topic.
        prefix: of names, as publishers were told.
        ordered: whether queues and subscriptions have sessions.
        sessions: sessions of a topic that are held at a time.
        prefetch: how many messages of a session are received and not settled. Those that wait for a retry count a
            tenth.
        prefetch_bytes: how many bytes of them; a few messages more may be received.
        idle: how long a session without messages is held; one of which messages are held is not left.
        poll: how long the service waits for a session or a message before it answers that there is none.
        redelivery_window: for how long after it was published a message may be handed out again: the time to live of
            the queue or subscription, which a consumer cannot read. By default it is not known.
        timeout: how long the service may take to answer.

    For how long what a consumer has is kept from others when it is dead or cut off is the lock duration of the queue or
    subscription. Clocks must agree: the client library judges locks by its own.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        prefix: str = "",
        ordered: bool = True,
        sessions: int = 8,
        prefetch: int = 100,
        prefetch_bytes: int = 16 << 20,
        idle: Duration = "1s",
        poll: Duration = "10s",
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        names = names_of(topics, prefetch, prefetch_bytes)
        if not 1 <= sessions <= _MOST_SESSIONS:
            raise ConfigurationError(f"sessions= is a number from 1 to {_MOST_SESSIONS}.")
        try:
            sources = [source_of(prefix, topic, group or None) for topic in names]
        except ValueError as error:
            raise ConfigurationError(f"topics=, group= or prefix=: {error}.") from error
        namespace, at_once = namespace_of(url), sessions if ordered else 1
        waits = seconds_of(idle, "idle"), seconds_of(poll, "poll"), seconds_of(timeout, "timeout")
        super().__init__(
            lambda: _ServiceBusSession(namespace, sources, ordered, at_once, prefetch, prefetch_bytes, *waits),
            redelivery_window,
        )


class _ServiceBusSession(ConsumerSession):
    """The sessions of Service Bus that are ours, or messages of queues without any."""

    _client: NamespaceClient | None = None

    def __init__(
        self,
        namespace: Namespace,
        sources: Sequence[EntitySource],
        ordered: bool,
        sessions: int,
        prefetch: int,
        prefetch_bytes: int,
        idle: float,
        poll: float,
        timeout: float,
    ) -> None:
        super().__init__(prefetch, prefetch_bytes)
        self._namespace, self._sources, self._ordered, self._sessions = namespace, sources, ordered, sessions
        self._idle, self._poll, self._timeout = idle, poll, timeout
        self._gates = {source: _SessionGate() for source in sources}
        self._locks: dict[str, Lock] = {}
        self._looking: set[asyncio.Task[Any]] = set()
        """Tasks that hold nothing, and may be cancelled."""
        self._hanging_up: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._client = self._namespace.client(self._poll + self._timeout)
        for source in self._sources:
            for _ in range(self._sessions):
                self._start(source)

    def take(self, limit: int, now: float) -> Sequence[Delivery]:
        for place, lock in list(self._locks.items()):
            if lock.is_lost(now):
                self._forget(place, lock)
        return super().take(limit, now)

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        tags = self._release(deliveries)
        held = [(self._locks[place], some) for place, some in tags.items() if place in self._locks]
        await asyncio.gather(*(lock.settle([tag.handle for tag in some]) for lock, some in held))

    async def close(self) -> None:
        """Hang up; what is not settled is there for others at once."""
        self._closing.set()
        self._room.set()
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._hanging_up, return_exceptions=True)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _forget(self, place: str, lock: Lock) -> None:
        if self._locks.get(place) is lock:
            del self._locks[place]
            self._lanes.forget(place)
            self._room.set()

    # ------------------------------------------------------------ tasks

    def _start(self, source: EntitySource) -> None:
        task = asyncio.create_task(self._serve(source), name=f"retrysafe-serve {source.path}")
        task.add_done_callback(self._on_end)
        self._tasks.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Forget a task that was replaced; `receive` raises what another one has failed with."""
        if task in self._tasks and not task.cancelled() and task.exception() is None:
            self._tasks.remove(task)

    async def _serve(self, source: EntitySource) -> None:
        """Take one session after the other; end when one of them rested, for which another task has begun."""
        replaced = False
        while not (replaced or self._closing.is_set()):
            try:
                lock = await self._find(source)
            except FAILURES as error:
                self.is_failing = True
                self._fail(for_a_consumer(error, source.path))
                await self._pause(_PAUSE)
                continue
            self.is_failing = False
            if lock is not None:
                replaced = await self._empty(lock)

    async def _find(self, source: EntitySource) -> Lock | None:
        gate, task = self._gates[source], asyncio.current_task()
        assert task is not None
        self._looking.add(task)
        receiver = None
        try:
            await gate.enter()
            try:
                receiver = await self._open_receiver(source)
            finally:
                gate.leave(found=receiver is not None)
        finally:
            self._looking.discard(task)
        return None if receiver is None else self._hold(source, receiver)

    def _hold(self, source: EntitySource, receiver: ServiceBusReceiver) -> Lock:
        if self._ordered:
            lock: Lock = SessionLock(source, receiver, self._timeout)
        else:
            lock = QueueLock(source, receiver, source.path, self._timeout)
        before = self._locks.get(lock.partition)
        if before is not None:
            self._forget(lock.partition, before)
        self._locks[lock.partition] = lock
        return lock

    async def _open_receiver(self, source: EntitySource) -> ServiceBusReceiver | None:
        assert self._client is not None
        how: dict[str, Any] = {"max_wait_time": self._poll, "socket_timeout": LISTENS}
        if self._ordered:
            how |= {"session_id": NEXT_AVAILABLE_SESSION, "prefetch_count": min(_AHEAD, self._prefetch)}
        if source.group is None:
            receiver = self._client.messages.get_queue_receiver(source.name, **how)
        else:
            receiver = self._client.messages.get_subscription_receiver(source.name, source.group, **how)
        receiver = amend(receiver)
        try:
            async with asyncio.timeout(self._poll + self._timeout):
                await reraise_cancellation(receiver.__aenter__())
        except BaseException as error:
            await hang_up(receiver, self._timeout)
            if isinstance(error, OperationTimeoutError) and condition_of(error) == _NO_SESSION:
                return None
            raise
        return receiver

    async def _empty(self, lock: Lock) -> bool:
        """Receive until nothing comes and nothing is held; whether another task has begun meanwhile."""
        loop, place = asyncio.get_running_loop(), lock.partition
        begun = came = loop.time()
        replaced, failure = False, None
        keeping = asyncio.create_task(self._keep(lock), name=f"retrysafe-keep {lock.partition}")
        try:
            while not self._closing.is_set():
                self._room.clear()
                now, held = loop.time(), self._lanes.count(place)
                if lock.is_lost(now):
                    break
                over = self._ordered and now - begun > _TURN
                if self._ordered and not held and (over or now - came > self._idle):
                    break
                if not replaced and self._rests(lock, now):
                    self._start(lock.source)
                    replaced = True
                if over or not self._has_room(place):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(lock.beat):
                            await self._room.wait()
                elif await self._receive(lock, _SLICE if held or self._ordered else _LOOK):
                    came = loop.time()
        except SessionLockLostError:
            pass  # another consumer may have it, or this one again
        except FAILURES as error:
            failure = error  # the next connect tells whether it is lasting
        finally:
            self._forget(place, lock)
            self._close(lock, keeping)
        if failure is not None:
            self._fail(failure)
            await self._pause(0 if replaced else _PAUSE)
        return replaced

    def _close(self, lock: Lock, keeping: asyncio.Task[None]) -> None:
        async def close() -> None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await lock.close()

        closing = asyncio.create_task(close(), name=f"retrysafe-close {lock.partition}")
        self._hanging_up.add(closing)
        closing.add_done_callback(self._hanging_up.discard)

    def _rests(self, lock: Lock, now: float) -> bool:
        """Tell whether all of it waits for messages that were given back; as many sessions may as are allowed."""
        waits = self._ordered and self._lanes.rests(lock.partition, now + self._idle)
        return waits and len(self._tasks) < _RESTING + self._sessions * len(self._sources)

    async def _receive(self, lock: Lock, wait: float) -> bool:
        most = 1 if self._ordered else self._prefetch - self._lanes.load(lock.partition)
        found = await lock.receive(most, wait)
        for message in found:
            self._lanes.put(self._delivery(lock, message))
        if found:
            self._arrived.set()
        return bool(found)

    def _delivery(self, lock: Lock, message: ServiceBusReceivedMessage) -> Delivery:
        envelope = envelope_from(message, lock.source.topic)
        came = message.enqueued_time_utc
        old = came is not None and (datetime.now(UTC) - came).total_seconds() >= lock.lease / 2
        redelivered = bool(message.delivery_count) or old  # closing a session counts no delivery
        return Delivery(envelope, Tag(lock.partition, handle_of(message)), lock.partition, redelivered)

    async def _keep(self, lock: Lock) -> None:
        """Keep the locks of what is held, however long other connections take to answer."""
        while not await self._pause(lock.beat):
            await lock.renew(asyncio.get_running_loop().time())


_KEPT = "7d"


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics whose names begin with our name, with a subscription for each group; their lanes have sessions."""
    prefix = f"{name}-"
    return Broker(
        lambda topics, group: declare(url, topics, group=group, prefix=prefix, lease=lease, keep=_KEPT),
        lambda: ServiceBusPublisher(url, prefix=prefix, partitions=partitions),
        lambda topic, group: ServiceBusConsumer(url, topic, group=group, prefix=prefix, redelivery_window=_KEPT),
    )
