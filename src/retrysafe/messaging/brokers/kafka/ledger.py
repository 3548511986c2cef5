"""The ledger of a stream job whose data goes to Kafka: records and the position, in one transaction of Kafka.

Positions are records of a compacted topic, keyed by their source. Offsets of a consumer group would serve as well, but
brokers forget those of a group without consumers after a week.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from retrysafe.messaging.brokers.kafka.properties import LOG, Properties, properties_of
from retrysafe.messaging.brokers.kafka.topics import admin, declare, ends
from retrysafe.messaging.brokers.kafka.transactions import KafkaTransaction, insist, transactional
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration
from retrysafe.streams.errors import Fenced
from retrysafe.streams.ledger import Span, first_to_write
from retrysafe.streams.positions import NONE, Position, check_name

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


class _Source(NamedTuple):
    producer: Producer
    position: Position


class KafkaLedger:
    """A `retrysafe.streams.Ledger` in a topic beside the data. Use it in one thread.

    ::

        ledger = KafkaLedger(url, "totals")

        def work(tx, first):
            tx.produce("totals", total)

        ledger.apply("orders/0", Span(100, 150), work)

    Readers of the data need ``isolation.level=read_committed``. A process that begins with a source fences the one that
    had it. It is pickled without its producers.

    Arguments:
        url: of the brokers, as `KafkaPublisher` takes it.
        job: the name of the job, with characters that topics may have. Two jobs of one name take each other's input for
            written.
        topic: of the positions; by default the job's name and ".positions". The ledger makes it when it is missing.
        timeout: for how long a transaction may be open, and a call is tried again.
        properties: further ones of librdkafka.

    Raises `confluent_kafka.KafkaException` when no broker answers in time.
    """

    def __init__(
        self,
        url: str,
        job: str,
        *,
        topic: str | None = None,
        timeout: Duration = "30s",
        properties: Properties | None = None,
    ) -> None:
        self._url, self._job, self._properties = url, check_name(job, "job"), properties
        self._topic = topic or f"{job}.positions"
        self._within = seconds_of(timeout, "timeout")
        self._sources: dict[str, _Source] = {}
        properties_of(url, {}, properties)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sources": {}}

    def take(self, source: str) -> int:
        """See `Ledger.take`."""
        self._sources.pop(source, None)
        return self._take(source).position.epoch

    def position(self, source: str) -> int:
        """The first position of a source that is not written; below 0: none is."""
        return self._read(source).next

    def apply(
        self,
        source: str,
        span: Span,
        work: Callable[[Any, int], object],
        *,
        origin: str = "",
        epoch: int | None = None,
        gaps: bool = True,
    ) -> bool:
        """See `Ledger.apply`. ``work`` gets a `KafkaTransaction` without records, to produce with."""
        producer, found = self._take(source)
        first = first_to_write(self._job, source, found, span, origin=origin, epoch=epoch, gaps=gaps)
        if first is None:
            return False
        to = Position(span.next, found.epoch, origin)
        del self._sources[source]  # until it is known how this ends
        producer.begin_transaction()
        try:
            tx = KafkaTransaction(producer, (), self._within)
            work(tx, first)
            tx.produce(self._topic, json.dumps(to).encode(), key=source.encode())
            insist(producer.commit_transaction, self._within)
        except KafkaException as error:
            self._abort(producer)
            if error.args[0].code() in _FENCED:
                raise Fenced(f"job {self._job!r}, source {source!r}: another process has taken it.") from error
            raise
        except BaseException:
            self._abort(producer)
            raise
        self._sources[source] = _Source(producer, to)
        return True

    def close(self) -> None:
        """Hang up."""
        self._sources.clear()

    def _abort(self, producer: Producer) -> None:
        """End the transaction, if that can be; the next producer of the source ends it otherwise."""
        try:
            insist(producer.abort_transaction, self._within)
        except KafkaException as error:
            LOG.info("a transaction of job %s was not aborted: %s", self._job, error)

    def _take(self, source: str) -> _Source:
        """A source with a producer of its own: its former producer is refused from now on."""
        known = self._sources.get(source)
        if known is None:
            declare(
                self._url,
                [self._topic],
                partitions=1,
                settings={"cleanup.policy": "compact"},
                properties=self._properties,
            )
            ours = transactional(f"{self._job}/{check_name(source, 'source')}", self._within)
            producer = Producer(properties_of(self._url, ours, self._properties), logger=LOG)
            insist(producer.init_transactions, self._within)
            found = self._read(source)
            known = self._sources[source] = _Source(producer, found._replace(epoch=found.epoch + 1))
        return known

    def _read(self, source: str) -> Position:
        """Read the topic's entry of a source, after all writes to it by now are committed or aborted."""
        place, found = TopicPartition(self._topic, 0, OFFSET_BEGINNING), Position(NONE, 0, "")
        ours: Properties = {
            "group.id": f"retrysafe-{secrets.token_hex(8)}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        client = admin(properties_of(self._url, {}, self._properties))
        end, deadline = ends(client, [(self._topic, 0)])[self._topic, 0], time.monotonic() + self._within
        consumer = Consumer(properties_of(self._url, ours, self._properties), logger=LOG)
        try:
            consumer.assign([place])
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                error = None if message is None else message.error()
                if message is None:
                    continue
                if error is None:
                    if message.key() == source.encode():
                        found = Position(*json.loads(message.value() or b""))
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif (message.offset() or 0) >= end:
                    return found
        finally:
            consumer.close()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{self._topic} was not read to its end in time"))
