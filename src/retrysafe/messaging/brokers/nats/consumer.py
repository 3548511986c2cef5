"""NATS JetStream: each partition has one consumer of a group at a time, and its messages are settled one by one."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.consumer import AssignedConsumer, ConsumerSession, names_of
from retrysafe.messaging.brokers.nats.connecting import LOST, NatsLink, connect
from retrysafe.messaging.brokers.nats.messages import subject_of
from retrysafe.messaging.brokers.nats.pinned import GROUP, PinnedPartition
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.nats.topology import declare
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration

_TEND = 0.05
"""Seconds between two looks at partitions that are being taken over; others are looked at when something happens."""
_COUNT = 5.0
"""Seconds between two looks whether the stream has lost messages."""
_NAME = "retrysafe.consumer"
_OLDEST = (2, 11)
"""The first version of the server that pins clients."""


class NatsConsumer(AssignedConsumer["_NatsSession"]):
    """Takes messages from the subjects of topics, for a group: a durable consumer of the stream for each partition.

    A partition has one consumer of the group at a time, and another one when that one is gone for as long as the lease,
    or hangs up. A message that is given back stays with this consumer: it and what follows it in its lane are handed
    out when the time has come, other lanes go on. While it is handled, however long, the server is told so.

    Needs NATS 2.11 or later. Declare the stream before, with `retrysafe.messaging.brokers.nats.declare`; the durable
    consumers are made when they are not there, from the first message that the stream has.

    Arguments:
        url: of the server, such as "nats://user:password@host:4222", or of several of a cluster, separated by commas.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory".
        partitions: over how many subjects each topic is spread, as its publishers were told.
        prefix: of the subjects, as its publishers were told.
        prefetch: how many messages of a partition are received and not settled. Those that wait for a retry count
            a tenth.
        prefetch_bytes: how many bytes of them; a message that is larger comes alone.
        lease: for how long a partition stays with a consumer that is dead or cut off.
        redelivery_window: for how long after it was published a message may be handed out again; by default for as long
            as the stream keeps it, which is read when it is first connected.
        credentials: a file of NATS credentials (.creds).
        timeout: how long the server may take to answer.
        observers: receive an event when messages were removed from the stream, by a purge or by their age, before this
            consumer had received them; by default a `LoggingObserver`. They are counted while it runs.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str,
        partitions: int | None = None,
        prefix: str = "",
        prefetch: int = 200,
        prefetch_bytes: int = 16 << 20,
        lease: Duration = "15s",
        redelivery_window: Duration | None = None,
        credentials: str | None = None,
        timeout: Duration = "10s",
        observers: Iterable[Observer] | None = None,
    ) -> None:
        names = names_of(topics, prefetch, prefetch_bytes, group)
        held_for, within = seconds_of(lease, "lease"), seconds_of(timeout, "timeout")
        places = [place for topic in names for place in partitions_of(topic, partitions)]
        durables = {
            place: PinnedPartition(place, f"{_quote(group)}-{_quote(prefix + place)}", held_for) for place in places
        }
        watching = Observers((LoggingObserver(),) if observers is None else observers)

        def new_session() -> _NatsSession:
            limits = prefetch, prefetch_bytes
            return _NatsSession(url, credentials, durables, prefix, group, limits, held_for, within, watching)

        super().__init__(new_session, redelivery_window)


