"""MQTT 5: publisher, consumer, and the sessions in which a broker keeps messages. Needs the extra ``mqtt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
    BROKER_TIMEOUT,
    KEEP,
    LEASE,
    MODE,
    PARTITIONS,
    PREFETCH,
    PREFIX,
    REDELIVERY_WINDOW,
    BrokerSpec,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
    from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
    from retrysafe.messaging.brokers.mqtt.topology import declare

__all__ = ["BROKER", "MqttConsumer", "MqttPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="MQTT",
    schemes=("mqtt", "mqtts"),
    broker="opening:Mqtt",
    publisher="publisher:MqttPublisher",
    options=(PREFIX, MODE, BROKER_TIMEOUT, PARTITIONS),
    consumer="consumer:MqttConsumer",
    consumer_options=(PARTITIONS, PREFIX, PREFETCH, LEASE, REDELIVERY_WINDOW, BROKER_TIMEOUT, KEEP),
    declaration="opening:declaration",
    declare_options=(PREFIX, PARTITIONS, KEEP),
    extra="mqtt",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"MqttConsumer": "consumer", "MqttPublisher": "publisher", "declare": "topology"},
)
