"""The owner of each session: consumers announce themselves, again and again, in a retained message that expires.

MQTT lets the newest client have a session, and hangs up on the one before: two consumers that both want it would take
it from each other for ever. So a consumer takes only what no other one claims. What is said decides nothing: that the
broker lets one client at a time have a session does.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterable, Sequence

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from retrysafe.messaging.brokers.mqtt.connecting import ConnectionEnded, MqttLink, Server, properties
from retrysafe.messaging.brokers.mqtt.results import result_of
from retrysafe.protocol.messages import PublishStatus

_ROOM = "retrysafe/"
"""The beginning of the topics in which consumers announce the sessions that they use."""


class Owners:
    """Hears who uses some sessions, and says it. It has a connection of its own."""

    def __init__(self, connection: MqttLink, lease: float, patience: float) -> None:
        self._connection, self._lease, self._patience = connection, lease, patience
        self._name = secrets.token_hex(8)
        self._heard: dict[str, float] = {}
        """The time at which another consumer was last heard of, by session."""
        self._first: dict[str, bool] = {}
        """For each session, True if no claim of another came before our last one."""
        self._listening = asyncio.Event()
        self._changed = asyncio.Event()

    @classmethod
    async def open(cls, address: Server, sessions: Iterable[str], *, lease: float, patience: float) -> Owners:
        """Listen. Raises what `Connection.open` and `Connection.subscribe` raise."""
        connection = await MqttLink.open(address, patience=patience, received=lambda by, one: made._hear(by, one))
        made = cls(connection, lease, patience)
        try:
            async with asyncio.timeout(patience):
                ours = f"{_ROOM}listening/{made._name}"
                await connection.subscribe([_place(one) for one in sessions] + [ours], retained=True)
                # Retained messages are sent before this comes back, in the order of the broker.
                await connection.first_of(await connection.publish(ours, b""))
                await connection.first_of(asyncio.ensure_future(made._listening.wait()))
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def is_free(self, session: str) -> bool:
        """Tell whether no other consumer has claimed it for as long as the lease."""
        last = self._heard.get(session)
        return last is None or asyncio.get_running_loop().time() > last + self._lease

    async def until_changed(self, longest: float) -> None:
        """Wait for a message of another consumer, or for so long. Raises `ConnectionEnded`."""
        self._changed.clear()
        try:
            async with asyncio.timeout(longest):
                await self._connection.first_of(asyncio.ensure_future(self._changed.wait()))
        except TimeoutError:
            return

    async def take(self, session: str) -> bool:
        """Claim a session; False when another consumer has done so before. Raises what `claim` raises.

        What comes back before our own claim, in the broker's order, was there before.
        """
        self._first.pop(session, None)
        await self.claim([session])
        async with asyncio.timeout(self._patience):
            while session not in self._first:
                await self.until_changed(self._patience)
        return self._first[session]

    async def claim(self, sessions: Sequence[str]) -> None:
        """Say that these are ours, for the lease. Raises `ConnectionEnded`, also when the broker does not let us."""
        await self._say(sessions, self._name.encode(), expiry=math.ceil(self._lease))

    async def leave(self, sessions: Sequence[str]) -> None:
        await self._say(sessions, b"")

    async def close(self) -> None:
        await self._connection.close(self._patience)

    async def _say(self, sessions: Sequence[str], text: bytes, expiry: int | None = None) -> None:
        told = None if expiry is None else properties(PacketTypes.PUBLISH, MessageExpiryInterval=expiry)
        said = [await self._connection.publish(_place(one), text, told, retain=True) for one in sessions]
        async with asyncio.timeout(self._patience):
            for one in said:
                result = result_of((await self._connection.first_of(one))[0])
                if result.status is not PublishStatus.ACKED:
                    raise ConnectionEnded(f"Topics below {_ROOM} cannot be used: {result.error}")

    def _hear(self, connection: MqttLink, message: MQTTMessage) -> None:
        if message.mid:
            connection.acknowledge(message.mid)
        session = message.topic.removeprefix(f"{_ROOM}owners/")
        if session == message.topic:
            self._listening.set()
        elif not message.payload:
            self._heard.pop(session, None)
        elif message.payload == self._name.encode():
            self._first[session] = self.is_free(session)
        else:
            self._heard[session] = asyncio.get_running_loop().time()
        self._changed.set()


def _place(session: str) -> str:
    return f"{_ROOM}owners/{session}"
