"""Kafka: records acknowledged by all in-sync replicas, in their order per key."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, Producer

from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.kafka.messages import KafkaRecord, record_of
from retrysafe.messaging.brokers.kafka.properties import Properties, properties_of, require_known
from retrysafe.messaging.brokers.kafka.sender import RecordSender, Reports
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.records import Duration
from retrysafe.runtime import PerProcess

_ACKED = PublishResult(PublishStatus.ACKED)
_NO_TOPIC = PublishResult(PublishStatus.STALLED, f"the brokers have no such topic: declare it:  {declaring()}")
_OURS: Properties = {"acks": "all", "enable.idempotence": True}
_DEFAULTS: Properties = {
    "partitioner": "murmur2_random",  # which Kafka's Java clients use: a key has one partition for all of them
    "linger.ms": 1,
    "queue.buffering.max.kbytes": 32 << 10,
    "message.max.bytes": 1_000_000_000,  # the topic says how much it takes
    "topic.metadata.propagation.max.ms": 1000,
}
_UNABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._SSL,
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
"""Reports that no broker accepts messages from us."""
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
"""Answers of a broker that refuses a record. It judges batches: what was in one with it is refused too."""
_MISSING = {
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
}
"""Reports of a missing topic, by the client or by a broker."""
_STALLED = {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.POLICY_VIOLATION,
    KafkaError._QUEUE_FULL,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._DESTROY,  # the client has given up the connection to its leader
}
"""Reports of a topic that takes nothing now, whatever the record."""


class _Publishing:
    """The common part of both publishers. The producer is made when it is first used."""

    by_topic = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        mode: Mode = "binary",
        delivery_timeout: Duration = "20s",
        properties: Properties | None = None,
    ) -> None:
        require_mode(mode)
        self._prefix = prefix
        self._mode: Mode = mode
        self._timeout = seconds_of(delivery_timeout, "delivery_timeout")
        ours = {**_OURS, "message.timeout.ms": round(self._timeout * 1000)}
        settings = properties_of(url, ours, {**_DEFAULTS, **(properties or {})})
        require_known(Producer, settings)
        self.broker_address = broker_address_of(f"kafka://{settings['bootstrap.servers']}", prefix)
        self._sender = PerProcess(lambda: RecordSender(settings, self._timeout))

    def destination(self, envelope: Envelope, /) -> str:
        """The topic that takes a message."""
        return f"{self._prefix}{envelope.topic}"

    def _waves(self, envelopes: Sequence[Envelope]) -> Generator[Future[Reports], Reports, list[PublishResult]]:
        said: dict[int, PublishResult] = {}
        records: dict[int, KafkaRecord] = {}
        for at, envelope in enumerate(envelopes):
            try:
                records[at] = record_of(envelope, self._mode, self._prefix)
            except ValueError as error:
                said[at] = PublishResult(PublishStatus.REJECTED, f"{type(error).__name__}: {error}")
        sender = self._sender()
        reports = dict(zip(records, (yield sender.send([*records.values()])), strict=True)) if records else {}
        for at, report in reports.items():
            alone = report
            if len(records) > 1 and report is not None and report.code() in _REFUSED:
                (alone,) = yield sender.send([records[at]])
            said[at] = _result_of(alone, sender)
        if sender.failure and self._sender() is sender:
            self._close()
        return [said[at] for at in range(len(envelopes))]

    def _close(self) -> None:
        if (sender := self._sender.pop()) is not None:
            sender.close()


class KafkaPublisher(_Publishing):
    """Publishes to topics, and waits until all in-sync replicas have each message.

    Make topics before, with `retrysafe.messaging.brokers.kafka.declare` or as an operator; give them the setting
    ``min.insync.replicas`` 2 of 3 for a message to outlive a broker. A topic that is missing, has lost its replicas or
    its leader, or does not answer in time keeps its own messages waiting, which spend no attempt. What the broker
    refuses for the message itself, as for its size, is given up.

    The client sends again what was not acknowledged, in order and without duplicates (``enable.idempotence``), for the
    ``delivery_timeout``. What a relay publishes again after that can be in the topic twice: the inbox recognises it.

    Arguments:
        url: of the brokers, as in "kafka://host:9092,other:9092"; with "user:password@" for SASL, and with properties
            of librdkafka as its query: "?security.protocol=SASL_SSL&sasl.mechanism=SCRAM-SHA-512".
        prefix: of the topics' names.
        mode: of CloudEvents: "binary" (attributes in headers) or "structured" (all in one JSON value).
        delivery_timeout: how long a delivery may take; the client may wait as long for room before.
        properties: further ones of librdkafka. Its queue takes 32 MiB (``queue.buffering.max.kbytes``); messages that
            come while it is full wait for room.
    """

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them at once, and wait for the acknowledgement of each."""
        waves = self._waves(envelopes)
        try:
            reports = next(waves)
            while True:
                reports = waves.send(reports.result())
        except StopIteration as ended:
            results: list[PublishResult] = ended.value
            return results

    def close(self) -> None:
        """Hang up."""
        self._close()


class AsyncKafkaPublisher(_Publishing):
    """`KafkaPublisher` for async code; the client has threads of its own."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them at once, and wait for the acknowledgement of each."""
        waves = self._waves(envelopes)
        try:
            reports = next(waves)
            while True:
                reports = waves.send(await asyncio.wrap_future(reports))
        except StopIteration as ended:
            results: list[PublishResult] = ended.value
            return results

    async def aclose(self) -> None:
        """Hang up."""
        await asyncio.to_thread(self._close)


def _result_of(error: KafkaError | None, sender: RecordSender) -> PublishResult:
    """Turn a report into a result, whose text is the same for every message: results are grouped by it."""
    if error is None:
        return _ACKED
    code = error.code()
    is_away = code == KafkaError._MSG_TIMED_OUT and sender.is_away
    cause = sender.failure if code == KafkaError._PURGE_QUEUE else sender.cause if is_away else None
    known = error if cause is None else KafkaError(cause.code())
    text = f"{known.name()}: {known.str()}"
    if code in _REFUSED:
        return PublishResult(PublishStatus.REJECTED, text)
    if is_away or known.code() in _UNABLE:
        return PublishResult(PublishStatus.UNAVAILABLE, text)
    if code in _MISSING:
        return _NO_TOPIC
    if code in _STALLED:
        return PublishResult(PublishStatus.STALLED, text)
    if code == KafkaError._PURGE_QUEUE:
        return PublishResult(PublishStatus.POSTPONED, text)
    return PublishResult(PublishStatus.UNKNOWN, text)
