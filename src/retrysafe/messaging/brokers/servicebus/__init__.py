"""Azure Service Bus: publisher to queues and topics, consumer of sessions. Needs the extra ``servicebus``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
    BROKER_TIMEOUT,
    LEASE,
    MODE,
    ORDERED,
    PARTITIONS,
    POLL,
    PREFETCH,
    PREFETCH_BYTES,
    PREFIX,
    REDELIVERY_WINDOW,
    BrokerSpec,
    Option,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.servicebus.consumer import ServiceBusConsumer
    from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
    from retrysafe.messaging.brokers.servicebus.topology import declare

__all__ = ["BROKER", "ServiceBusConsumer", "ServiceBusPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Azure Service Bus",
    schemes=("servicebus",),
    broker="opening:ServiceBusTopics",
    publisher="publisher:ServiceBusPublisher",
    options=(PARTITIONS, PREFIX, MODE, ORDERED, BROKER_TIMEOUT),
    consumer="consumer:ServiceBusConsumer",
    consumer_options=(
        PREFIX,
        ORDERED,
        PREFETCH,
        PREFETCH_BYTES,
        POLL,
        REDELIVERY_WINDOW,
        BROKER_TIMEOUT,
        Option("sessions", "sessions of a topic that are held at a time", type=int, metavar="N"),
        Option("idle", "how long a session without messages is held", metavar="TIME"),
    ),
    declaration="opening:declaration",
    declare_options=(PREFIX, ORDERED, LEASE),
    extra="servicebus",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"ServiceBusConsumer": "consumer", "ServiceBusPublisher": "publisher", "declare": "topology"},
)
