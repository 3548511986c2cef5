"""RabbitMQ: persistent messages, confirmed by the broker, and refused when no queue takes them."""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError
from aiormq import Channel as Wire
from aiormq import spec
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.amqp_binding import PREFIXES, content_of
from retrysafe.messaging.brokers.base import broker_address_of
from retrysafe.messaging.brokers.publisher import ACKED, BrokerPublisher, PublishEntry, PublisherSession, error_text
from retrysafe.messaging.brokers.rabbitmq.confirms import PublishFrames, encode_frames, publish_and_confirm
from retrysafe.messaging.brokers.rabbitmq.connecting import LoginRefused, connect
from retrysafe.messaging.brokers.rabbitmq.topology import DECLARE
from retrysafe.messaging.cloudevents import Mode, require_mode
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import partition, partitions_of
from retrysafe.protocol.records import Duration

_UNCONFIRMED = PublishResult(PublishStatus.STALLED, "the broker did not confirm it in time")
_CLOSED = PublishResult(
    PublishStatus.UNKNOWN, "the broker closed the channel: a message of those under way cannot be taken"
)
_CLOSED_BY_IT = PublishResult(
    PublishStatus.REJECTED, "the broker closed the channel for this message: it may be too large"
)
_REFUSED = (ChannelNotFoundEntity, ChannelAccessRefused, ChannelLockedResource)
"""Answers of an exchange that is missing, or not for us."""
_BLOCKED = 0.1
"""Seconds for which a connection that the broker has blocked is waited for."""
_Content = Callable[[Envelope], tuple[bytes, str, dict[str, str]]]
_MOST = 64
"""Channels that are kept, for as many queues; more only while they are in use."""


