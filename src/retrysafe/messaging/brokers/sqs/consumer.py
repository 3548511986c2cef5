"""Amazon SQS: messages are invisible to others while a consumer holds them, and deleted when they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.messaging.brokers.single_flight import SingleFlight
from retrysafe.messaging.brokers.sqs.client import FAILURES, LONGEST_POLL, Service
from retrysafe.messaging.brokers.sqs.messages import envelope_from, name_of
from retrysafe.messaging.brokers.sqs.receipts import Receipts
from retrysafe.messaging.brokers.sqs.topology import queue_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_LOOK = 1.0
"""Seconds after which a wait looks whether polling has failed."""
_AT_ONCE = 10
"""How many messages a call concerns at most."""
_PAUSE = 0.5
"""Seconds before a poll that follows one that failed."""
_KEPT = "MessageRetentionPeriod"
_TOLD = ["ApproximateReceiveCount", "MessageGroupId"]
_Handles = Sequence[str]


class Tag(NamedTuple):
    """A message as it was received once: a later time it has another handle."""

    queue: str
    handle: str


class SqsConsumer:
    """Takes messages from the queues of topics. Make them before, with `retrysafe.messaging.brokers.sqs.declare`.

    A FIFO queue hands out nothing of a key while a message of it is held, so any number of consumers keep the order of
    keys. A message that is given back stays with this consumer: it and what follows it in its lane are handed out when
    the time has come, other lanes go on. While it is held it is kept invisible, for the 12 hours that the service
    allows. A queue that is not FIFO has no order.

    Arguments:
        topics: one or more.
        group: the service whose queues are consumed, as `declare` was told; by default the one queue of each topic.
        region, endpoint: as for `SqsPublisher`.
        prefix: of the queues' names, as publishers were told.
        ordered: whether queues are FIFO.
        prefetch: how many messages of a queue are received and not settled. As many can wait for lanes that rest before
            the queue comes to rest.
        prefetch_bytes: how many bytes of them; up to ten messages more may be received.
        lease: for how long the messages of a consumer that is dead or cut off stay invisible, from 2 seconds.
        poll: how long the service waits for messages before it answers that there are none, in whole seconds: up to 20,
            and a third of the lease. Below a second it does not wait, and is asked so often. Each poll is a request to
            be paid, and `aclose` waits for the last one.
        redelivery_window: for how long after it was published a message may be handed out again; by default for as long
            as the queue keeps it, which is read at first.
        timeout: how long the service may take to answer.
    """

    def __init__(
        self,
        topics: str | Iterable[str],
        *,
        group: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        prefix: str = "",
        ordered: bool = True,
        prefetch: int = 100,
        prefetch_bytes: int = 16 << 20,
        lease: Duration = "60s",
        poll: Duration = "5s",
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or min(prefetch, prefetch_bytes) < 1:
            raise ConfigurationError("topics= must not be empty; prefetch= and prefetch_bytes= are numbers from 1.")
        try:
            self._queues = {name_of(prefix, queue_of(one, group), ordered=ordered): one for one in names}
        except ValueError as error:
            raise ConfigurationError(f"topics=, group= or prefix=: {error}.") from error
        self._prefetch, self._bytes = prefetch, prefetch_bytes
        self._lease = max(2, round(seconds_of(lease, "lease")))
        self._poll_for = min(LONGEST_POLL, self._lease / 3, seconds_of(poll, "poll"))
        self._declared = None if redelivery_window is None else seconds_of(redelivery_window, "redelivery_window")
        self._client = Service("sqs", region, endpoint, seconds_of(timeout, "timeout"))
        self._kept: dict[str, float] = {}
        self._urls: dict[str, str] = {}
        self._receipts = {name: Receipts(self._lease) for name in self._queues}
        self._shelf = LaneQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning = SingleFlight(self._begin)
        self._arrived, self._room, self._leaving = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def redelivery_window(self) -> float | None:
        """For how many seconds after it was published a message may be handed out again; None: unknown."""
        if self._declared is not None:
            return self._declared
        return max(self._kept.values()) if self._kept and all(self._kept.values()) else None

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages, in the order of their queues; waits so many seconds for the first one.

        Raises `botocore.exceptions.ClientError` or `BotoCoreError`, `OSError` or `TimeoutError` when the service cannot
        be reached, or refuses, as for a queue that is missing; the next call tries again. Raises `ConfigurationError`
        without credentials or region.
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
            wakes = self._shelf.wakes()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(deadline, now + _LOOK, deadline if wakes is None else wakes)):
                    await self._arrived.wait()

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Delete them. What cannot be deleted is delivered again, which is harmless."""
        handles: dict[str, list[str]] = {}
        for delivery in deliveries:
            self._shelf.settle(delivery)
            self._receipts[delivery.partition].settle(delivery.tag.handle)
            handles.setdefault(delivery.partition, []).append(delivery.tag.handle)
        self._room.set()
        await self._tell_of("delete_message_batch", handles)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Hand it out again after so many seconds, and before what follows it in its lane."""
        self._shelf.give_back(delivery, asyncio.get_running_loop().time() + delay)
        self._arrived.set()

    async def aclose(self) -> None:
        """Hang up; what is not settled is visible to others at once. Waits for the end of polls.

        The service goes on with a poll whose caller has gone, and what it then hands out is invisible for the lease.
        """
        await self._beginning.aclose()
        self._leaving.set()
        self._room.set()
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks, return_exceptions=True)
        handles = {queue: receipts.clear() for queue, receipts in self._receipts.items()}
        self._shelf.clear()
        await self._tell_of("change_message_visibility_batch", handles, VisibilityTimeout=0)
        await self._client.aclose()

    def _forget_lapsed(self, now: float) -> None:
        """Hand out nothing more of a queue when another consumer may have what comes before: it is received again."""
        for queue, receipts in self._receipts.items():
            if receipts.lapsed(now):
                receipts.clear()
                self._shelf.forget(queue)
                self._room.set()

    def _look(self) -> None:
        """Raise what has failed."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        for task in self._tasks:
            if task.done():
                task.result()

    # ------------------------------------------------------------ tasks

    async def _begin(self) -> None:
        """Look up the queues, and begin to poll them."""
        for name in self._queues:
            url = (await self._client.call("get_queue_url", QueueName=name))["QueueUrl"]
            told = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
            self._urls[name], self._kept[name] = url, float(told.get("Attributes", {}).get(_KEPT, 0))
        self._tasks = [asyncio.create_task(self._poll(name), name=f"retrysafe-poll {name}") for name in self._queues]
        self._tasks.append(asyncio.create_task(self._keep(), name="retrysafe-keep"))

    async def _poll(self, queue: str) -> None:
        """Receive messages for as long as there is room."""
        while not self._leaving.is_set():
            self._room.clear()
            if not self._has_room(queue):
                await self._room.wait()
                continue
            try:
                await self._receive(queue)
            except FAILURES as error:
                self._failure = error
                self._arrived.set()
                await self._pause(_PAUSE)

    async def _receive(self, queue: str) -> None:
        wait = int(self._poll_for)
        asked = asyncio.get_running_loop().time()
        answer = await self._client.call(
            "receive_message",
            patience=wait,
            QueueUrl=self._urls[queue],
            MaxNumberOfMessages=min(_AT_ONCE, self._prefetch - len(self._receipts[queue])),
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._lease,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=_TOLD,
        )
        found = answer.get("Messages", ())
        for message in found:
            tag = Tag(queue, message["ReceiptHandle"])
            redelivered = int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")) > 1
            self._receipts[queue].add(tag.handle, asked)
            self._shelf.put(Delivery(envelope_from(message, self._queues[queue]), tag, queue, redelivered))
        self._arrived.set()
        if not found and not wait:
            await self._pause(self._poll_for)

    def _has_room(self, queue: str) -> bool:
        return len(self._receipts[queue]) < self._prefetch and self._shelf.held_bytes(queue) < self._bytes

    async def _keep(self) -> None:
        """Keep invisible what is held."""
        while not await self._pause(self._lease / 12):
            now = asyncio.get_running_loop().time()
            due = {queue: receipts.due(now) for queue, receipts in self._receipts.items()}
            await self._tell_of("change_message_visibility_batch", due, VisibilityTimeout=self._lease)

    async def _pause(self, seconds: float) -> bool:
        """Wait so long, or until the consumer is closed: whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        return self._leaving.is_set()

    async def _tell_of(self, operation: str, handles: dict[str, list[str]], **more: Any) -> None:
        """Tell the service of messages. What it does not hear, or refuses, lets them be delivered again."""
        calls = [
            self._tell(operation, queue, all_[at : at + _AT_ONCE], **more)
            for queue, all_ in handles.items()
            for at in range(0, len(all_), _AT_ONCE)
        ]
        await asyncio.gather(*calls)

    async def _tell(self, operation: str, queue: str, handles: _Handles, **more: Any) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": handle, **more} for at, handle in enumerate(handles)]
        asked = asyncio.get_running_loop().time()
        with suppress(*FAILURES):
            answer = await self._client.call(operation, QueueUrl=self._urls[queue], Entries=entries)
            self._receipts[queue].keep((handles[int(one["Id"])] for one in answer.get("Successful", ())), asked)
