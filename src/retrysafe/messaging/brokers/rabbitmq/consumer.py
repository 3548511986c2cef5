"""RabbitMQ: messages are settled one by one, and nothing is ever sent back to a queue, which would lose its order."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

import aio_pika
from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity
from aiormq import Channel as Wire
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelAccessRefused

from retrysafe.cancellation import is_cancelled
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.amqp_binding import envelope_from
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.consumer import ConsumerSession, LaggingConsumer
from retrysafe.messaging.brokers.outstanding import Outstanding
from retrysafe.messaging.brokers.rabbitmq.connecting import connect
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import DECLARE, declare, members_of, queue_of
from retrysafe.messaging.brokers.rabbitmq.undecodable import DecodingConnection
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery, Envelope
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration

_LOST = (AMQPError, OSError, RuntimeError, TimeoutError)
"""Errors of a lost connection; a closed channel raises a RuntimeError."""
_MOST_UNCONFIRMED = 65535
_SHARE = 2.5
"""Seconds between two looks whether other consumers wait for queues of which we have more than our share."""
_LEAVE_WITHIN = 5.0
"""Seconds for which a queue that others are to have is kept, until what was handed out of it is settled."""


class FrameTag(NamedTuple):
    """A delivery of one channel: a later channel knows nothing of it, and numbers its own."""

    wire: Wire
    queue: str
    number: int


class RabbitMQConsumer(LaggingConsumer["_RabbitMQSession"]):
    """Takes messages from the queues of topics; declare them before, with
    `retrysafe.messaging.brokers.rabbitmq.declare`.

    A queue with a single active consumer is handed out in order, to one of all the consumers that wait for it. A
    message that is given back stays with this consumer, unsettled: it and what follows it in its lane are handed out
    when the time has come, other lanes go on. Consumers that have the same partitions share them out: one with more
    than its share of queues with messages leaves some to the others that wait for them, within seconds. When the
    connection is lost, the broker hands out again what was not settled, and the next `receive` connects anew; what was
    handed out before can then no longer be settled here.

    Arguments:
        url: of the broker, as in "amqp://user:password@host/".
        topics: one or more.
        partitions: over how many queues each topic is spread; its publishers need the same number.
        only_partitions: the numbers of the partitions to take part in, as in 0,1 (default: all).
        group: the service whose queues are consumed, as in `declare`: each group gets every message. By default
            there is one queue for all, and each message reaches one consumer.
        prefetch: how many messages of a queue are received and not settled, in memory. RabbitMQ counts those that wait
            for a retry too: when so many wait, the queue comes to rest.
        redelivery_window: for how long after it was published a message may be handed out again; by default it is
            unknown, since a queue keeps messages until a consumer takes them.
        timeout: how long the broker may take to answer.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        partitions: int | None = None,
        only_partitions: Iterable[int] | None = None,
        group: str | None = None,
        prefetch: int = 1000,
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        if not 1 <= prefetch <= _MOST_UNCONFIRMED:
            raise ConfigurationError(f"prefetch= is a number from 1 to {_MOST_UNCONFIRMED}.")
        within, names = seconds_of(timeout, "timeout"), [topics] if isinstance(topics, str) else [*topics]
        group = group or None
        shares = partitions is not None and only_partitions is None
        members = [members_of(name, group) for name in names] if shares else []
        queues = [queue_of(place, group) for place in queues_of(names, partitions, only_partitions)]
        super().__init__(lambda: _RabbitMQSession(url, queues, members, prefetch, within), redelivery_window)


