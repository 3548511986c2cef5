"""The brokers that the pipeline is run on: each by its URL, with a look at what it has; and those that are killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.registry import broker_at
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place, road_to
from tests.messaging.own_brokers import (
    KafkaCluster,
    KafkaServer,
    MqttServer,
    NatsServer,
    RabbitMQ4Server,
    RedisServer,
    ServiceBusServer,
)
from tests.versions import variable_of

PARTITIONS = 6
GROUP = "inventory"
KINDS = {name: harness for name, harness in HARNESSES.items() if harness.left is not None}


def place(url: str, topic: str) -> Place:
    """Return the place of the messages; all of ours at the broker has the topic's name, which is of this run."""
    return Place(url, topic, topic, GROUP, PARTITIONS)


def broker(url: str, topic: str) -> Broker:
    """The broker at a URL. It is made anew in every process."""
    return broker_at(url, name=topic, partitions=PARTITIONS, lease="2s")


class Mortal(Protocol):
    """A broker that can be killed, and started again."""

    @property
    def url(self) -> str: ...

    def kill(self) -> None:
        """Let nobody reach it."""
        ...

    def start(self) -> None:
        """Let it be there again, with what it had."""
        ...

    def close(self) -> None:
        """Remove it."""
        ...


class BehindARoad:
    """The shared stand-in for a service of a cloud, by a road that is closed: if killed, it would forget everything."""

    def __init__(self, service: str) -> None:
        url = os.environ[variable_of(service)]
        (endpoint,) = parse_qs(urlsplit(url).query)["endpoint"]
        self._road = road_to(endpoint)
        self.url = url.replace(endpoint, f"http://127.0.0.1:{self._road.port}")

    def kill(self) -> None:
        """Cut every connection, and refuse new ones."""
        self._road.close()

    def start(self) -> None:
        """Let connections through."""
        self._road.open()

    def close(self) -> None:
        """Close the road."""
        self._road.close()


class Killed(NamedTuple):
    """A broker that is killed while a pipeline runs.

    service: that must be there.
    others_go_on: whether it is one of a cluster, which goes on without it.
    """

    kind: str
    service: str
    opened: Callable[[], Mortal]
    others_go_on: bool = False


KILLED = {
    "kafka": Killed("kafka", "kafka", KafkaServer),
    "kafka-cluster": Killed("kafka", "kafka", KafkaCluster, others_go_on=True),
    "mqtt": Killed("mqtt", "mqtt", MqttServer),
    "nats": Killed("nats", "nats", NatsServer),
    "pubsub": Killed("pubsub", "pubsub", lambda: BehindARoad("pubsub")),
    "rabbitmq": Killed("rabbitmq", "rabbitmq-4", RabbitMQ4Server),
    "servicebus": Killed("servicebus", "servicebus", ServiceBusServer),
    "redis": Killed("redis", "redis", RedisServer),
    "sns": Killed("sns", "sns", lambda: BehindARoad("sns")),
}
