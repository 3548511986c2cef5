"""RabbitMQ: persistent messages, confirmed by the broker, and refused when no queue takes them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import DeliveryError, PublishError
from aiormq import Channel as Wire
from aiormq import spec

from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.lanes import partition, partitions_of
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.amqp import PREFIXES, Binding, headers_of
from retrysafe.messaging.publishers.confirming import Parcel, confirmed, packed
from retrysafe.types import Duration, Envelope, Published, Reception

_ACKED = Published(Reception.ACKED)


class RabbitMQPublisher:
    """Publishes to an exchange, each message with its topic as routing key, and waits for the broker's confirms.

    A confirm means that the queues have the message; give them the type "quorum" for it to be on a majority of nodes. A
    message that no queue takes is tried again: declare queues before.

    Arguments:
        url: of the broker, as in "amqp://user:password@host/".
        exchange: its name; by default the exchange that routes to the queue named like the topic.
        partitions: over how many queues a topic is spread, named "TOPIC.0" and so on: all messages of one key go to one
            of them. By default one queue, named like the topic. Their number is not to be changed while messages
            are under way, and consumers must be told the same.
        timeout: how long confirms are waited for; a message without one is sent again, under the same id.
        binding: of CloudEvents, in which headers are written: "amqp" ("cloudEvents:id"), or "rabbitmq" ("ce-id") for
            consumers that read only that one. Our consumers read both, and structured mode.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str = "",
        partitions: int | None = None,
        timeout: Duration = "10s",
        binding: Binding = "amqp",
    ) -> None:
        partitions_of("", partitions)  # refuses a wrong number
        if binding not in PREFIXES:
            raise ConfigurationError(f'binding= is "amqp" or "rabbitmq", not {binding!r}.')
        self._binding: Binding = binding
        self._url, self._exchange, self._partitions = url, exchange, partitions
        self._timeout = seconds_of(timeout, "timeout")
        self._connection: AbstractConnection | None = None
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[Published]:
        """Publish them at once, and wait for every confirm."""
        if not envelopes:
            return []
        try:
            async with self._opening:  # publish may be called while it is under way
                wire = await self._opened()
        except Exception as error:  # noqa: BLE001 - aio-pika's have no common base; nothing has been published
            return [Published(Reception.UNAVAILABLE, _said(error))] * len(envelopes)
        packs = [self._packed(wire, envelope) for envelope in envelopes]
        errors = iter(await confirmed(wire, [pack for pack in packs if isinstance(pack, Parcel)], self._timeout))
        published = [pack if isinstance(pack, Published) else _judged(next(errors)) for pack in packs]
        if wire is self._wire and any(one.reception is Reception.UNKNOWN for one in published):
            await self._hang_up()
        return published

    async def aclose(self) -> None:
        """Hang up."""
        await self._hang_up()

    def _packed(self, wire: Wire, envelope: Envelope) -> Parcel | Published:
        place = partition(envelope.topic, envelope.key, envelope.id, self._partitions)
        try:
            command = spec.Basic.Publish(exchange=self._exchange, routing_key=place, mandatory=True)
            return packed(wire, command, _properties(envelope, self._binding), envelope.payload)
        except (ValueError, TypeError, struct.error) as error:
            return Published(Reception.RETRYABLE, _said(error))

    async def _opened(self) -> Wire:
        if self._wire is None or self._connection is None or self._connection.is_closed:
            await self._hang_up()
            async with asyncio.timeout(self._timeout):
                self._connection = await aio_pika.connect(self._url)
                channel: AbstractChannel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=True
                )
                if self._exchange:
                    await channel.get_exchange(self._exchange)  # raises what publishing would end the channel with
                self._wire = cast(Wire, await channel.get_underlay_channel())
        return self._wire

    async def _hang_up(self) -> None:
        connection, self._connection, self._wire = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(self._timeout):
                    await connection.close()


def _judged(error: BaseException | None) -> Published:
    if error is None:
        return _ACKED
    if isinstance(error, PublishError):
        return Published(Reception.RETRYABLE, f"no queue takes {cast(spec.Basic.Return, error.frame).routing_key!r}")
    return Published(Reception.RETRYABLE if isinstance(error, DeliveryError) else Reception.UNKNOWN, _said(error))


def _properties(envelope: Envelope, binding: Binding) -> spec.Basic.Properties:
    return spec.Basic.Properties(
        message_id=envelope.id,
        message_type=envelope.type,
        content_type=envelope.media_type,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers={**headers_of(envelope, binding)},
    )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
