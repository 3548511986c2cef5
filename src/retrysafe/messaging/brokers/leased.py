"""Consumers of queues that hide what they hand out from others for a while, which they are told to prolong."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from retrysafe.messaging.brokers.consumer import ConsumerSession
from retrysafe.messaging.brokers.receipts import Receipts
from retrysafe.protocol.messages import Delivery

_PAUSE = 0.5
"""Seconds before a poll that follows one that failed."""


class Tag(NamedTuple):
    """A message as it was received once: a later time it may have another handle."""

    queue: str
    handle: str


class QueueSettings(NamedTuple):
    """For how many seconds a queue hides what it hands out, and keeps unsettled messages; 0 if that is not known."""

    lease: float
    kept: float


class LeasedSession(ConsumerSession):
    """Polls queues, keeps what it holds hidden from others, and hands it out in the order of lanes.

    Subclasses say how a service is asked.

    Arguments:
        queues: the topic of each.
        prefetch, prefetch_bytes: how many messages, and bytes, of a queue are received and not settled.
    """

    _errors: ClassVar[tuple[type[Exception], ...]]
    """The errors of their requests."""
    _idle: float = 0.0
    """Seconds before a poll that follows one without messages."""

    def __init__(self, queues: Mapping[str, str], prefetch: int, prefetch_bytes: int) -> None:
        super().__init__(prefetch, prefetch_bytes)
        self._queues = queues
        self._terms: dict[str, QueueSettings] = {}
        self._receipts: dict[str, Receipts] = {}

    async def open(self) -> None:
        for queue in self._queues:
            self._terms[queue] = await self._look_up(queue)
            self._receipts[queue] = Receipts(self._terms[queue].lease)
        kept = [terms.kept for terms in self._terms.values()]
        self.redelivery_window = max(kept) if all(kept) else None
        self._tasks = [asyncio.create_task(self._poll(queue), name=f"retrysafe-poll {queue}") for queue in self._queues]
        self._tasks.append(asyncio.create_task(self._keep(), name="retrysafe-keep"))

    def take(self, limit: int, now: float) -> Sequence[Delivery]:
        """Hand out nothing more of a queue when another consumer may have what comes before: it is received again."""
        for queue, receipts in self._receipts.items():
            if receipts.have_lapsed(now):
                receipts.clear()
                self._lanes.forget(queue)
                self._room.set()
        return super().take(limit, now)

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        handles = {
            queue: [tag.handle for tag in tags]
            for queue, tags in self._release(deliveries).items()
            if queue in self._receipts  # else received before it was closed, and not looked up again yet
        }
        for queue, some in handles.items():
            for handle in some:
                self._receipts[queue].settle(handle)
        await asyncio.gather(*(self._settle(queue, some) for queue, some in handles.items()))

    async def close(self) -> None:
        """Hang up; what is not settled is there for others at once. Waits for the end of polls.

        The service goes on with a poll whose caller has gone, and what it then hands out is hidden for the lease.
        """
        self._closing.set()
        self._room.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        handles = {queue: receipts.clear() for queue, receipts in self._receipts.items()}
        await asyncio.gather(*(self._hide(queue, some, 0) for queue, some in handles.items() if some))
        await self._hang_up()

    # ------------------------------------------------------------ tasks

    async def _poll(self, queue: str) -> None:
        while not self._closing.is_set():
            self._room.clear()
            if not self._has_room(queue):
                await self._room.wait()
                continue
            try:
                found = await self._receive(queue)
            except self._errors as error:
                self.is_failing = True
                self._fail(error)
                await self._pause(_PAUSE)
                continue
            self.is_failing = False
            if not found and self._idle:
                await self._pause(self._idle)

    async def _receive(self, queue: str) -> bool:
        asked = asyncio.get_running_loop().time()
        found = await self._fetch(queue, self._prefetch + self._lanes.count_spared(queue) - len(self._receipts[queue]))
        for delivery in found:
            self._receipts[queue].add(delivery.tag.handle, asked)
            if not self._lanes.has(delivery.tag):
                self._lanes.put(delivery)
        self._arrived.set()
        return bool(found)

    def _has_room(self, partition: str) -> bool:
        most = self._prefetch + self._lanes.count_spared(partition)
        return len(self._receipts[partition]) < most and self._lanes.count_bytes(partition) < self._bytes

    async def _keep(self) -> None:
        while not await self._pause(min(terms.lease for terms in self._terms.values()) / 12):
            now = asyncio.get_running_loop().time()
            due = {queue: receipts.due(now) for queue, receipts in self._receipts.items()}
            await asyncio.gather(*(self._prolong(queue, some) for queue, some in due.items() if some))

    async def _prolong(self, queue: str, handles: list[str]) -> None:
        asked = asyncio.get_running_loop().time()
        kept = await self._hide(queue, handles, round(self._terms[queue].lease))
        self._receipts[queue].keep(kept, asked)

    # ------------------------------------------------------------ the service

    async def _look_up(self, queue: str) -> QueueSettings:
        """Look up the settings of a queue. Raises what further calls raise."""
        raise NotImplementedError

    async def _fetch(self, queue: str, most: int) -> Sequence[Delivery]:
        """Up to so many messages, each with a `Tag`. May raise one of the failures."""
        raise NotImplementedError

    async def _settle(self, queue: str, handles: Sequence[str]) -> None:
        """Settle messages, as far as the service can be told. Raises none of the failures."""
        raise NotImplementedError

    async def _hide(self, queue: str, handles: Sequence[str], seconds: int) -> Collection[str]:
        """Hide messages from others for so long from now on; those which are. Raises none of the failures."""
        raise NotImplementedError

    async def _hang_up(self) -> None:
        raise NotImplementedError
