"""Topics: made before the first message is published, and for how long they keep messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from retrysafe.messaging.brokers.kafka.properties import LOG, Properties, properties_of
from retrysafe.protocol.durations import LONGEST

_WITHIN = 10.0
"""Seconds for which the brokers' answer is waited for."""


def admin(properties: Mapping[str, Any]) -> AdminClient:
    return AdminClient({**properties}, logger=LOG)


def declare(
    url: str,
    topics: Iterable[str],
    *,
    prefix: str = "",
    partitions: int | None = None,
    replicas: int | None = None,
    settings: Mapping[str, str] | None = None,
    properties: Properties | None = None,
) -> None:
    """Make the topics that are not there. One that is there stays as it is.

    Arguments:
        url: of the brokers, as `KafkaPublisher` takes it.
        topics: one or more topics, without the prefix.
        prefix: prefix of the topics' names at the brokers.
        partitions: how many each has; by default what the brokers are set to. A key has one partition for as long as
            this number does not change.
        replicas: how many brokers have each partition; by default what the brokers are set to.
        settings: of the topics, such as ``{"min.insync.replicas": "2", "retention.ms": "86400000"}``.
        properties: of librdkafka.

    Raises `confluent_kafka.KafkaException` when a topic cannot be made, or no broker can be reached.
    """
    wanted = [
        NewTopic(
            f"{prefix}{topic}",
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replicas is None else replicas,
            config={**(settings or {})},
        )
        for topic in topics
    ]
    client = admin(properties_of(url, {}, properties))
    for made in client.create_topics(wanted, request_timeout=_WITHIN).values() if wanted else ():
        try:
            made.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def ends(client: AdminClient, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The offset behind the last message of each partition. Raises `confluent_kafka.KafkaException`."""
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(*place): latest for place in places}
    answers = client.list_offsets(asked, request_timeout=_WITHIN)
    return {(one.topic, one.partition): answer.result().offset for one, answer in answers.items()}


def retention_of(properties: Mapping[str, Any], topics: Iterable[str]) -> float | None:
    """For how many seconds the topics keep a message at most; None: unknown, or for ever.

    Kafka removes whole segments, when their last message is old enough: a message may be older by as long as a segment
    is written to.
    """
    client = admin(properties)
    asked = client.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics], request_timeout=_WITHIN
    )
    kept = 0.0
    for answer in asked.values():
        try:
            found = {name: entry.value for name, entry in answer.result().items()}
        except KafkaException:
            return None
        seconds = seconds_kept(found)
        if seconds is None:
            return None
        kept = max(kept, seconds)
    return kept


def seconds_kept(settings: Mapping[str, str]) -> float | None:
    """For how many seconds a topic with these settings keeps a message at most; None: unknown, or for ever.

    What speaks Kafka's protocol need not have all of its settings. More than a hundred years, as some write "for ever",
    is longer than any window.
    """
    retention = int(settings.get("retention.ms") or -1)
    if retention < 0 or "delete" not in (settings.get("cleanup.policy") or "delete"):
        return None
    kept = (retention + int(settings.get("segment.ms") or 0)) / 1000
    return None if kept > LONGEST else kept
