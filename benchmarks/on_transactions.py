"""Kafka's transactions: records read, made into others and committed with their offsets, beside the raw client.

Both read 500 records a transaction at most, and write one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import Producer, TopicPartition

from benchmarks import services
from benchmarks.brokers.base import BRIEF, WAIT, new_topic
from benchmarks.brokers.kafka import PARTITIONS, brokers, delete, raw_consumer
from benchmarks.rows import FLOOR, OURS, Row, Side, Stopwatch, Turn
from retrysafe.messaging.brokers.kafka import KafkaTransactions, declare
from retrysafe.messaging.brokers.kafka.transactions import Committed

RECORDS, AT_ONCE = 10_000, 500


def rows() -> Sequence[Row]:
    """One record read and written."""
    return [
        Row(
            "context of Kafka's transactions",
            "confluent-kafka's own transactions of 500 records",
            {OURS: partial(_side, _context), FLOOR: partial(_side, _by_hand)},
            needs=("kafka",),
            operations=RECORDS,
        )
    ]


Work = Callable[[], int]
"""A transaction; how many records it has read."""


@contextmanager
def _side(opened: Callable[[str, str], Any]) -> Iterator[Side]:
    read, written = new_topic(), new_topic()
    declare(services.url("kafka"), [read, written], partitions=PARTITIONS)
    filling = Producer(brokers())
    try:
        with opened(read, written) as work:
            yield Side(partial(_turn, filling, read, work))
    finally:
        delete(read, written)


def _turn(filling: Producer, topic: str, work: Work, keys: Sequence[str]) -> Turn:
    for key in keys:
        filling.produce(topic, b'{"order": 1, "total": 120}', key)
        filling.poll(0)
    filling.flush(WAIT)
    watch, found = Stopwatch(), 0
    while found < len(keys):
        found += work()
    return watch.turn(found)


@contextmanager
def _context(read: str, written: str) -> Iterator[Work]:
    with KafkaTransactions(services.url("kafka"), read, group=read, max_records=AT_ONCE) as stream:

        def work() -> int:
            with stream.transaction() as tx:
                for record in tx.records:
                    tx.produce(written, record.value(), key=record.key())
            assert isinstance(tx.outcome, Committed), tx.outcome
            return tx.outcome.records

        yield work


@contextmanager
def _by_hand(read: str, written: str) -> Iterator[Work]:
    consumer = raw_consumer(read)
    producer = Producer({**brokers(), "transactional.id": written, "linger.ms": 1})
    producer.init_transactions(WAIT)

    def work() -> int:
        records = consumer.consume(AT_ONCE, BRIEF)
        if not records:
            return 0
        producer.begin_transaction()
        for record in records:
            producer.produce(written, record.value(), record.key())
            producer.poll(0)
        offsets = [
            TopicPartition(one.topic, one.partition, one.offset) for one in consumer.position(consumer.assignment())
        ]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()
        return len(records)

    yield work
    consumer.close()
