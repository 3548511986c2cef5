"""SQS and SNS, set up wrongly: queues that lose order and messages, and a topic without a queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

from retrysafe.messaging.brokers import sqs
from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, unique
from tests.messaging.harnesses.sqs import options_of, service, without_queue, without_topic


def _service(ground: Ground) -> str:
    """SQS of the service that has SNS too, and knows more attributes than a service of queues alone."""
    return "sqs" + ground.service("sns").removeprefix("sns")


def _created(finds: str, severity: Severity, broken: str, made: str, **attributes: str) -> Setup:
    """A FIFO queue with these attributes."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = _service(ground), unique()
        full = name if attributes.get("FifoQueue") == "" else f"{name}.fifo"
        asyncio.run(_create(url, full, attributes))
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            for one in (full, _dead(full)):
                asyncio.run(without_queue(url, one))

    return Setup(broken, made, finds, severity, make)


def _dead(name: str) -> str:
    """The name of a queue's dead-letter queue, which is FIFO when the queue is."""
    base, dot, fifo = name.partition(".")
    return f"{base}-dead{dot}{fifo}"


async def _create(url: str, name: str, attributes: dict[str, str]) -> None:
    """Make a queue; "RedrivePolicy" is how often a message is received before it goes to a queue beside this one."""
    settings = {name: value for name, value in {"FifoQueue": "true", **attributes}.items() if value}
    fifo = {name: value for name, value in settings.items() if name == "FifoQueue"}
    async with service("sqs", url) as client:
        if "RedrivePolicy" in settings:
            dead = (await client.call("create_queue", QueueName=_dead(name), Attributes=fifo))["QueueUrl"]
            told = await client.call("get_queue_attributes", QueueUrl=dead, AttributeNames=["QueueArn"])
            policy = {"deadLetterTargetArn": told["Attributes"]["QueueArn"], "maxReceiveCount": 3}
            settings["RedrivePolicy"] = json.dumps(policy)
        await client.call("create_queue", QueueName=name, Attributes=settings)


@contextmanager
def sound(ground: Ground) -> Iterator[Arguments]:
    """A queue as `declare` makes it."""
    url, name = _service(ground), unique()
    asyncio.run(sqs.declare(name, **options_of(url)))
    try:
        yield ["--broker", url, "--topic", name]
    finally:
        asyncio.run(without_queue(url, f"{name}.fifo"))


@contextmanager
def sound_topic(ground: Ground) -> Iterator[Arguments]:
    """A topic of SNS, and the queue of a service that subscribes to it."""
    url, name = ground.service("sns"), unique()
    asyncio.run(sqs.declare(name, group="mail", **options_of(url)))
    try:
        yield ["--broker", url, "--topic", name]
    finally:
        asyncio.run(without_queue(url, f"mail_2e_{name}.fifo"))
        asyncio.run(without_topic(url, f"{name}.fifo"))


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", _service(ground), "--topic", unique()]


@contextmanager
def _lonely(ground: Ground) -> Iterator[Arguments]:
    url, name = ground.service("sns"), unique()
    asyncio.run(_topic(url, f"{name}.fifo"))
    try:
        yield ["--broker", url, "--topic", name]
    finally:
        asyncio.run(without_topic(url, f"{name}.fifo"))


async def _topic(url: str, name: str) -> None:
    async with service("sns", url) as client:
        await client.call("create_topic", Name=name, Attributes={"FifoTopic": "true"})


BROKEN = (
    Setup("There is no such queue.", "nothing declared", "sqs-queue", ERROR, _missing),
    _created("sqs-order", WARNING, "Messages of a key may overtake each other.", "a standard queue", FifoQueue=""),
    _created(
        "sqs-dead-letters",
        WARNING,
        "Messages are moved away whose consumers crashed, and later ones pass.",
        "`maxReceiveCount=3`",
        RedrivePolicy="3",
    ),
    _created(
        "sqs-retention",
        WARNING,
        "Messages are lost while consumers are down for an hour.",
        "`MessageRetentionPeriod=3600`",
        MessageRetentionPeriod="3600",
    ),
    Setup("No queue gets what is published.", "a topic of SNS alone", "sns-subscription", ERROR, _lonely),
)
