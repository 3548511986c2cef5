"""Batches of records of the partitions that a consumer has: what transactions are made of."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.kafka.properties import LOG, Properties, properties_of, properties_of_member
from retrysafe.protocol.records import Duration

Place = tuple[str, int]
"""A topic and the number of a partition."""
_PASSING = (KafkaError._TRANSPORT, KafkaError._MAX_POLL_EXCEEDED)
"""Errors that the client mends by itself."""
_WITHIN = 10.0
"""Seconds for which the brokers' answer is waited for."""


class Batches:
    """Reads batches, in one thread. Records of a partition that another consumer takes over are in no batch any more.

    Records that a topic has removed are passed by. A partition that ends before the offset that was reached has lost
    records, or is of a topic that was made again: to read it from the beginning would repeat what was done. So reading
    it is an error until a person has set the offset.
    """

    def __init__(
        self, url: str, topics: str | Iterable[str], group: str, session: Duration, properties: Properties | None
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or not group:
            raise ConfigurationError("topics= and group= must not be empty.")
        ours = properties_of_member(group, session)
        self.client = Consumer(properties_of(url, ours, properties), logger=LOG)
        self.client.subscribe(names, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
        self._read: dict[Place, list[Message]] = {}

    def take_over(self, places: list[Place]) -> dict[Place, int]:
        """Return the first offsets of assigned partitions; below 0: the oldest record."""
        return self.group_offsets(places, _WITHIN)

    def find_offset(self, place: Place) -> int:
        """Up to where a partition was read, and that is written down; below 0: nothing of it."""
        return self.group_offsets([place], _WITHIN)[place]

    def leave(self, places: list[Place]) -> None:
        """Others may have these partitions by now."""

    def read(self, most: int, wait: float) -> dict[Place, list[Message]]:
        """Up to so many records by their partitions; waits so many seconds for the first one.

        Raises `confluent_kafka.KafkaException` when a topic is missing, a partition ends before the offset that was
        reached, or no broker can be reached.
        """
        self._read = {}
        count, message = 0, self.client.poll(wait)
        try:
            while message is not None:
                place, error = (str(message.topic()), int(message.partition() or 0)), message.error()
                if error is None:
                    self._read.setdefault(place, []).append(message)
                    count += 1
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self._begin_anew(place, error)
                elif error.code() not in _PASSING:
                    raise KafkaException(error)
                if count >= most:
                    break
                message = self.client.poll(0)
        except KafkaException:
            self.return_to({place: first(records) for place, records in self._read.items()})
            raise
        read, self._read = self._read, {}
        return read

    def return_to(self, offsets: dict[Place, int]) -> None:
        """Read again from these offsets, as far as the partitions are still ours."""
        ours = {(one.topic, one.partition) for one in self.client.assignment()}
        for place in offsets.keys() & ours:
            self.client.seek(TopicPartition(*place, offsets[place]))

    def _begin_anew(self, place: Place, error: KafkaError) -> None:
        """Go on with the oldest record of a partition that does not have the offset that was reached any more."""
        reached = self.find_offset(place)
        oldest, end = self.client.get_watermark_offsets(TopicPartition(*place), timeout=_WITHIN)
        begin = reached if reached > end else oldest
        self.client.incremental_unassign([TopicPartition(*place)])  # a partition that has failed cannot be sought
        self.client.incremental_assign([TopicPartition(*place, begin)])
        if reached > end:
            raise KafkaException(error)

    def group_offsets(self, places: Iterable[Place], within: float) -> dict[Place, int]:
        found = self.client.committed([TopicPartition(*place) for place in places], timeout=within)
        return {(one.topic, one.partition): one.offset if one.offset >= 0 else OFFSET_BEGINNING for one in found}

    def close(self) -> None:
        self.client.close()

    def _assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        begins = self.take_over([(one.topic, one.partition) for one in partitions])
        client.incremental_assign(
            [TopicPartition(*place, offset if offset >= 0 else OFFSET_BEGINNING) for place, offset in begins.items()]
        )

    def _revoke(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(one.topic, one.partition) for one in partitions]
        for place in places:
            self._read.pop(place, None)
        self.leave(places)
        client.incremental_unassign(partitions)


def after(records: Iterable[Message]) -> int:
    """The offset behind the last of these records."""
    return max(int(record.offset() or 0) for record in records) + 1


def first(records: list[Message]) -> int:
    """The offset of the first of these records."""
    return int(records[0].offset() or 0)
