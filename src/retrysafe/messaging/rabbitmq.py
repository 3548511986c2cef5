"""The queues that publishers and consumers of RabbitMQ meet in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aio_pika
from aiormq.abc import FieldTable

from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.lanes import partitions_of
from retrysafe.types import Duration

NEVER = 2_000_000_000
"""The limit of deliveries after which a quorum queue throws a message away: 20 in RabbitMQ 4, where none is set."""


async def declare(
    url: str,
    topics: str | Iterable[str],
    *,
    partitions: int | None = None,
    ordered: bool = True,
    within: Duration = "10s",
) -> None:
    """Declare the durable quorum queues of topics; queues that are there and alike stay as they are.

    A queue never throws a message away after so many deliveries: it would count crashes and restarts of innocent
    consumers. Whether a message is given up is decided, and remembered, by the inbox, with its attempts.

    Arguments:
        url: of the broker.
        topics: one or more.
        partitions: over how many queues each is spread, as publishers and consumers are told.
        ordered: a queue has a single active consumer, so that messages of one key keep their order; others wait to
            take its place. Without it consumers share a queue, and order is what the inbox's sequences make of it.
        within: how long the broker may take; after that `TimeoutError` is raised.

    Raises `aio_pika.exceptions.ChannelPreconditionFailed` when a queue is there with other arguments: what a queue is
    cannot be changed. Give it another name, or delete it when it is empty.
    """
    arguments: FieldTable = {"x-queue-type": "quorum", "x-delivery-limit": NEVER}
    if ordered:
        arguments["x-single-active-consumer"] = True
    async with asyncio.timeout(seconds_of(within, "within")), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for topic in [topics] if isinstance(topics, str) else topics:
            for queue in partitions_of(topic, partitions):
                await channel.declare_queue(queue, durable=True, arguments=arguments)
