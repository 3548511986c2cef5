"""Amazon SQS: messages are invisible to others while a consumer holds them, and deleted when they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.messaging.brokers.sqs.client import FAILURES, Service
from retrysafe.messaging.brokers.sqs.messages import envelope_from, name_of
from retrysafe.messaging.brokers.sqs.topology import queue_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_LOOK = 1.0
"""Seconds after which a wait looks whether polling has failed."""
_AT_ONCE = 10
"""How many messages a call concerns at most."""
_LONGEST_POLL = 20
_PAUSE = 0.5
"""Seconds before a poll that follows one that failed."""


class Tag(NamedTuple):
    """A message as it was received once: a later time it has another handle."""

    queue: str
    handle: str


@dataclass
class _Held:
    """What is received and not settled: its size, and since when it is invisible."""

    size: int
    since: float


class SqsConsumer:
    """Takes messages from the queues of topics. Make them before, with `retrysafe.messaging.brokers.sqs.declare`.

    A FIFO queue hands out nothing of a key while a message of it is held, so any number of consumers keep the order of
    keys. A message that is given back stays with this consumer: it and what follows it in its lane are handed out when
    the time has come, other lanes go on. While it is handled it is kept invisible, for 12 hours at most. A queue that
    is not FIFO has no order.

    Arguments:
        topics: one or more.
        group: the service whose queues are consumed, as `declare` was told; by default the one queue of each topic.
        region, endpoint: as for `SqsPublisher`.
        prefix: of the queues' names, as publishers were told.
        ordered: whether queues are FIFO.
        prefetch: how many messages of a queue are received and not settled. As many can wait for lanes that rest before
            the queue comes to rest.
        prefetch_bytes: how many bytes of them; up to ten messages more may be received.
        lease: for how long the messages of a consumer that is dead or cut off stay invisible, from 1 second.
        poll: how long the service waits for messages before it answers that there are none, up to 20 seconds. Each poll
            is a request to be paid.
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
        lease: Duration = "30s",
        poll: Duration = "20s",
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
        self._lease = max(1, round(seconds_of(lease, "lease")))
        self._poll_for = min(_LONGEST_POLL, max(1, round(seconds_of(poll, "poll"))))
        self._declared = None if redelivery_window is None else seconds_of(redelivery_window, "redelivery_window")
        self._client = Service("sqs", region, endpoint, seconds_of(timeout, "timeout"))
        self._kept: dict[str, float] = {}
        self._urls: dict[str, str] = {}
        self._held: dict[str, dict[str, _Held]] = {name: {} for name in self._queues}
        self._shelf = LaneQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived, self._room, self._polled = asyncio.Event(), asyncio.Event(), asyncio.Event()
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
        be reached, or refuses; the next call tries again. Raises `ConfigurationError` without credentials or region.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        await self._begin()
        while True:
            now = loop.time()
            self._arrived.clear()
            if taken := self._shelf.take(limit, now):
                return taken
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
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
            if self._held[delivery.partition].pop(delivery.tag.handle, None) is not None:
                handles.setdefault(delivery.partition, []).append(delivery.tag.handle)
        self._room.set()
        calls = [
            self._told("delete_message_batch", queue, some)
            for queue, all_ in handles.items()
            for some in _portions(all_)
        ]
        await asyncio.gather(*calls)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Hand it out again after so many seconds, and before what follows it in its lane."""
        self._shelf.give_back(delivery, asyncio.get_running_loop().time() + delay)
        self._arrived.set()

    async def aclose(self) -> None:
        """Hang up; what is not settled is visible to others at once."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        calls = [
            self._told("change_message_visibility_batch", queue, some, VisibilityTimeout=0)
            for queue, held in self._held.items()
            for some in _portions(list(held))
        ]
        await asyncio.gather(*calls)
        await self._client.aclose()

    # ------------------------------------------------------------ tasks

    async def _begin(self) -> None:
        """Look up the queues, and begin to poll them."""
        if self._tasks:
            return
        for name in self._queues:
            url = (await self._client.call("get_queue_url", QueueName=name))["QueueUrl"]
            asked = ["MessageRetentionPeriod"]
            told = await self._client.call("get_queue_attributes", QueueUrl=url, AttributeNames=asked)
            self._urls[name], self._kept[name] = url, float(told.get("Attributes", {}).get(asked[0], 0))
        self._tasks = [asyncio.create_task(self._poll(name), name=f"retrysafe-poll {name}") for name in self._queues]
        self._tasks.append(asyncio.create_task(self._keep(), name="retrysafe-keep"))

    async def _poll(self, queue: str) -> None:
        """Receive messages for as long as there is room."""
        while True:
            self._room.clear()
            if not self._has_room(queue):
                await self._room.wait()
                continue
            try:
                await self._receive(queue)
            except (*FAILURES, ConfigurationError) as error:
                self._failure = error
                self._arrived.set()
                await asyncio.sleep(_PAUSE)

    async def _receive(self, queue: str) -> None:
        now = asyncio.get_running_loop().time()
        answer = await self._client.call(
            "receive_message",
            patience=self._poll_for,
            QueueUrl=self._urls[queue],
            MaxNumberOfMessages=min(_AT_ONCE, self._prefetch - len(self._held[queue])),
            WaitTimeSeconds=self._poll_for,
            VisibilityTimeout=self._lease,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        for message in answer.get("Messages", ()):
            envelope = envelope_from(message, self._queues[queue])
            tag = Tag(queue, message["ReceiptHandle"])
            redelivered = int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")) > 1
            self._held[queue][tag.handle] = _Held(envelope.size, max(now, asyncio.get_running_loop().time() - 1))
            self._shelf.put(Delivery(envelope, tag, queue, redelivered))
        self._arrived.set()

    def _has_room(self, queue: str) -> bool:
        held = self._held[queue]
        return len(held) < self._prefetch and self._shelf.held_bytes(queue) < self._bytes

    async def _keep(self) -> None:
        """Keep invisible what is held."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._lease / 6)
            now = loop.time()
            calls = []
            for queue, held in self._held.items():
                due = [handle for handle, one in held.items() if now >= one.since + self._lease / 3]
                for some in _portions(due):
                    for handle in some:
                        held[handle].since = now
                    told = self._told("change_message_visibility_batch", queue, some, VisibilityTimeout=self._lease)
                    calls.append(told)
            await asyncio.gather(*calls)

    async def _told(self, operation: str, queue: str, handles: Sequence[str], **more: Any) -> None:
        """Tell the service of some messages. What it does not hear, or refuses, lets them be delivered again."""
        entries = [{"Id": str(at), "ReceiptHandle": handle, **more} for at, handle in enumerate(handles)]
        with suppress(*FAILURES):
            await self._client.call(operation, QueueUrl=self._urls[queue], Entries=entries)


def _portions(handles: Sequence[str]) -> list[Sequence[str]]:
    return [handles[at : at + _AT_ONCE] for at in range(0, len(handles), _AT_ONCE)]
