"""MQTT 5: publisher, consumer, and the sessions in which a broker keeps messages. Needs the extra ``mqtt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
    from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
    from retrysafe.messaging.brokers.mqtt.topology import declare

__all__ = ["BROKER", "MqttConsumer", "MqttPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="MQTT",
    schemes=("mqtt", "mqtts"),
    publisher="publisher:MqttPublisher",
    consumer="consumer:MqttConsumer",
    declaration="topology:declare",
    declares=("prefix", "partitions", "keep"),
    extra="mqtt",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="MqttConsumer", publisher="MqttPublisher", topology="declare")
