"""Kafka under the suites."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import BLAMELESS, PublisherFeatures
from tests.faults.proxies.framing_kafka import KafkaFraming, KafkaProxy
from tests.messaging.harnesses.base import (
    PARTITIONS,
    Bench,
    Harness,
    Killed,
    OnARoad,
    Page,
    Place,
    by_road,
    road_to,
)
from tests.messaging.own_brokers import OwnBroker
from tests.ports import free_port

LARGEST = 500_000
NO_TOPIC = "the brokers have no such topic: declare it:  retrysafe topics declare --broker URL --topic TOPIC"


def operator(url: str) -> Any:
    """A client that can do what operators do."""
    from confluent_kafka.admin import AdminClient

    from retrysafe.messaging.brokers.kafka.properties import LOG, properties_of

    return AdminClient(properties_of(url, {}), logger=LOG)


def delete(url: str, *topics: str) -> None:
    """Delete topics, those that are there."""
    client = operator(url)
    there = client.list_topics(timeout=30).topics
    known = [name for name in topics if name in there]
    for deleted in client.delete_topics(known).values() if known else ():
        deleted.result()


def every_record(url: str, topic: str, **properties: Any) -> list[Any]:
    """Every record of a topic, in the order of each partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    from retrysafe.messaging.brokers.kafka.properties import LOG, properties_of

    asked = {
        "group.id": "look",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "enable.auto.commit": False,
        **properties,
    }
    consumer = Consumer(properties_of(url, asked), logger=LOG)
    try:
        places = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, place, OFFSET_BEGINNING) for place in places])
        found, left = [], len(places)
        while left:
            message = consumer.poll(10)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left -= 1
        return found
    finally:
        consumer.close()


class KafkaBench(Bench):
    framing, proxy = KafkaFraming, KafkaProxy

    async def open(self) -> KafkaBench:
        from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher
        from retrysafe.messaging.brokers.kafka.topics import declare

        await asyncio.to_thread(declare, self.url, [self.topic], partitions=PARTITIONS)
        self.publisher = AsyncKafkaPublisher(self.url)
        return self

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.kafka.consumer import KafkaConsumer

        options = {"group": self.topic, "session": "1s", **self.options}
        return KafkaConsumer(url, self.topic, **options)

    async def clean(self) -> None:
        await asyncio.to_thread(delete, self.url, self.topic)


class Kafka(OnARoad):
    features = PublisherFeatures(reports_missing=True)
    elsewhere = "nowhere"
    largest = LARGEST
    url: str

    async def stall(self) -> bool:
        """It is missing, and the client has found out: what was under way until then may have timed out instead."""
        await asyncio.to_thread(self._delete)
        while (said := (await self.publish(self.envelope(0)))[0]).error != NO_TOPIC:
            assert said.status in BLAMELESS, said
        return True

    def _delete(self) -> None:
        """Delete it, and wait until the broker knows: it takes records for a moment longer."""
        delete(self.url, self.topic)
        client = operator(self.url)
        while client.list_topics(self.topic, timeout=10).topics[self.topic].error is None:
            pass

    async def unstall(self) -> None:
        await asyncio.to_thread(self.declare, self.topic)

    def declare(self, *topics: str) -> None:
        from retrysafe.messaging.brokers.kafka.topics import declare

        declare(self.url, topics, partitions=1, settings={"max.message.bytes": str(LARGEST)})

    async def arrived(self) -> Sequence[Envelope]:
        from retrysafe.messaging.brokers.kafka.messages import envelope_from

        found = await asyncio.to_thread(every_record, self.url, self.topic)
        return [envelope_from(one.headers() or (), one.key(), one.value(), self.topic) for one in found]


