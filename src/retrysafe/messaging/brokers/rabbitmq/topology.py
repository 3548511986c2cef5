"""The exchanges and queues in which publishers and consumers of RabbitMQ meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aio_pika import ExchangeType
from aiormq.abc import FieldTable

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.rabbitmq.connecting import connect
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.ordering import partitions_of
from retrysafe.protocol.records import Duration

NEVER = 2_000_000_000
"""The limit of deliveries after which a quorum queue throws a message away: 20 in RabbitMQ 4, where none is set."""


DECLARE = f"declare it:  {declaring()}"
"""The remedy for a missing queue."""


async def declare(
    url: str,
    topics: str | Iterable[str],
    *,
    partitions: int | None = None,
    ordered: bool = True,
    exchange: str | None = None,
    group: str | None = None,
    within: Duration = "10s",
) -> None:
    """Declare the durable quorum queues of topics; what is there and alike stays as it is.

    Beside the queues of partitions that are ``ordered`` there is one without messages, "TOPIC.consumers": in it the
    consumers are counted, so that they share the others out.

    Without an exchange a topic has one queue, and each of its messages reaches one consumer. Where several services
    must each get every message, they share an exchange and each declares queues of its own, as its ``group``.

    A queue never throws a message away after so many deliveries: it would count crashes and restarts of innocent
    consumers. Whether a message is given up is decided, and remembered, by the inbox, with its attempts.

    Arguments:
        url: of the broker.
        topics: one or more.
        partitions: over how many queues each is spread, as publishers and consumers are told.
        ordered: a queue has a single active consumer, so that messages of one key keep their order; others wait to
            take its place. Without it consumers share a queue, and order is what the inbox's sequences make of it.
        exchange: the exchange that the queues of a group are bound to; durable, of the type "topic", and declared too.
            Routing keys are the names of topics (or of their partitions), and publishers need the same. A message is
            lost for a group whose queues are not bound yet when it is published.
        group: the service whose queues these are; its consumers need the same. They are named "GROUP.TOPIC".
        within: how long the broker may take; after that `TimeoutError` is raised.

    Raises `ConfigurationError` for a group without an exchange, `aio_pika.exceptions.ChannelPreconditionFailed` when
    a queue or an exchange is there with other arguments: these cannot be changed. Give it another name, or delete
    it when it is empty.
    """
    if group is not None and not exchange:
        raise ConfigurationError(f"group={group!r} needs exchange=: without one, no message would reach its queues.")
    arguments: FieldTable = {"x-queue-type": "quorum", "x-delivery-limit": NEVER}
    if ordered:
        arguments["x-single-active-consumer"] = True
    async with asyncio.timeout(seconds_of(within, "within")), await connect(url) as connection:
        channel = await connection.channel()
        bound = await channel.declare_exchange(exchange, ExchangeType.TOPIC, durable=True) if exchange else None
        for topic in [topics] if isinstance(topics, str) else topics:
            for place in partitions_of(topic, partitions):
                queue = await channel.declare_queue(queue_of(place, group), durable=True, arguments=arguments)
                if bound is not None:
                    await queue.bind(bound, routing_key=place)
            if ordered and partitions is not None:
                await channel.declare_queue(members_of(topic, group), durable=True)


def queue_of(place: str, group: str | None) -> str:
    """The queue of a topic or partition: its own name, or that of a group for it."""
    return place if group is None else f"{group}.{place}"


def members_of(topic: str, group: str | None) -> str:
    """The queue in which the consumers of a topic are counted."""
    return f"{queue_of(topic, group)}.consumers"
