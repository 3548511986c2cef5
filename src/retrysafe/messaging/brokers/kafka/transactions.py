"""Consume, transform, produce, in one transaction of Kafka: offsets of the input and records of the output, or neither.

Each step of a transaction can fail in three ways, which librdkafka tells apart by flags of its error:

- retriable: the same call is made again, until ``timeout`` is over;
- the transaction is lost (a rebalance, a record that could not be delivered, an answer that never came): it is aborted,
  and its input read again from where it began;
- fatal: another producer has the transactional id, or the broker has given the transaction up, which the client cannot
  tell apart. The producer is made anew, which ends what the old one had begun, and the input is read from the offsets
  that the group has committed, since it is unknown whether the commit was the last thing that happened.

No consumer is polled inside a transaction. So partitions are taken away between two of them only; a consumer that is
thought dead meanwhile is refused by the metadata of its group, taken when the records were read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from retrysafe.messaging.brokers.kafka.batches import Batches, Place, after, first
from retrysafe.messaging.brokers.kafka.messages import record_of
from retrysafe.messaging.brokers.kafka.properties import LOG, Properties, properties_of
from retrysafe.messaging.cloudevents import Mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.records import Duration

_PAUSE = 0.05
"""Seconds before a call is made again."""
_LEFT = KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "this consumer has left its group")


class Committed(NamedTuple):
    """The offsets of so many records are committed, and so is what was produced. 0: there was nothing to read."""

    records: int


class Aborted(NamedTuple):
    """Nothing was committed; the same records are read again, here or by the consumer that has their partitions."""

    error: KafkaError


class Recreated(NamedTuple):
    """The producer was made anew. All was committed or nothing; what was not is read again."""

    error: KafkaError


Outcome = Committed | Aborted | Recreated


class KafkaTransaction:
    """A batch of records, and the output that commits with their offsets.

    Attributes:
        records: in their order within each partition.
        outcome: what became of it, once the block has been left without an error.
    """

    def __init__(self, producer: Producer, records: Sequence[Message], within: float) -> None:
        self.records = records
        self.outcome: Outcome = Committed(0)
        self._producer, self._within = producer, within

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int = -1,
    ) -> None:
        """Produce a record; waits while the client's queue is full.

        Raises `confluent_kafka.KafkaException`: let it leave the block.
        """
        deadline = time.monotonic() + self._within
        told: list[tuple[str, str | bytes | None]] = [(name, octets) for name, octets in headers]
        while True:
            try:
                return self._producer.produce(topic, value, key, partition, headers=told)
            except BufferError:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None
                self._producer.poll(_PAUSE)

    def publish(self, envelope: Envelope, *, mode: Mode = "binary") -> None:
        """Produce a message as the publishers do. Raises `ValueError` for what has no place in a record."""
        topic, key, value, headers = record_of(envelope, mode, "")
        self.produce(topic, value, key=key, headers=[(name, octets or b"") for name, octets in headers])  # type: ignore[misc]


class KafkaTransactions:
    """Transactions over the records of topics. Use it in one thread; a context manager, which closes it.

    ::

        with KafkaTransactions(url, "orders", group="totals") as stream:
            while True:
                with stream.transaction() as tx:
                    for record in tx.records:
                        tx.produce("totals", total_of(record.value()), key=record.key())

    Leaving the block commits. A consumer with ``isolation.level=read_committed`` reads the output of each input record
    once, also if a process dies in between. An exception aborts the transaction and is raised; the records are read
    again. Effects of the block elsewhere, as in a database, are not part of the transaction.

    Arguments:
        url: of the brokers, as `KafkaPublisher` takes it.
        topics: that are read.
        group: whose consumers share the partitions.
        transactional_id: of this process, never of two at a time: the later one fences the earlier. One that is the
            same after a restart ends at once what its predecessor left open; by default it is made up, and what a dead
            process left open keeps its partitions, and readers behind it, waiting for ``timeout``.
        max_records: of one transaction.
        timeout: for how long a transaction may be open, and a call is tried again.
        session: for how long a dead consumer keeps its partitions.
        properties: further ones of librdkafka, for consumer and producer.

    Raises `confluent_kafka.KafkaException` when no broker answers in time.
    """

    def __init__(
        self,
        url: str,
        topics: str | Iterable[str],
        *,
        group: str,
        transactional_id: str | None = None,
        max_records: int = 500,
        timeout: Duration = "30s",
        session: Duration = "15s",
        properties: Properties | None = None,
    ) -> None:
        self._within, self._most = seconds_of(timeout, "timeout"), max_records
        ours = transactional(transactional_id or f"{group}-{secrets.token_hex(8)}", self._within)
        defaults: Properties = {
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "topic.metadata.propagation.max.ms": 1000,
        }
        self._properties = properties_of(url, ours, {**defaults, **(properties or {})})
        self._producer: Any = self._make()
        """None from when one has ended until the next one is ready."""
        self._unread: set[Place] = set()
        """Partitions that are to be read again, from what is committed."""
        self._batches = Batches(url, topics, group, session, properties)

    def __enter__(self) -> KafkaTransactions:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, and hang up."""
        self._batches.close()
        self._producer = None

    @contextmanager
    def transaction(self, wait: float = 1.0) -> Iterator[KafkaTransaction]:
        """A transaction over the next records; waits so many seconds for the first one. `outcome` says how it ended."""
        self._mend()
        read = self._batches.read(self._most, wait)
        group = self._batches.client.consumer_group_metadata()
        # after the metadata was taken: without a member in it, a broker refuses no producer
        is_member = bool(self._batches.client.memberid())
        begins = {place: first(records) for place, records in read.items()}
        ends = [TopicPartition(*place, after(records)) for place, records in read.items()]
        tx = KafkaTransaction(self._producer, [one for records in read.values() for one in records], self._within)
        if read:
            self._producer.begin_transaction()
        try:
            yield tx
        except BaseException:
            if read:
                self._abort(begins)
            raise
        if read:
            tx.outcome = self._end(group, ends, begins, len(tx.records), is_member=is_member)

    def _end(
        self, group: Any, ends: list[TopicPartition], begins: dict[Place, int], records: int, *, is_member: bool
    ) -> Outcome:
        try:
            if not is_member:
                raise KafkaException(_LEFT)
            insist(lambda left: self._producer.send_offsets_to_transaction(ends, group, left), self._within)
            insist(self._producer.commit_transaction, self._within)
        except KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort() or cause is _LEFT:
                return self._abort(begins, cause)
            return self._recreate(begins, cause)
        return Committed(records)

    def _abort(self, begins: dict[Place, int], cause: KafkaError | None = None) -> Outcome:
        try:
            insist(self._producer.abort_transaction, self._within)
        except KafkaException as error:
            return self._recreate(begins, error.args[0])
        self._batches.return_to(begins)
        return Aborted(cause or KafkaError(KafkaError._APPLICATION))

    def _recreate(self, begins: dict[Place, int], cause: KafkaError) -> Outcome:
        """Replace the producer, and read from what is committed: the commit may have been made before the error."""
        self._producer = None  # without `close`, which fails after a fatal error
        self._unread |= begins.keys()
        self._mend()
        return Recreated(cause)

    def _mend(self) -> None:
        """Do what is left of `_recreate`: when no broker answers in time, the next transaction begins with it."""
        if self._producer is None:
            self._producer = self._make()
        if self._unread:
            self._batches.return_to(self._batches.group_offsets(self._unread, self._within))
            self._unread.clear()

    def _make(self) -> Producer:
        """A producer whose predecessor's transaction has ended."""
        producer = Producer(self._properties, logger=LOG)
        insist(producer.init_transactions, self._within)
        return producer


def transactional(name: str, within: float) -> Properties:
    """The properties of a producer of transactions; ``within``: for how many seconds one may be open."""
    return {
        "transactional.id": name,
        "transaction.timeout.ms": round(within * 1000),
        "message.timeout.ms": round(within * 1000),
    }


def insist(call: Callable[[float], Any], within: float) -> None:
    """Call until it works, fails for good, or time is over."""
    deadline = time.monotonic() + within
    while True:
        try:
            call(max(1.0, deadline - time.monotonic()))
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return
