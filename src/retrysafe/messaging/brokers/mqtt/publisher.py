"""MQTT 5: messages that the broker has acknowledged at QoS 1, with the reason code that it gave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from paho.mqtt.reasoncodes import ReasonCode

from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.mqtt.connecting import LOST, ConnectionEnded, MqttLink, Server, address_of
from retrysafe.messaging.brokers.mqtt.messages import LARGEST, content_of, size_of, topic_of
from retrysafe.messaging.brokers.mqtt.results import result_of, result_of_end
from retrysafe.messaging.brokers.publisher import BrokerPublisher, error_text
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import partition, partitions_of
from retrysafe.protocol.records import Duration

_UNCONFIRMED = PublishResult(PublishStatus.UNKNOWN, "the broker did not acknowledge it in time")
_Confirm = asyncio.Future[list[ReasonCode]]


class MqttPublisher(BrokerPublisher["_MqttPublishing"]):
    """Publishes to topics, and waits for the broker's acknowledgements (QoS 1).

    An acknowledgement means that the broker has the message, for every session that subscribes to its topic; whether on
    a disk is the broker's setting. What it says is read: a message without a subscriber, that we may not publish,
    or that exceeds a quota waits, and spends no attempt; messages to other topics go on. One that is larger than the
    broker takes is given up before it is sent. MQTT recognises no message that comes again: the inbox does.

    Arguments:
        url: of the broker: "mqtt://user:password@host:1883", or "mqtts://host:8883?cafile=ca.pem" for TLS; the
            certificates of the system are trusted without a cafile.
        prefix: of the topics, such as "shop/".
        mode: where the attributes of a CloudEvent are: "binary", in user properties, or "structured", in the payload.
            An event that does not fit into user properties is always in the payload.
        partitions: over how many topics a topic is spread, named "TOPIC.0" and so on, by key. By default one, named
            like the topic. Their number is not to be changed while messages are under way, and consumers must be told
            the same.
        timeout: how long acknowledgements are waited for; a message without one is sent again, under the same id.

    Raises `ConfigurationError` for a URL that is none of MQTT.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        mode: Mode = "binary",
        partitions: int | None = None,
        timeout: Duration = "10s",
    ) -> None:
        require_mode(mode)
        partitions_of("", partitions)  # refuses a wrong number
        address, within = address_of(url), seconds_of(timeout, "timeout")
        self._prefix, self._partitions, self.by_topic = prefix, partitions, partitions is None
        self.broker_address = broker_address_of(url, prefix)
        super().__init__(lambda: _MqttPublishing(address, self.destination, mode, within))

    def destination(self, envelope: Envelope, /) -> str:
        """The topic of MQTT that a message is published to."""
        return f"{self._prefix}{partition(envelope.topic, envelope.key, envelope.id, self._partitions)}"


class _MqttPublishing:
    """A connection, which is made anew when it is lost."""

    def __init__(self, address: Server, destination: Callable[[Envelope], str], mode: Mode, timeout: float) -> None:
        self._address, self._destination, self._timeout = address, destination, timeout
        self._mode: Mode = mode
        self._connection: MqttLink | None = None
        self._opening = asyncio.Lock()

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        try:
            async with self._opening:  # publish may be called while it is under way
                connection = await self._connect()
        except LOST as error:
            return [PublishResult(PublishStatus.UNAVAILABLE, error_text(error))] * len(envelopes)
        sent: list[_Confirm | PublishResult] = []
        waiting: set[_Confirm] = set()
        try:
            silent = await self._send_all(connection, envelopes, sent, waiting)
            sent += [silent] * (len(envelopes) - len(sent))
            return [
                one if isinstance(one, PublishResult) else result_of(one.result()[0]) if one.done() else silent
                for one in sent
            ]
        finally:
            for one in waiting:
                one.cancel()

    async def _send_all(
        self,
        connection: MqttLink,
        envelopes: Sequence[Envelope],
        sent: list[_Confirm | PublishResult],
        waiting: set[_Confirm],
    ) -> PublishResult:
        """Send them, until every acknowledgement has come: what is to be said of messages that have none.

        A connection that lacks some when the time is over is given up: what is sent again must not come before them.
        """
        try:
            async with asyncio.timeout(self._timeout):
                for envelope in envelopes:
                    sent.append(await self._send(connection, envelope))
                    waiting.update(one for one in sent[-1:] if not isinstance(one, PublishResult))
                if waiting:
                    await connection.first_of(asyncio.ensure_future(asyncio.wait(waiting)))
        except ConnectionEnded as error:
            return result_of_end(error)
        except TimeoutError:
            if self._connection is connection:
                self._connection = None
            await connection.close(0)
        return _UNCONFIRMED

    async def _send(self, connection: MqttLink, envelope: Envelope) -> _Confirm | PublishResult:
        try:
            topic, content = topic_of("", self._destination(envelope)), content_of(envelope, self._mode)
        except ValueError as error:
            return PublishResult(PublishStatus.RETRYABLE, str(error))
        largest = connection.told.get("MaximumPacketSize", LARGEST)
        if size_of(topic, content) > largest:  # the broker would hang up on it
            return PublishResult(PublishStatus.REJECTED, f"larger than the {largest} bytes that the broker takes")
        return await connection.publish(topic, content.payload, content.properties)

    async def _connect(self) -> MqttLink:
        if self._connection is None or not self._connection.is_open:
            await self.close()
            self._connection = await MqttLink.open(self._address, patience=self._timeout)
        return self._connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(self._timeout)
