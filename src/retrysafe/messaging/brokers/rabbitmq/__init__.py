"""RabbitMQ: publisher, consumer, and the queues that they meet in. Needs the extra ``rabbitmq``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.spec import (
    BROKER_TIMEOUT,
    MODE,
    ORDERED,
    PARTITIONS,
    PREFETCH,
    REDELIVERY_WINDOW,
    BrokerSpec,
    Option,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
    from retrysafe.messaging.brokers.rabbitmq.topology import NEVER, declare

__all__ = ["BROKER", "NEVER", "RabbitMQConsumer", "RabbitMQPublisher", "declare"]


def _numbers(text: str) -> list[int]:
    for one in text.split(","):
        if not one.strip().isdecimal():
            raise ConfigurationError(f"--only-partitions: {one!r} is no number.")
    return [int(one) for one in text.split(",")]


BROKER = BrokerSpec(
    package=__name__,
    title="RabbitMQ",
    schemes=("amqp", "amqps"),
    broker="opening:RabbitMQ",
    publisher="publisher:RabbitMQPublisher",
    options=(
        Option("exchange", "publish to this exchange", default="", metavar="NAME"),
        Option("binding", "how headers of CloudEvents are named (amqp)", default="amqp", choices=("amqp", "rabbitmq")),
        MODE,
        BROKER_TIMEOUT,
        PARTITIONS,
    ),
    consumer="consumer:RabbitMQConsumer",
    consumer_options=(
        PARTITIONS,
        PREFETCH,
        REDELIVERY_WINDOW,
        BROKER_TIMEOUT,
        Option(
            "only_partitions",
            "the numbers of the partitions to take part in, as in 0,1 (default: all)",
            metavar="N,…",
            convert=_numbers,
        ),
    ),
    declaration="opening:declaration",
    declare_options=(
        PARTITIONS,
        ORDERED,
        Option("exchange", "the exchange that the queues of a group are bound to", default="", metavar="NAME"),
    ),
    extra="rabbitmq",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"NEVER": "topology", "RabbitMQConsumer": "consumer", "RabbitMQPublisher": "publisher", "declare": "topology"},
)
