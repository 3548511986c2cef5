"""RabbitMQ, set up wrongly: queues that lose messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aio_pika

from retrysafe.messaging.brokers import rabbitmq
from retrysafe.protocol.checks import Severity
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, unique
from tests.ports import free_port


def _declared(finds: str, severity: Severity, broken: str, made: str, **settings: Any) -> Setup:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url, name = ground.service("rabbitmq"), unique()
        asyncio.run(_declare(url, name, settings))
        try:
            yield ["--broker", url, "--topic", name]
        finally:
            asyncio.run(remove(url, name))

    return Setup(broken, made, finds, severity, make)


async def _declare(url: str, name: str, settings: dict[str, Any]) -> None:
    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).declare_queue(name, **settings)


async def remove(url: str, *names: str) -> None:
    """Delete queues."""
    async with await aio_pika.connect(url) as connection:
        for name in names:
            await (await connection.channel()).queue_delete(name)


@contextmanager
def sound(ground: Ground) -> Iterator[Arguments]:
    """Queues as `declare` makes them: for a key's order, without it, and in partitions."""
    url, names = ground.service("rabbitmq"), [unique(), unique(), unique()]
    for name, ordered, partitions in zip(names, (True, False, True), (None, None, 2), strict=True):
        asyncio.run(rabbitmq.declare(url, name, ordered=ordered, partitions=partitions))
    try:
        yield ["--broker", url, *(word for name in names for word in ("--topic", name))]
    finally:
        asyncio.run(remove(url, *names, f"{names[2]}.0", f"{names[2]}.1"))


@contextmanager
def _missing(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", ground.service("rabbitmq"), "--topic", unique()]


@contextmanager
def _exclusive(ground: Ground) -> Iterator[Arguments]:
    url, name = ground.service("rabbitmq"), unique()

    async def declared() -> Any:
        connection = await aio_pika.connect(url)
        await (await connection.channel()).declare_queue(name, exclusive=True)
        return connection

    with asyncio.Runner() as runner:
        connection = runner.run(declared())
        yield ["--broker", url, "--topic", name]
        runner.run(connection.close())


@contextmanager
def _dead(ground: Ground) -> Iterator[Arguments]:
    yield ["--broker", f"amqp://guest@127.0.0.1:{free_port()}/", "--topic", "orders"]


BROKEN = (
    Setup("Nobody answers.", "a port where nothing listens", "broker-unreachable", ERROR, _dead),
    Setup("There is no such queue.", "nothing declared", "rabbitmq-queue", ERROR, _missing),
    _declared(
        "rabbitmq-quorum",
        WARNING,
        "A queue is on one node alone.",
        "a durable classic queue",
        durable=True,
    ),
    _declared(
        "rabbitmq-durable",
        ERROR,
        "A restart of the broker deletes the queue.",
        "`durable=False`",
        durable=False,
    ),
    Setup(
        "The queue is deleted with the connection that has declared it.",
        "`exclusive=True`, and the connection is open",
        "rabbitmq-exclusive",
        ERROR,
        _exclusive,
    ),
    _declared(
        "rabbitmq-dead-letters",
        ERROR,
        "A message that was delivered too often is thrown away.",
        "a quorum queue without `x-delivery-limit`, and without dead letters",
        durable=True,
        arguments={"x-queue-type": "quorum"},
    ),
)
UNMADE = {
    "rabbitmq-permission": {"differing": {"orders": "refused"}},
}