class _RabbitMQSession(ConsumerSession):
    """A connection, with a channel for each queue. A wire is the channel of aiormq inside one of aio-pika."""

    _connection: AbstractConnection | None = None

    def __init__(self, url: str, queues: Sequence[str], members: Sequence[str], prefetch: int, timeout: float) -> None:
        super().__init__(prefetch)
        self._url, self._queues, self._members, self._timeout = url, queues, members, timeout
        self._wires: dict[str, Wire] = {}
        self._consumer_tags: dict[str, str] = {}
        self._settling = asyncio.Lock()
        self._subscribing: set[asyncio.Task[None]] = set()
        self._outstanding: defaultdict[str, Outstanding] = defaultdict(Outstanding)
        self._is_lost = False

    async def open(self) -> None:
        async with asyncio.timeout(self._timeout):
            kind = DecodingConnection if self.failures else aio_pika.Connection
            connection = self._connection = await connect(self._url, connection_class=kind)
        await self._subscribe_to_all(connection)
        self._subscribing.add(asyncio.create_task(self._share_out(connection), name="retrysafe-share"))

    @property
    def is_open(self) -> bool:
        """True while messages can come: deleting a queue removes its consumer tag, and nothing else shows it."""
        return (
            not self._is_lost
            and bool(self._consumer_tags)
            and not any(wire.is_closed for wire in self._wires.values())
            and all(tag in self._wires[queue].consumers for queue, tag in self._consumer_tags.items())
        )

    async def wait(self, until: float) -> None:
        await super().wait(until)
        await asyncio.sleep(0)  # messages read from the socket together are taken together

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        async with self._settling:
            ours = [delivery.tag for delivery in deliveries if self._lanes.settle(delivery)]
            if ours:
                await self._send_acks(ours)

    async def _send_acks(self, ours: Sequence[FrameTag]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                *frames, last = self._acks(ours)
                for wire, number, multiple in frames:
                    await wire.basic_ack(number, multiple=multiple, wait=False)
                wire, number, multiple = last
                await wire.basic_ack(number, multiple=multiple)
        except (*_LOST, asyncio.CancelledError) as error:  # of a frame's future, when a channel is closed
            await self.close()
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise

    def _acks(self, tags: Iterable[FrameTag]) -> Iterator[tuple[Wire, int, bool]]:
        """The frames that settle these: a channel, a number, and whether it stands for all below it."""
        settled: defaultdict[str, list[int]] = defaultdict(list)
        for tag in tags:
            settled[tag.queue].append(tag.number)
        for queue, numbers in settled.items():
            upto, others = self._outstanding[queue].settle(numbers)
            yield from ((self._wires[queue], number, False) for number in others)
            if upto is not None:
                yield self._wires[queue], upto, True

    def _has_room(self, partition: str) -> bool:
        return self._lanes.count(partition) < self._prefetch  # the broker counts those that wait for a retry

    async def lag(self) -> Mapping[str, int]:
        """Count the messages of each queue there and here; asked in a channel that a refusal may close."""
        if (connection := self._connection) is None:
            return {}
        async with asyncio.timeout(self._timeout):
            channel = connection.channel()
            await channel.initialize()
            try:
                wire = cast(Wire, await channel.get_underlay_channel())
                answers = {queue: await wire.queue_declare(queue, passive=True) for queue in self._queues}
            finally:
                await channel.close()
        return {queue: (one.message_count or 0) + len(self._outstanding[queue]) for queue, one in answers.items()}

    async def close(self) -> None:
        self._is_lost = True
        self._arrived.set()
        connection, self._connection = self._connection, None
        subscribing, self._subscribing = self._subscribing, set()
        for task in subscribing:
            task.cancel()
        await asyncio.gather(*subscribing, return_exceptions=True)
        if connection is not None:
            with suppress(*_LOST):
                async with asyncio.timeout(self._timeout):
                    await connection.close()

    async def _subscribe_to_all(self, connection: AbstractConnection) -> None:
        """Wait for the queues that answer; one that has no leader just now is consumed as soon as it has one."""
        tasks = {
            asyncio.create_task(self._subscribe(connection, queue), name=f"retrysafe-consume {queue}")
            for queue in random.sample(self._queues, len(self._queues))
        }
        self._subscribing = tasks
        done, _ = await asyncio.wait(tasks, timeout=self._timeout, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        if not done:
            raise TimeoutError(f"RabbitMQ has answered for none of {len(tasks)} queues in {self._timeout} seconds.")
        for task in tasks - done:
            task.add_done_callback(self._on_late_subscribe)

    async def _subscribe(self, connection: AbstractConnection, queue: str) -> None:
        """In a channel of its own: the broker answers what is asked in one channel in turn."""
        channel = connection.channel()
        await channel.initialize()
        await channel.set_qos(self._prefetch)
        channel.close_callbacks.add(self._wake)
        wire = cast(Wire, await channel.get_underlay_channel())
        self._wires[queue] = wire
        try:
            answer = await wire.basic_consume(queue, partial(self._take_in, wire, queue))
        except ChannelNotFoundEntity as error:
            raise QueueMissing(f"RabbitMQ has no queue {queue!r}: {DECLARE}, and its group and partitions.") from error
        if answer.consumer_tag is not None:
            self._consumer_tags[queue] = answer.consumer_tag

    def _on_late_subscribe(self, task: asyncio.Task[None]) -> None:
        """A failure closes its channel, and so the next `receive` connects again; here it is only taken note of."""
        if not task.cancelled():
            task.exception()
        self._wake()

    async def _take_in(self, wire: Wire, queue: str, message: DeliveredMessage) -> None:
        if wire is self._wires.get(queue) and message.delivery_tag is not None:
            tag = FrameTag(wire, queue, message.delivery_tag)
            self._outstanding[queue].arrive(tag.number)
            self._lanes.put(Delivery(_envelope(message, queue), tag, queue, bool(message.redelivered)))
            self._arrived.set()

    # ------------------------------------------------------------ sharing

    async def _share_out(self, connection: AbstractConnection) -> None:
        """At intervals, leave queues to those who wait for them, when more than our share have messages for us.

        Queues with a single active consumer do not tell how many wait. So consumers are counted in queues of their own,
        in which there are no messages. Without them, as where an earlier version has declared the queues, none is left.
        """
        channel = connection.channel()
        await channel.initialize()
        wire = cast(Wire, await channel.get_underlay_channel())
        with suppress(ChannelNotFoundEntity, ChannelAccessRefused):
            for name in self._members:
                await wire.basic_consume(name, _ignore)
            while self._members:
                await asyncio.sleep(_SHARE)
                ours = [queue for queue in self._queues if len(self._outstanding[queue])]
                if len(ours) > 1:
                    found = [await wire.queue_declare(name, passive=True) for name in self._members]
                    rivals = max(one.consumer_count or 1 for one in found)
                    if extra := len(ours[math.ceil(len(self._queues) / rivals) :]):
                        await self._leave(connection, ours[-extra:])

    async def _leave(self, connection: AbstractConnection, queues: Sequence[str]) -> None:
        """Let the next consumer have queues, and wait for them again behind the others.

        Their channels are closed: a subscription that is cancelled lets the next one have what follows our messages.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _LEAVE_WITHIN
        self._leaving.update(queues)
        while loop.time() < until and any(self._lanes.out(queue) for queue in queues):  # noqa: ASYNC110 - or time is over
            await asyncio.sleep(_LEAVE_WITHIN / 100)
        async with self._settling:
            wires = [self._wires.pop(queue) for queue in queues]
            for queue in queues:
                self._lanes.forget(queue)
                del self._outstanding[queue], self._consumer_tags[queue]
            await asyncio.gather(*(wire.close() for wire in wires))
        try:
            for queue in queues:
                await self._subscribe(connection, queue)
        except BaseException:
            self._consumer_tags.clear()  # the next `receive` connects anew
            raise
        self._leaving.difference_update(queues)

    def _wake(self, *_: object) -> None:
        self._arrived.set()


async def _ignore(_: object) -> None:
    """There are no messages where consumers are counted."""


def queues_of(topics: Sequence[str], partitions: int | None, only_partitions: Iterable[int] | None) -> list[str]:
    """The places of topics; of each only the partitions with these numbers."""
    chosen = None if only_partitions is None else set(only_partitions)
    if not topics:
        raise ConfigurationError("topics= is empty: give the topics to consume.")
    if chosen is not None and not (partitions is not None and chosen and chosen <= set(range(partitions))):
        raise ConfigurationError("only_partitions= takes numbers of partitions, from 0 to partitions= less one.")
    return [
        place
        for topic in topics
        for number, place in enumerate(partitions_of(topic, partitions))
        if chosen is None or number in chosen
    ]


def _envelope(message: DeliveredMessage, queue: str) -> Envelope:
    properties = message.header.properties
    own = {
        "id": properties.message_id,
        "type": properties.message_type,
        "source": properties.app_id,
        "datacontenttype": properties.content_type,
    }
    return envelope_from(properties.headers or {}, own, message.body, queue)


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """An exchange of our name, to which each group's queues are bound. The broker sees when a consumer is gone."""
    return Broker(
        lambda topics, group: declare(url, topics, partitions=partitions, exchange=name, group=f"{name}.{group}"),
        lambda: RabbitMQPublisher(url, exchange=name, partitions=partitions),
        lambda topic, group: RabbitMQConsumer(url, topic, partitions=partitions, group=f"{name}.{group}"),
    )