class RabbitMQPublisher(BrokerPublisher["_RabbitMQPublishing"]):
    """Publishes to an exchange, each message with its topic as routing key, and waits for the broker's confirms.

    A confirm means that the queues have the message; give them the type "quorum" for it to be on a majority of nodes.
    Declare queues before. A queue that is missing, full, without its majority, or that does not confirm in time keeps
    its own messages waiting, which spend no attempt; messages to other queues go on, on channels of their own. What the
    broker refuses for the message itself, as for its size, is given up.

    Arguments:
        url: of the broker, as in "amqp://user:password@host/".
        exchange: publish to this exchange; by default to the one that routes to the queue named like the topic.
        partitions: over how many queues a topic is spread, named "TOPIC.0" and so on: all messages of one key go to one
            of them. By default one queue, named like the topic. Their number is not to be changed while messages
            are under way, and consumers need the same number.
        timeout: how long confirms are waited for; a message without one is sent again, under the same id.
        binding: how headers of CloudEvents are named; "amqp" ("cloudEvents:id"), or "rabbitmq" ("ce-id") for consumers
            that read only that one. Our consumers read both.
        mode: where the attributes of a CloudEvent are: "binary", in headers, or "structured", in the body. Our
            consumers read both.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        partitions: int | None = None,
        timeout: Duration = "10s",
        binding: Literal["amqp", "rabbitmq"] = "amqp",
        mode: Mode = "binary",
    ) -> None:
        partitions_of("", partitions)  # refuses a wrong number
        require_mode(mode)
        if binding not in PREFIXES:
            raise ConfigurationError(f'binding= is "amqp" or "rabbitmq", not {binding!r}.')
        self._partitions, within = partitions, seconds_of(timeout, "timeout")
        self.broker_address, self.by_topic = broker_address_of(url, exchange), partitions is None
        content = partial(content_of, binding=binding, mode=mode)
        super().__init__(lambda: _RabbitMQPublishing(url, exchange, self.destination, content, within))

    def destination(self, envelope: Envelope, /) -> str:
        """The queue that takes a message, or the routing key it is published with."""
        return partition(envelope.topic, envelope.key, envelope.id, self._partitions)


class _RabbitMQPublishing(PublisherSession):
    """A connection, made anew when it is lost, with a channel for each destination. Wires are as in the consumer."""

    def __init__(
        self, url: str, exchange: str, destination: Callable[[Envelope], str], content: _Content, timeout: float
    ) -> None:
        self._url, self._exchange, self._destination, self._timeout = url, exchange, destination, timeout
        self._content = content
        self._connection: AbstractConnection | None = None
        self._wires: OrderedDict[str, Wire] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    def _encode(self, place: int, envelope: Envelope) -> tuple[str, PublishEntry]:
        return self._destination(envelope), PublishEntry(place, envelope)

    async def _publish_to(self, destination: str, entries: Sequence[PublishEntry]) -> dict[int, PublishResult]:
        """Publish messages; those that were with one which closed the channel again, one by one."""
        results = await self._confirm(destination, [entry.content for entry in entries])
        found = {entry.place: result for entry, result in zip(entries, results, strict=True)}
        for entry in [entry for entry in entries if found[entry.place] is _CLOSED]:
            alone = len(entries) == 1
            found |= {entry.place: _CLOSED_BY_IT} if alone else await self._publish_to(destination, [entry])
        return found

    async def _confirm(self, destination: str, envelopes: Sequence[Envelope]) -> list[PublishResult]:
        wire = await self._wire(destination)
        if isinstance(wire, PublishResult):
            return [wire] * len(envelopes)
        encoded = [self._encode_frames(wire, destination, envelope) for envelope in envelopes]
        messages = [one for one in encoded if isinstance(one, PublishFrames)]
        errors = iter(await publish_and_confirm(wire, messages, self._timeout))
        results = [one if isinstance(one, PublishResult) else _result_of(next(errors)) for one in encoded]
        if self._wires.get(destination) is wire:
            if any(result.status is PublishStatus.UNKNOWN and result is not _CLOSED for result in results):
                await self.close()  # the connection is lost, and may not know it
            elif _UNCONFIRMED in results:
                del self._wires[destination]  # once it is closed, the broker has read it: nothing overtakes a retry
                await self._close_wire(wire)
            elif wire.is_closed:
                self._drop(destination)
        return results

    def _encode_frames(self, wire: Wire, destination: str, envelope: Envelope) -> PublishFrames | PublishResult:
        try:
            command = spec.Basic.Publish(exchange=self._exchange, routing_key=destination, mandatory=True)
            body, media_type, headers = self._content(envelope)
            return encode_frames(wire, command, _properties(envelope, media_type, headers), body)
        except (ValueError, TypeError, struct.error) as error:
            return PublishResult(PublishStatus.RETRYABLE, _text_of(error))

    # ------------------------------------------------------------ the connection, and a channel for each destination

    async def _wire(self, destination: str) -> Wire | PublishResult:
        """The channel of a destination; or why there is none, in which case nothing has been published."""
        try:
            async with self._opening:  # publish may be called while it is under way
                connection = await self._connect()
        except Exception as error:  # noqa: BLE001 - aio-pika's have no common base
            return PublishResult(PublishStatus.UNAVAILABLE, _text_of(error))
        try:
            async with asyncio.timeout(self._timeout):
                wire = self._find_open(destination) or await self._open_wire(connection, destination)
        except _REFUSED as error:
            return PublishResult(PublishStatus.STALLED, _text_of(error))
        except Exception as error:  # noqa: BLE001 - a connection that opens no channel is of no use
            if self._connection is connection:
                await self.close()
            return PublishResult(PublishStatus.UNAVAILABLE, _text_of(error))
        try:
            async with asyncio.timeout(_BLOCKED):
                await wire.connection.ready()
        except TimeoutError:
            return PublishResult(
                PublishStatus.UNAVAILABLE, "the broker is out of memory or disk, and blocks publishers"
            )
        self._wires.move_to_end(destination)
        return wire

    async def _connect(self) -> AbstractConnection:
        if self._connection is None or self._connection.is_closed:
            await self.close()
            async with asyncio.timeout(self._timeout):
                self._connection = await connect(self._url)
        return self._connection

    async def _open_wire(self, connection: AbstractConnection, destination: str) -> Wire:
        channel: AbstractChannel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        if self._exchange:
            await channel.get_exchange(self._exchange)  # raises what publishing would end the channel with
        wire = cast(Wire, await channel.get_underlay_channel())
        if (first := self._find_open(destination)) is not None:  # by another call
            self._close_in_background(wire)
            return first
        self._wires[destination] = wire
        idle = [name for name, one in self._wires.items() if name != destination and not one.confirmations]
        for name in idle[: max(0, len(self._wires) - _MOST)]:
            self._drop(name)
        return wire

    def _find_open(self, destination: str) -> Wire | None:
        wire = self._wires.get(destination)
        return None if wire is None or wire.is_closed else wire

    def _drop(self, destination: str) -> None:
        self._close_in_background(self._wires.pop(destination))

    def _close_in_background(self, wire: Wire) -> None:
        closing = asyncio.create_task(self._close_wire(wire))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_wire(self, wire: Wire) -> None:
        with suppress(Exception):
            async with asyncio.timeout(self._timeout):
                await wire.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._wires.clear()
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(self._timeout):
                    await connection.close()


def _result_of(error: BaseException | None) -> PublishResult:
    """Turn an error into a result, whose text is the same for every message: results are grouped by it."""
    if error is None:
        return ACKED
    if isinstance(error, PublishError):
        return PublishResult(
            PublishStatus.STALLED,
            f"no queue takes {cast(spec.Basic.Return, error.frame).routing_key!r}: {DECLARE}, or publish with the "
            "exchange and the partitions of the queues that there are",
        )
    if isinstance(error, DeliveryError):
        return PublishResult(PublishStatus.STALLED, "refused (basic.nack): a queue is full, or has lost its majority")
    if isinstance(error, ChannelPreconditionFailed):
        return _CLOSED
    if isinstance(error, _REFUSED):
        return PublishResult(PublishStatus.STALLED, _text_of(error))
    return _UNCONFIRMED if isinstance(error, TimeoutError) else PublishResult(PublishStatus.UNKNOWN, _text_of(error))


def _properties(envelope: Envelope, media_type: str, headers: dict[str, str]) -> spec.Basic.Properties:
    return spec.Basic.Properties(
        message_id=envelope.id,
        message_type=envelope.type,
        content_type=media_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers={**headers},
    )


def _text_of(error: BaseException) -> str:
    return str(error) if isinstance(error, LoginRefused) else error_text(error)
