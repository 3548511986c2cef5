"""The outbox, its relay, its operator, and the publishers."""

from __future__ import annotations

from docparts.reference import reference
from retrysafe import messaging
from retrysafe.messaging.publishers import memory, rabbitmq, redis_streams, webhook

NAMES = (
    "Outbox",
    "Message",
    "MessageRefused",
    "Relay",
    "Relayed",
    "OutboxOperator",
    "OutboxSweeper",
    "Chosen",
    "Envelope",
    "Published",
    "Reception",
)
PUBLISHERS = (
    rabbitmq.RabbitMQPublisher,
    redis_streams.RedisStreamsPublisher,
    redis_streams.AsyncRedisStreamsPublisher,
    webhook.WebhookPublisher,
    webhook.AsyncWebhookPublisher,
    memory.MemoryPublisher,
    memory.AsyncMemoryPublisher,
)


def names() -> str:
    """Every public name but the publishers."""
    return "\n".join(reference(name, getattr(messaging, name)) for name in NAMES)


def publishers() -> str:
    """The publishers, each with its module."""
    found = [reference(kind.__name__, kind) for kind in PUBLISHERS]
    return "\n".join(found).replace("\n## ", "\n### ").replace("## `", "### `", 1)
