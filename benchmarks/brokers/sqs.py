"""A FIFO queue of SQS, and aiobotocore: ten messages a request, one request after the other."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiobotocore.session import get_session

from benchmarks import services
from benchmarks.brokers.base import Broker, Receive, new_topic, portions, receiving
from retrysafe.messaging.brokers.sqs import SqsConsumer, SqsPublisher, declare
from retrysafe.messaging.brokers.sqs.messages import content_of, order_of
from retrysafe.messaging.brokers.sqs.opening import options_of
from retrysafe.protocol.messages import Envelope

AT_ONCE = 10
"""The largest number of messages in a request."""


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new queue."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "bench")  # a server in the place of AWS takes any
    options, topic = options_of(services.url("sqs")), new_topic()
    await declare(topic, **options)
    made = get_session().create_client("sqs", region_name=options.get("region"), endpoint_url=options.get("endpoint"))
    async with made as client:
        queue = (await client.get_queue_url(QueueName=f"{topic}.fifo"))["QueueUrl"]

        async def raw(written: Sequence[Envelope]) -> None:
            for some in portions(written, AT_ONCE):
                entries = [_entry(at, envelope) for at, envelope in enumerate(some)]
                answer = await client.send_message_batch(QueueUrl=queue, Entries=entries)
                assert len(answer["Successful"]) == len(some)

        async def clear() -> None:
            await client.purge_queue(QueueUrl=queue)

        publisher = SqsPublisher(**options)
        make = partial(SqsConsumer, topic, poll="1s", **options)
        yield Broker(topic, publisher, raw, clear, partial(receiving, make), partial(raw_receiving, client, queue))
        await publisher.aclose()
        await client.delete_queue(QueueUrl=queue)


def _entry(at: int, envelope: Envelope) -> dict[str, Any]:
    body, told = content_of(envelope, "binary")
    return {"Id": str(at), "MessageBody": body, "MessageAttributes": told, **order_of(envelope)}


@asynccontextmanager
async def raw_receiving(client: Any, queue: str) -> AsyncIterator[Receive]:
    """Receives with the raw client, and deletes before it receives more."""

    async def receive() -> int:
        answer = await client.receive_message(
            QueueUrl=queue,
            MaxNumberOfMessages=AT_ONCE,
            WaitTimeSeconds=1,
            VisibilityTimeout=60,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageGroupId"],
        )
        found = answer.get("Messages", [])
        if found:
            entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(found)]
            await client.delete_message_batch(QueueUrl=queue, Entries=entries)
        return len(found)

    yield receive
