"""MQTT 5: a group has a session for each topic, which one consumer uses at a time; messages are settled one by one."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.consumer import BrokerConsumer, ConsumerSession
from retrysafe.messaging.brokers.mqtt.connecting import (
    LOST,
    MOST_IN_FLIGHT,
    TAKEN_OVER,
    ConnectionEnded,
    MqttLink,
    Server,
    address_of,
    properties,
)
from retrysafe.messaging.brokers.mqtt.messages import Packet, envelope_from
from retrysafe.messaging.brokers.mqtt.owners import Owners
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.mqtt.topology import Session, declare, expiry_of, sessions_of
from retrysafe.messaging.brokers.single_flight import SingleFlight
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration

_AGAIN = Backoff(base=0.1, cap=5.0)
"""The pauses before it reconnects, when connections fail or end as soon as they are there."""
_LASTING = 5.0
"""Seconds after which a connection has not ended at once."""


class SessionMissing(OSError):
    """The broker has no such session: it was never declared, or it expired, with all that it had."""


class PacketTag(NamedTuple):
    """A message as it was received once: another one may have its packet id later."""

    connection: MqttLink
    number: int
    packet: int


class MqttConsumer(BrokerConsumer["_MqttSessions"]):
    """Takes messages of topics for a group, from its sessions. Make them before, with `declare` of this package.

    A session has one consumer at a time, so that messages of a key keep their order; the others stand by, and one of
    them goes on with it when the consumer is closed, or has not been heard of for the lease. Shared subscriptions
    (``$share/…``) are not used: they hand messages of one key to several consumers at the same time. A message that is
    given back stays with this consumer: it and what follows it in its lane are handed out when the time has come, other
    lanes go on. What is not settled is sent again by the broker when the connection is made anew.

    Arguments:
        url: of the broker, as for `MqttPublisher`.
        topics: one or more, without wildcards.
        group: the consumers that together take each message once, as `declare` was told.
        prefix: of the topics, as publishers were told.
        partitions: over how many topics each topic is spread, as publishers were told. Each has a session.
        prefetch: how many messages of a session are received and not settled (Receive Maximum). Brokers count those
            that wait for a retry too: when so many wait, the session comes to rest. Many send fewer (Mosquitto 20,
            unless its ``max_inflight_messages`` is raised). MQTT counts messages and not bytes: so many of the largest
            that the broker takes must fit into memory, for each session.
        keep: for how long the broker keeps a session without a consumer; then all that it had is lost.
        lease: for how long a consumer that is not heard of any more keeps its sessions, in whole seconds.
        redelivery_window: for how long after it was published a message may be handed out again. The broker sets no
            limit to that, so it is unknown by default.
        timeout: how long the broker may take to answer.

    Raises `ConfigurationError` for a URL that is none of MQTT, and for names that no topic has.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str,
        prefix: str = "",
        partitions: int | None = None,
        prefetch: int = 1000,
        keep: Duration | None = "7d",
        lease: Duration = "15s",
        redelivery_window: Duration | None = None,
        timeout: Duration = "10s",
    ) -> None:
        if not 1 <= prefetch <= MOST_IN_FLIGHT:
            raise ConfigurationError(f"prefetch= is a number from 1 to {MOST_IN_FLIGHT}.")
        address, expiry = address_of(url), expiry_of(keep)
        sessions = sessions_of(topics, group=group, prefix=prefix, partitions=partitions)
        held_for, within = seconds_of(lease, "lease"), seconds_of(timeout, "timeout")
        super().__init__(
            lambda: _MqttSessions(address, sessions, prefetch, expiry, held_for, within), redelivery_window
        )


