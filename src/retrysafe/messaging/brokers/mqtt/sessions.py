"""A session of a group: the broker keeps in it what a topic gets. One consumer uses it at a time."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.messaging.brokers.mqtt.connecting import MqttLink, Received, Server
from retrysafe.messaging.brokers.mqtt.messages import topic_of
from retrysafe.messaging.brokers.spec import declaring


class Session(NamedTuple):
    """The session of a group for a topic or partition.

    name: its client id.
    topic: what it subscribes to.
    place: the topic or partition, as publishers name it.
    """

    name: str
    topic: str
    place: str


def session_of(prefix: str, place: str, group: str) -> Session:
    """The session of a group. Raises `ValueError` for names that MQTT does not take."""
    if not group:
        raise ValueError("a group has a name")
    topic = topic_of(prefix, place)
    return Session(topic_of("", f"{group}:{topic}"), topic, place)


class SessionMissing(OSError):
    """The broker has no such session: it was never declared, or it expired, with all that it had."""


async def resume(
    session: Session,
    address: Server,
    *,
    keep: int,
    patience: float,
    receive: int,
    received: Received,
) -> MqttLink:
    """Go on with a session. Raises `SessionMissing`, and what `Connection.open` raises.

    A session that is made anew is given up at once: publishers are then told that there is no subscriber, and wait.
    """
    connection = await MqttLink.open(
        address, client_id=session.name, keep=keep, receive=receive, received=received, patience=patience
    )
    if not connection.session_present:
        await connection.close(patience, keep=0)
        raise SessionMissing(
            f"The broker has no session {session.name!r}: it expired, with what it had, or was never declared. "
            f"Declare it:  {declaring(group='GROUP')}"
        )
    return connection