class _NatsSession(ConsumerSession):
    """A connection. The partitions outlive it, so that what the stream has lost is counted over several connections."""

    _connection: NatsLink | None = None

    def __init__(
        self,
        url: str,
        credentials: str | None,
        partitions: Mapping[str, PinnedPartition],
        prefix: str,
        group: str,
        limits: tuple[int, int],
        lease: float,
        timeout: float,
        observers: Observers,
    ) -> None:
        super().__init__(*limits)
        self._url, self._credentials, self._partitions, self._prefix = url, credentials, partitions, prefix
        self._group, self._lease, self._timeout, self._observers = group, lease, timeout, observers
        self._max_ages: dict[str, float] = {}
        self._listening: dict[str, Subscription] = {}
        self._shares_at = self._counts_at = 0.0

    async def open(self) -> None:
        connection = self._connection = await connect(self._url, self._credentials, self._timeout)
        version = connection.client.connected_server_version
        if (version.major, version.minor) < _OLDEST:
            raise ConfigurationError(f"NATS is {version}, and one consumer of a group at a time needs 2.11.")
        streams = connection.client.jetstream(timeout=self._timeout)
        with connection.explaining():
            for partition in random.sample(list(self._partitions.values()), len(self._partitions)):
                await self._subscribe(connection, streams, partition)
        self.redelivery_window = max(self._max_ages.values()) if all(self._max_ages.values()) else None
        self._tasks = [asyncio.create_task(self._tend(connection), name="retrysafe-nats")]

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open and not self._tasks[0].done()

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        last: dict[str, str] = {}
        told: list[str] = []
        now = asyncio.get_running_loop().time()
        for delivery in deliveries:
            self._lanes.settle(delivery)
            reply = self._partitions[delivery.partition].settle(delivery.tag, now)
            if reply is None:
                continue
            if delivery.partition in last:
                told.append(last[delivery.partition])
            last[delivery.partition] = reply
        self._room.set()
        connection = self._connection
        if connection is None or not last:
            return
        try:
            for reply in told:
                await connection.client.publish(reply, b"+ACK")
            confirms = (connection.request(reply, b"+ACK", self._timeout) for reply in last.values())
            await asyncio.gather(*confirms)  # the server works off what it is told of a consumer in its order
        except LOST:
            if not connection.is_open:
                await self._hang_up()

    @property
    def assigned(self) -> Collection[str]:
        return [place for place, one in self._partitions.items() if one.pin and place not in self._leaving]

    async def lag(self) -> Mapping[str, int]:
        if (connection := self._connection) is None:
            return {}
        found = {}
        for place, partition in self._partitions.items():
            info = await _ask_jetstream(connection, f"CONSUMER.INFO.{partition.address}", self._timeout)
            found[place] = info["num_pending"] + info["num_ack_pending"]
        return found

    async def close(self) -> None:
        """Hang up; what is not settled goes to the next consumers of the partitions."""
        connection = self._connection
        if connection is not None and connection.is_open:
            with suppress(*LOST):
                async with asyncio.timeout(self._timeout):
                    for place in self._listening:  # not all, if one could not be subscribed to
                        await self._hand_over(connection, self._partitions[place])
        await self._hang_up()

    async def _subscribe(self, connection: NatsLink, streams: JetStreamContext, partition: PinnedPartition) -> None:
        """Make the durable consumer, if it is not there, and listen to what it hands out."""
        subject = subject_of(self._prefix, partition.place)
        try:
            stream = await streams.find_stream_name_by_subject(subject)
        except NotFoundError as error:
            command = f"{declaring()} --stream STREAM"
            raise QueueMissing(f"NATS has no stream with the subject {subject!r}: declare it:  {command}") from error
        self._max_ages[stream] = (await streams.stream_info(stream)).config.max_age or 0.0
        nanoseconds = int(self._lease * 1e9)
        config = {
            "durable_name": partition.durable,
            "name": partition.durable,
            "filter_subject": subject,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": nanoseconds,
            "max_deliver": -1,
            "max_ack_pending": -1,
            "priority_groups": [GROUP],
            "priority_policy": "pinned_client",
            "priority_timeout": nanoseconds,
        }
        making = f"CONSUMER.CREATE.{stream}.{partition.durable}"
        await _ask_jetstream(connection, making, self._timeout, stream_name=stream, config=config)
        partition.address = f"{stream}.{partition.durable}"
        await self._listen(connection, partition)

    async def _listen(self, connection: NatsLink, partition: PinnedPartition) -> None:
        inbox = connection.client.new_inbox()
        listening = partial(self._take_in, connection, partition)
        self._listening[partition.place] = await connection.client.subscribe(f"{inbox}.*", cb=listening)
        partition.reconnect(inbox)

    async def _take_in(self, connection: NatsLink, partition: PinnedPartition, message: Msg) -> None:
        if self._connection is not connection:
            return
        delivery, given_up = partition.arrive(message, asyncio.get_running_loop().time())
        if given_up:
            self._lanes.forget(partition.place)
            for reply in given_up:
                await connection.client.publish(reply, b"-NAK")
        if delivery is not None:
            self._lanes.put(delivery)
            self._arrived.set()
        if delivery is None or partition.is_idle:
            self._room.set()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._arrived.set()
        for partition in self._partitions.values():
            partition.give_up()
        await self._end_tasks()
        if connection is not None:
            await connection.close()

    # ------------------------------------------------------------ partitions

    async def _tend(self, connection: NatsLink) -> None:
        """Ask for messages, take partitions over, and keep what is held, for as long as the connection lasts."""
        while connection.is_open:
            self._room.clear()
            taking_over = False
            for partition in self._partitions.values():
                await self._tend_partition(connection, partition)
                if partition.is_taking_over:
                    await self._take_over(connection, partition)
                    taking_over = True
            await self._share(connection)
            await self._count(connection)
            if taking_over:
                await asyncio.sleep(_TEND)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 6):
                    await self._room.wait()

    async def _tend_partition(self, connection: NatsLink, partition: PinnedPartition) -> None:
        now = asyncio.get_running_loop().time()
        if partition.is_gone:
            await connection.close()
            return
        if partition.give_up_lapsed(now):
            self._lanes.forget(partition.place)
        for reply in list(partition.in_progress(now)):
            await connection.client.publish(reply, b"+WPI")
        spared = self._lanes.count_spared(partition.place)
        if (asked := partition.request(now, self._prefetch, self._bytes, spared)) is not None:
            answers, request = asked
            await connection.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{partition.address}", request, reply=answers)

    async def _take_over(self, connection: NatsLink, partition: PinnedPartition) -> None:
        held, turn = len(partition.held), partition.turn
        info = await _ask_jetstream(connection, f"CONSUMER.INFO.{partition.address}", self._timeout)
        if self._connection is connection:
            for delivery in partition.own(info["num_ack_pending"], held, turn):
                self._lanes.put(delivery)
            self._arrived.set()

    async def _share(self, connection: NatsLink) -> None:
        """Leave partitions to others that wait, when more than a fair share of all are ours."""
        now = asyncio.get_running_loop().time()
        for place in [place for place in self._leaving if not self._lanes.out(place)]:
            self._partitions[place].rests_until = now + self._lease
            await self._hand_over(connection, self._partitions[place])
            await self._listen(connection, self._partitions[place])
            self._leaving.discard(place)
        ours = [partition for partition in self._partitions.values() if partition.pin]
        if len(ours) < 2 or self._leaving or now < self._shares_at:
            return
        self._shares_at = now + self._lease / 6
        info = await _ask_jetstream(connection, f"CONSUMER.INFO.{ours[-1].address}", self._timeout)
        others = info["num_waiting"] - (not ours[-1].is_idle)
        if others > 0:
            share = math.ceil(len(self._partitions) / (others + 1))
            self._leaving.update(partition.place for partition in ours[share:])

    async def _count(self, connection: NatsLink) -> None:
        """Tell of messages that the stream has lost before they were handed out."""
        now = asyncio.get_running_loop().time()
        if now < self._counts_at:
            return
        self._counts_at = now + _COUNT
        for partition in [one for one in self._partitions.values() if one.pin]:
            info = await _ask_jetstream(connection, f"CONSUMER.INFO.{partition.address}", self._timeout)
            if removed := partition.count_removed(info["delivered"]["consumer_seq"], info["num_pending"]):
                fields = {"stream": partition.place, "group": self._group, "messages": removed}
                self._observers.emit("messages_trimmed", _NAME, "", b"", "", fields)

    async def _hand_over(self, connection: NatsLink, partition: PinnedPartition) -> None:
        """Let another consumer have a partition at once, instead of after the lease.

        What was asked for must not be open any more when messages are given back: the server would give them to it.
        """
        await self._listening[partition.place].drain()  # type: ignore[no-untyped-call]
        pin = partition.pin
        self._lanes.forget(partition.place)
        for reply in partition.give_up():
            await connection.client.publish(reply, b"-NAK")
        if pin:
            await _ask_jetstream(connection, f"CONSUMER.UNPIN.{partition.address}", self._timeout, group=GROUP)


async def _ask_jetstream(connection: NatsLink, what: str, patience: float, **body: Any) -> dict[str, Any]:
    """The answer of JetStream. Raises `nats.errors.Error` when it refuses."""
    answer = await connection.request(f"$JS.API.{what}", json.dumps(body).encode(), patience)
    said: dict[str, Any] = json.loads(answer.data)
    if "error" in said:
        raise APIError.from_error(said["error"])
    return said


def _quote(name: str) -> str:
    """A name as that of a durable consumer, in which no two names are alike."""
    return "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in name)


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """A stream of our name, which keeps the subjects that begin with it. Consumers make what is a group's."""
    shared: dict[str, Any] = {"prefix": f"{name}.", "partitions": partitions}
    return Broker(
        lambda topics, _: declare(url, topics, stream=name, **shared),
        lambda: NatsPublisher(url, **shared),
        lambda topic, group: NatsConsumer(url, topic, group=group, lease=lease, **shared),
    )
