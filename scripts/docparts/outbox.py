"""The outbox, its relay, its operator, and the publishers; the inbox, its handlers, and the consumers."""

from __future__ import annotations

from docparts.reference import reference
from retrysafe import messaging
from retrysafe.messaging.brokers import faststream, sync_publisher, webhook
from retrysafe.messaging.brokers.consumer import AssignedConsumer, BrokerConsumer, LaggingConsumer
from retrysafe.messaging.brokers.kafka import consumer as from_kafka
from retrysafe.messaging.brokers.kafka import offsets as kafka_offsets
from retrysafe.messaging.brokers.kafka import publisher as to_kafka
from retrysafe.messaging.brokers.kafka import topics as kafka_topics
from retrysafe.messaging.brokers.kafka import transactions as kafka_transactions
from retrysafe.messaging.brokers.memory import broker as memory_broker
from retrysafe.messaging.brokers.memory import publisher as to_memory
from retrysafe.messaging.brokers.mqtt import consumer as from_mqtt
from retrysafe.messaging.brokers.mqtt import publisher as to_mqtt
from retrysafe.messaging.brokers.mqtt import topology as mqtt_topology
from retrysafe.messaging.brokers.nats import consumer as from_nats
from retrysafe.messaging.brokers.nats import publisher as to_nats
from retrysafe.messaging.brokers.nats import topology as nats_topology
from retrysafe.messaging.brokers.publisher import BrokerPublisher
from retrysafe.messaging.brokers.pubsub import consumer as from_pubsub
from retrysafe.messaging.brokers.pubsub import publisher as to_pubsub
from retrysafe.messaging.brokers.pubsub import topology as pubsub_topology
from retrysafe.messaging.brokers.rabbitmq import consumer as from_rabbitmq
from retrysafe.messaging.brokers.rabbitmq import publisher as to_rabbitmq
from retrysafe.messaging.brokers.rabbitmq import topology as topology
from retrysafe.messaging.brokers.redis_streams import consumer as from_redis
from retrysafe.messaging.brokers.redis_streams import publisher as to_redis
from retrysafe.messaging.brokers.servicebus import consumer as from_servicebus
from retrysafe.messaging.brokers.servicebus import publisher as to_servicebus
from retrysafe.messaging.brokers.servicebus import topology as servicebus_topology
from retrysafe.messaging.brokers.sessions import SessionOwner
from retrysafe.messaging.brokers.sqlite import broker as sqlite
from retrysafe.messaging.brokers.sqs import consumer as from_sqs
from retrysafe.messaging.brokers.sqs import publisher as to_sqs
from retrysafe.messaging.brokers.sqs import topology as sqs_topology
from retrysafe.messaging.cdc import Slot, SlotStatus
from retrysafe.messaging.inbox.inbox import Options

NAMES = (
    "Outbox",
    "Message",
    "MessageRefused",
    "Relay",
    "Relayed",
    "OutboxOperator",
    "OutboxSweeper",
    "DeadLetterFilter",
    "Envelope",
    "PublishResult",
    "PublishStatus",
)
INBOX = (
    "Inbox",
    "Handler",
    "BatchHandler",
    "InboxMessage",
    "HandleResult",
    "MessageOutcome",
    "Subscription",
    "InboxOperator",
    "MessageDead",
    "MessageUnreadable",
    "QueueMissing",
    "SequenceGap",
)
CONSUMERS = (
    from_kafka.KafkaConsumer,
    kafka_transactions.KafkaTransactions,
    kafka_transactions.KafkaTransaction,
    kafka_offsets.KafkaState,
    kafka_offsets.StateTransaction,
    from_rabbitmq.RabbitMQConsumer,
    from_redis.RedisStreamsConsumer,
    from_mqtt.MqttConsumer,
    from_nats.NatsConsumer,
    from_sqs.SqsConsumer,
    from_pubsub.PubSubConsumer,
    from_servicebus.ServiceBusConsumer,
    memory_broker.MemoryBroker,
    sqlite.SqliteConsumer,
    faststream.InboxMiddleware,
)
PUBLISHERS = (
    to_kafka.KafkaPublisher,
    to_kafka.AsyncKafkaPublisher,
    to_rabbitmq.RabbitMQPublisher,
    to_redis.RedisStreamsPublisher,
    to_redis.AsyncRedisStreamsPublisher,
    to_mqtt.MqttPublisher,
    to_nats.NatsPublisher,
    to_sqs.SqsPublisher,
    to_sqs.SnsPublisher,
    to_pubsub.PubSubPublisher,
    to_servicebus.ServiceBusPublisher,
    webhook.WebhookPublisher,
    webhook.AsyncWebhookPublisher,
    to_memory.MemoryPublisher,
    to_memory.AsyncMemoryPublisher,
    sync_publisher.SyncPublisher,
)


ENGINES = (AssignedConsumer, LaggingConsumer, BrokerConsumer, BrokerPublisher)


def names() -> str:
    """Every public name but the publishers."""
    found = [reference(name, getattr(messaging, name)) for name in NAMES]
    return "\n".join([*found, *(reference(kind.__name__, kind) for kind in (Slot, SlotStatus))])


def publishers() -> str:
    """The publishers, each with its module."""
    found = [_section(kind) for kind in (BrokerPublisher, *PUBLISHERS)]
    return "\n".join(found).replace("\n## ", "\n### ").replace("## `", "### `", 1)


def inbox() -> str:
    """The inbox and what goes with it, but the consumers."""
    found = [reference(name, getattr(messaging, name)) for name in INBOX]
    return "\n".join([*found, reference("Options", Options)])


def consumers() -> str:
    """The consumers and what declares what they consume, each with its module."""
    found = [_section(kind) for kind in (BrokerConsumer, LaggingConsumer, AssignedConsumer, *CONSUMERS)]
    found += [
        reference("kafka.declare", kafka_topics.declare),
        reference("mqtt.declare", mqtt_topology.declare),
        reference("nats.declare", nats_topology.declare),
        reference("pubsub.declare", pubsub_topology.declare),
        reference("rabbitmq.declare", topology.declare),
        reference("servicebus.declare", servicebus_topology.declare),
        reference("sqs.declare", sqs_topology.declare),
        reference("brokers.sqlite.declare", sqlite.declare),
    ]
    return "\n".join(found).replace("\n## ", "\n### ").replace("## `", "### `", 1)


def _section(kind: type) -> str:
    """A consumer or publisher; what its engine does is said there."""
    engine = next((one for one in ENGINES if issubclass(kind, one) and kind is not one), None)
    if engine is None:
        return reference(kind.__name__, kind, *(one for one in (SessionOwner,) if kind in ENGINES))
    return f"{reference(kind.__name__, kind)}\nThe rest is as of [`{engine.__name__}`](#{engine.__name__.lower()}).\n"
