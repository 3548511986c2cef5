"""Azure Service Bus: publisher to queues and topics, consumer of sessions. Needs the extra ``servicebus``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.servicebus.consumer import ServiceBusConsumer
    from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
    from retrysafe.messaging.brokers.servicebus.topology import declare

__all__ = ["BROKER", "ServiceBusConsumer", "ServiceBusPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Azure Service Bus",
    schemes=("servicebus",),
    publisher="publisher:ServiceBusPublisher",
    consumer="consumer:ServiceBusConsumer",
    declaration="topology:declare",
    declares=("prefix", "ordered", "lease"),
    extra="servicebus",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="ServiceBusConsumer", publisher="ServiceBusPublisher", topology="declare")