class _MqttSessions(ConsumerSession):
    """The sessions of the group that are ours, each with a connection, and one to hear of the others."""

    _owners: Owners | None = None

    def __init__(
        self, address: Server, sessions: Sequence[Session], prefetch: int, keep: int, lease: float, timeout: float
    ) -> None:
        super().__init__(prefetch)
        self._address, self._sessions, self._keep, self._lease = address, sessions, keep, lease
        self._timeout = timeout
        self._open: dict[str, MqttLink] = {}
        self._numbers = itertools.count()
        self._listening = SingleFlight(self._listen)

    async def open(self) -> None:
        await self._listening()
        self._tasks = [asyncio.create_task(self._use(one), name=f"retrysafe {one.name}") for one in self._sessions]
        self._tasks.append(asyncio.create_task(self._tell(), name="retrysafe-owners"))

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        told: set[MqttLink] = set()
        for delivery in deliveries:
            if self._lanes.settle(delivery) and delivery.tag.packet:
                delivery.tag.connection.acknowledge(delivery.tag.packet)
                told.add(delivery.tag.connection)
        for connection in told:
            with suppress(*LOST):
                await connection.flush(self._timeout)

    def _has_room(self, partition: str) -> bool:
        return self._lanes.count(partition) < self._prefetch  # the broker counts those that wait for a retry

    async def close(self) -> None:
        """Hang up; another consumer goes on with the sessions at once."""
        await self._listening.aclose()
        await self._end_tasks()
        left = list(self._open)
        await asyncio.gather(*(self._give_up(name) for name in left))
        owners, self._owners = self._owners, None
        if owners is not None:
            with suppress(*LOST):
                await owners.leave(left)
            await owners.close()

    async def _listen(self) -> None:
        if self._owners is not None and self._owners.is_open:
            return
        owners, self._owners = self._owners, None
        if owners is not None:
            await owners.close()
        names = [one.name for one in self._sessions]
        self._owners = await Owners.open(self._address, names, lease=self._lease, patience=self._timeout)

    async def _use(self, session: Session) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            began = loop.time()
            try:
                connection = await self._take(session)
                await connection.lost.wait()
                failure: BaseException | None = self._explain(session, connection.why)
            except (*LOST, ConfigurationError) as error:
                failure = error
            await self._give_up(session.name)
            self._failure = failure or self._failure
            self.is_failing = failure is not None
            self._arrived.set()
            failures = 0 if loop.time() > began + _LASTING else failures + 1
            await asyncio.sleep(_AGAIN.delay(failures, random.random()))

    async def _take(self, session: Session) -> MqttLink:
        while True:
            await self._listening()
            owners = self._owners
            if owners is None:
                raise ConnectionEnded("the consumer is closed")
            if owners.is_free(session.name) and await owners.take(session.name):
                break
            await owners.until_changed(self._lease / 3)
        connection = await MqttLink.open(
            self._address,
            client_id=session.name,
            keep=self._keep,
            patience=self._timeout,
            receive=self._prefetch,
            received=partial(self._put, session),
        )
        if not connection.session_present:  # made anew, and given up at once: publishers are told of no subscriber
            await connection.close(self._timeout, keep=0)
            raise SessionMissing(
                f"The broker has no session {session.name!r}: it expired, with what it had, or was never declared. "
                f"Declare it:  {declaring(group='GROUP')}"
            )
        self._open[session.name] = connection
        self.is_failing = False
        return connection

    def _explain(self, session: Session, why: ConnectionEnded) -> ConnectionEnded | None:
        """Why a connection was lost, in words of the session; None when another consumer goes on with it."""
        if why.code != TAKEN_OVER:
            return why
        if self._owners is not None and not self._owners.is_free(session.name):
            return None
        return ConnectionEnded(
            f"Another client has taken the session {session.name!r}: it connected with the same client id.", why.code
        )

    def _put(self, session: Session, connection: MqttLink, message: MQTTMessage) -> None:
        """Keep what has come; by a connection that is lost, it comes again."""
        if not connection.is_open:
            return
        content = Packet(bytes(message.payload), message.properties or properties(PacketTypes.PUBLISH))
        tag = PacketTag(connection, next(self._numbers), message.mid)
        self._lanes.put(Delivery(envelope_from(content, session.place), tag, session.name, message.dup))
        self._arrived.set()

    async def _tell(self) -> None:
        """Say again and again which sessions are ours."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self._listening()
                if self._owners is not None and self._open:
                    await self._owners.claim(list(self._open))
            except (*LOST, ConfigurationError) as error:
                self._fail(error)

    async def _give_up(self, name: str) -> None:
        """Hang up; what is not settled of the session is handed out again, to its next user."""
        connection = self._open.pop(name, None)
        if connection is not None:
            await connection.close(self._timeout)
        self._lanes.forget(name)


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics that begin with our name, with a session for each group."""
    shared: dict[str, Any] = {"prefix": f"{name}/", "partitions": partitions}
    return Broker(
        lambda topics, group: declare(url, topics, group=group, **shared),
        lambda: MqttPublisher(url, **shared),
        lambda topic, group: MqttConsumer(url, topic, group=group, lease=lease, **shared),
    )
