"""The sessions in which a broker keeps the messages of topics for a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.mqtt.connecting import FOR_EVER, MqttLink, Server, address_of
from retrysafe.messaging.brokers.mqtt.messages import topic_of
from retrysafe.messaging.brokers.mqtt.owners import Owners
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration


class Session(NamedTuple):
    """The session of a group: the broker keeps in it what a topic gets. One consumer uses it at a time.

    name: its client id.
    topic: what it subscribes to.
    place: the topic or partition, as publishers name it.
    """

    name: str
    topic: str
    place: str


async def declare(
    url: str,
    topics: str | Iterable[str],
    *,
    group: str,
    prefix: str = "",
    partitions: int | None = None,
    keep: Duration | None = "7d",
    within: Duration = "10s",
) -> None:
    """Declare the sessions in which the broker keeps messages of topics for a group; one that is in use stays.

    What is published before reaches this group never.

    Arguments:
        url: of the broker, as for `MqttPublisher`.
        topics: one or more.
        group: the consumers that together take each message once, such as "inventory".
        prefix: of the topics, as publishers and consumers are told.
        partitions: over how many topics each topic is spread, as publishers and consumers are told.
        keep: for how long a session without a consumer is kept, as consumers are told; then it is lost with all that it
            has. None: for ever.
        within: how long each step may take; after that `TimeoutError` is raised.

    Raises `ConfigurationError` when the broker refuses, or keeps sessions for a shorter time.
    """
    address, patience = address_of(url), seconds_of(within, "within")
    sessions = sessions_of(topics, group=group, prefix=prefix, partitions=partitions)
    owners = await Owners.open(address, [one.name for one in sessions], lease=patience, patience=patience)
    try:
        for session in sessions:
            if owners.is_free(session.name):  # to connect would take it from its consumer
                await _make(session, address, expiry_of(keep), patience)
    finally:
        await owners.close()


async def _make(session: Session, address: Server, keep: int, patience: float) -> None:
    connection = await MqttLink.open(address, client_id=session.name, keep=keep, receive=1, patience=patience)
    try:
        if (kept := connection.told.get("SessionExpiryInterval", keep)) < keep:
            raise ConfigurationError(f"keep=: the broker keeps a session without a consumer for {kept} seconds only.")
        await connection.subscribe([session.topic], retained=False)
    finally:
        await connection.close(patience)


def sessions_of(topics: str | Iterable[str], *, group: str, prefix: str, partitions: int | None) -> list[Session]:
    """The sessions of a group. Raises `ConfigurationError` for names that MQTT does not take, and for no topic."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not group:
        raise ConfigurationError("topics= and group= must not be empty.")
    try:
        places = {place: topic_of(prefix, place) for topic in names for place in partitions_of(topic, partitions)}
        return [Session(topic_of("", f"{group}:{topic}"), topic, place) for place, topic in places.items()]
    except ValueError as error:
        raise ConfigurationError(f"topics=, group= or prefix=: {error}.") from error


def expiry_of(keep: Duration | None) -> int:
    return FOR_EVER if keep is None else min(FOR_EVER - 1, max(1, round(seconds_of(keep, "keep"))))
