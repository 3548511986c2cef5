"""A consumer's locks at Service Bus: a session with all its messages, or messages of a queue without sessions.

The client library reads and writes a connection in the task that calls it, so each receiver does one thing at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import MessageLockLostError, SessionLockLostError

from retrysafe.cancellation import reraise_cancellation
from retrysafe.messaging.brokers.receipts import Receipts
from retrysafe.messaging.brokers.servicebus.client import FAILURES, hang_up
from retrysafe.messaging.brokers.servicebus.messages import EntitySource

_SHORTEST = 1.0
"""Seconds that a lock lasts at least, whatever clocks say."""
_SESSION = ""
"""The key of a session's receipts: its one lock."""


def handle_of(message: ServiceBusReceivedMessage) -> str:
    """The lock of a message; a later delivery has another one."""
    return str(message.lock_token)


class Lock:
    """A receiver, and what it has received and not settled. Instants are those of the event loop.

    partition: what its messages have their order in.
    lease: for how many seconds a lock lasts; 0 if that is not known yet.
    """

    def __init__(self, source: EntitySource, receiver: ServiceBusReceiver, partition: str, timeout: float) -> None:
        self.source, self.partition = source, partition
        self._receiver, self._timeout = receiver, timeout
        self._messages: dict[str, ServiceBusReceivedMessage] = {}
        self._receipts: Receipts | None = None
        self._lost = False
        self.lease = 0.0
        self._turn = asyncio.Lock()

    @property
    def beat(self) -> float:
        """The interval at which to check whether locks are due, in seconds."""
        return max(self.lease, _SHORTEST) / 12

    async def receive(self, most: int, wait: float) -> Sequence[ServiceBusReceivedMessage]:
        """Up to so many messages. Raises what the library does."""
        async with self._turn, asyncio.timeout(wait + self._timeout):
            found = await reraise_cancellation(
                self._receiver.receive_messages(max_message_count=most, max_wait_time=wait)
            )
        for message in found:
            self._messages[handle_of(message)] = message
            self._came(message)
        return found

    async def settle(self, handles: Sequence[str]) -> None:
        """Complete messages, as far as the service can be told."""
        async with self._turn:
            for handle in handles:
                message = self._drop(handle)
                if message is not None and not self._lost:
                    await self._complete(message)

    async def renew(self, now: float) -> None:
        """Prolong the locks that are due, as far as the service can be told."""
        due = [] if self._receipts is None or self._lost else self._receipts.due(now)
        for handle in due:
            async with self._turn:
                asked = asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(self._timeout):
                        await reraise_cancellation(self._renew(handle))
                except SessionLockLostError:
                    self._lost = True
                    return
                except MessageLockLostError:
                    self._drop(handle)
                    continue
                except FAILURES:
                    return  # it is tried again until the lock has ended
                if self._receipts is not None:
                    self._receipts.keep([handle], asked)

    def is_lost(self, now: float) -> bool:
        """Tell whether another consumer may have what is held."""
        self._lost = self._lost or (self._receipts is not None and self._receipts.have_lapsed(now))
        return self._lost

    async def close(self) -> None:
        """Hang up; what is not settled is there for others at once."""
        async with self._turn:
            if not self._lost:
                await self._give_up(list(self._messages.values()))
            await hang_up(self._receiver, self._timeout)

    def _drop(self, handle: str) -> ServiceBusReceivedMessage | None:
        if self._receipts is not None:
            self._receipts.settle(handle)
        return self._messages.pop(handle, None)

    async def _complete(self, message: ServiceBusReceivedMessage) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._receiver.complete_message(message)
        except MessageLockLostError:
            return
        except FAILURES:
            self._lost = True  # the connection, or the session: nothing more can be settled

    def _lock_time(self, until: datetime | None) -> float:
        left = _SHORTEST if until is None else (until - datetime.now(UTC)).total_seconds()
        return max(left, _SHORTEST)

    def _came(self, message: ServiceBusReceivedMessage) -> None:
        """A message has come."""

    async def _renew(self, handle: str) -> None:
        raise NotImplementedError

    async def _give_up(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        """Let others have what is not settled."""


class SessionLock(Lock):
    """A session, whose lock covers all of its messages. Closed, it has them again, and no delivery is counted."""

    def __init__(self, source: EntitySource, receiver: ServiceBusReceiver, timeout: float) -> None:
        super().__init__(source, receiver, f"{source.path} {receiver.session.session_id}", timeout)
        self.lease = self._lock_time(receiver.session.locked_until_utc)
        self._receipts = Receipts(self.lease)
        self._receipts.add(_SESSION, asyncio.get_running_loop().time())

    async def _renew(self, handle: str) -> None:
        await self._receiver.session.renew_lock(timeout=self._timeout)


class QueueLock(Lock):
    """Messages of a queue or subscription without sessions: each has a lock of its own."""

    def _came(self, message: ServiceBusReceivedMessage) -> None:
        left = self._lock_time(message.locked_until_utc)
        if self._receipts is None:
            self.lease = left
            self._receipts = Receipts(left)
        self._receipts.add(handle_of(message), asyncio.get_running_loop().time() + left - self.lease)

    async def _renew(self, handle: str) -> None:
        if handle in self._messages:
            await self._receiver.renew_message_lock(self._messages[handle], timeout=self._timeout)

    async def _give_up(self, messages: Sequence[ServiceBusReceivedMessage]) -> None:
        for message in messages:
            try:
                async with asyncio.timeout(self._timeout):
                    await self._receiver.abandon_message(message)
            except MessageLockLostError:
                continue
            except FAILURES:
                return  # the connection: nothing more can be said