@asynccontextmanager
async def kafka(url: str = "", *, sync: bool = False, **options: Any) -> AsyncIterator[Kafka]:
    from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher

    made = Kafka()
    made.url = url or os.environ["RETRYSAFE_TEST_KAFKA"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    made.road = road_to(made.url)
    await asyncio.to_thread(made.declare, made.topic, made.beside)
    publisher = KafkaPublisher if sync else AsyncKafkaPublisher
    options = {"delivery_timeout": "5s", "properties": {"topic.metadata.refresh.interval.ms": 100}, **options}
    made.publisher = publisher(by_road(made.road, made.url), **options)
    yield made
    closed = made.publisher.close() if sync else made.publisher.aclose()
    if closed is not None:
        await closed
    await asyncio.to_thread(made.road.close)
    await asyncio.to_thread(delete, made.url, made.topic, made.beside)


async def left(at: Place) -> int:
    return await asyncio.to_thread(_left, at)


def _left(at: Place) -> int:
    """Count the messages behind those that the group has committed."""
    from confluent_kafka import Consumer, TopicPartition

    from retrysafe.messaging.brokers.kafka.properties import LOG, properties_of

    consumer = Consumer(properties_of(at.url, {"group.id": f"{at.name}.{at.group}"}), logger=LOG)
    try:
        places = [TopicPartition(f"{at.name}.{at.topic}", number) for number in range(at.partitions)]
        ends = [consumer.get_watermark_offsets(place, timeout=10) for place in places]
        committed = [max(one.offset, 0) for one in consumer.committed(places, timeout=10)]
        return sum(high - max(low, done) for (low, high), done in zip(ends, committed, strict=True))
    finally:
        consumer.close()


async def remove(at: Place) -> None:
    from confluent_kafka import KafkaException

    try:
        await asyncio.to_thread(delete, at.url, f"{at.name}.{at.topic}")
    except KafkaException as error:
        if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":  # as for the second group
            raise


class KafkaServer(OwnBroker):
    """A Kafka."""

    service = "kafka"
    beside = 1  # the controller

    @property
    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"


class GuardedKafka(KafkaServer):
    """A Kafka where users log in, who may do only what they are given; it has a third port for them."""

    beside = 2

    def __init__(self, *users: str) -> None:
        super().__init__(RETRYSAFE_KAFKA_USERS=",".join(users))

    def url_of(self, user: str) -> str:
        """The URL for a user."""
        where = f"127.0.0.1:{self.port + 2}"
        return f"kafka://{user}:{user}@{where}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"

    def allow(self, user: str, operation: Any, kind: Any, name: str) -> None:
        """Give a user one right: an operation on a kind of resource."""
        from confluent_kafka.admin import AclBinding, AclPermissionType, ResourcePatternType

        given = AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        admin = operator(self.url)  # it must outlive its futures
        for made in admin.create_acls([given]).values():
            made.result()


class KafkaCluster:
    """Three Kafkas, each of which has every record; two must have it before it is confirmed. One of them is killed."""

    service = "kafka"

    def __init__(self) -> None:
        ports = [free_port(KafkaServer.beside) for _ in range(3)]
        nodes = {"RETRYSAFE_KAFKA_NODES": ",".join(map(str, ports))}
        with ThreadPoolExecutor() as threads:  # none of them answers before another one does
            self._nodes = list(threads.map(lambda port: KafkaServer(port, **nodes), ports))
        self.url = f"kafka://{','.join(f'127.0.0.1:{port}' for port in ports)}"

    def kill(self) -> None:
        """SIGKILL one of them."""
        self._nodes[0].kill()

    def start(self) -> None:
        """Start it again."""
        self._nodes[0].start()

    def close(self) -> None:
        """Kill them all, and remove their directories."""
        for node in self._nodes:
            node.close()


def without_pages(url: str) -> None:
    """The topics and groups of the pages are not there."""
    client = operator(url)
    topics = [name for name in client.list_topics(timeout=10).topics if name.startswith("docs-")]
    listed = client.list_consumer_groups().result().valid
    groups = [one.group_id for one in listed if one.group_id.startswith("docs-")]
    removing = client.delete_consumer_groups(groups) if groups else {}
    for removed in (*removing.values(), *(client.delete_topics(topics) if topics else {}).values()):
        removed.result()


HARNESS = Harness(
    "kafka",
    service="kafka",
    bench=KafkaBench,
    publishings={
        "kafka": lambda folder: kafka(sync=True),
        "kafka-async": lambda folder: kafka(),
    },
    library="confluent_kafka",
    group=("--topic", "{topic}", "--prefix", "{name}.", "--group", "{name}.{group}"),
    killed={
        "kafka": Killed("kafka", "kafka", KafkaServer),
        "kafka-cluster": Killed("kafka", "kafka", KafkaCluster, others_go_on=True),
    },
    page=Page("KAFKA_URL", partial(asyncio.to_thread, without_pages)),
    left=left,
    remove=remove,
)
