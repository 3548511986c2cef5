"""Batches of records of the partitions that a consumer has: what transactions are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.kafka.properties import LOG, Properties, properties_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration

Place = tuple[str, int]
"""A topic and the number of a partition."""
_OURS: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
}
_PASSING = (KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED)
"""What the client mends by itself."""


class Batches:
    """Reads batches, in one thread. Records of a partition that another consumer takes over are in no batch any more.

    ``begun`` tells where partitions that are assigned begin; None: at the offset that their group has committed.
    """

    def __init__(
        self, url: str, topics: str | Iterable[str], group: str, session: Duration, properties: Properties | None
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or not group:
            raise ConfigurationError("topics= and group= must not be empty.")
        timeout = round(seconds_of(session, "session") * 1000)
        ours = {**_OURS, "group.id": group, "session.timeout.ms": timeout, "heartbeat.interval.ms": timeout // 4 or 1}
        self.client = Consumer(properties_of(url, ours, properties), logger=LOG)
        self.client.subscribe(names, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self._read: dict[Place, list[Message]] = {}

    def begun(self, places: list[Place]) -> dict[Place, int] | None:
        """Where they begin; below 0: with their oldest record."""
        return None

    def left(self, places: list[Place]) -> None:
        """Others may have these partitions by now."""

    def read(self, most: int, wait: float) -> dict[Place, list[Message]]:
        """Up to so many records by their partitions; waits so many seconds for the first one.

        Raises `confluent_kafka.KafkaException` when a topic is missing or no broker can be reached.
        """
        self._read = {}
        count, message = 0, self.client.poll(wait)
        while message is not None:
            error = message.error()
            if error is not None and error.code() not in _PASSING:
                self.return_to({place: first(records) for place, records in self._read.items()})
                raise KafkaException(error)
            if error is None:
                self._read.setdefault((str(message.topic()), int(message.partition() or 0)), []).append(message)
                count += 1
            if count >= most:
                break
            message = self.client.poll(0)
        read, self._read = self._read, {}
        return read

    def return_to(self, offsets: dict[Place, int]) -> None:
        """Read again from these offsets, as far as the partitions are still ours."""
        ours = {(one.topic, one.partition) for one in self.client.assignment()}
        for place in offsets.keys() & ours:
            self.client.seek(TopicPartition(*place, offsets[place]))

    def committed(self, places: Iterable[Place], within: float) -> dict[Place, int]:
        """The offsets that the group has committed."""
        found = self.client.committed([TopicPartition(*place) for place in places], timeout=within)
        return {(one.topic, one.partition): one.offset if one.offset >= 0 else OFFSET_BEGINNING for one in found}

    def close(self) -> None:
        """Leave the group."""
        self.client.close()

    def _assigned(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        begun = self.begun([(one.topic, one.partition) for one in partitions])
        if begun is not None:
            partitions = [
                TopicPartition(*place, offset if offset >= 0 else OFFSET_BEGINNING) for place, offset in begun.items()
            ]
        client.incremental_assign(partitions)

    def _revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(one.topic, one.partition) for one in partitions]
        for place in places:
            self._read.pop(place, None)
        self.left(places)
        client.incremental_unassign(partitions)


def after(records: Iterable[Message]) -> int:
    """The offset behind the last of these records."""
    return max(int(record.offset() or 0) for record in records) + 1


def first(records: list[Message]) -> int:
    """The offset of the first of these records."""
    return int(records[0].offset() or 0)


def error_of(error: KafkaException) -> Any:
    """The `KafkaError` in an exception."""
    return error.args[0]
