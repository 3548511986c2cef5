"""The outbox, its relay, its operator, and the publishers; the inbox, its handlers, and the consumers."""

from __future__ import annotations

import importlib

from docparts.reference import reference
from retrysafe import messaging
from retrysafe.messaging.brokers import faststream, memory, registry, sync_publisher, webhook
from retrysafe.messaging.brokers.consumer import AssignedConsumer, BrokerConsumer, LaggingConsumer
from retrysafe.messaging.brokers.kafka import offsets, transactions
from retrysafe.messaging.brokers.publisher import BrokerPublisher
from retrysafe.messaging.brokers.sessions import SessionOwner
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
PACKAGES = {name: importlib.import_module(f"retrysafe.messaging.brokers.{name}") for name in registry.BROKERS}


def _with_method(method: str) -> list[type]:
    """The public classes of brokers that have a method."""
    values = [getattr(package, name) for package in PACKAGES.values() for name in package.__all__]
    return [value for value in values if isinstance(value, type) and hasattr(value, method)]


CONSUMERS = (
    *_with_method("receive"),
    transactions.KafkaTransactions,
    transactions.KafkaTransaction,
    offsets.KafkaState,
    offsets.StateTransaction,
    memory.MemoryBroker,
    faststream.InboxMiddleware,
)
PUBLISHERS = (
    *_with_method("publish"),
    webhook.WebhookPublisher,
    webhook.AsyncWebhookPublisher,
    memory.MemoryPublisher,
    memory.AsyncMemoryPublisher,
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
    declaring = {name: package.declare for name, package in PACKAGES.items() if "declare" in package.__all__}
    found += [reference(f"{'brokers.' * (name == 'sqlite')}{name}.declare", one) for name, one in declaring.items()]
    return "\n".join(found).replace("\n## ", "\n### ").replace("## `", "### `", 1)


def _section(kind: type) -> str:
    """A consumer or publisher; what its engine does is said there."""
    engine = next((one for one in ENGINES if issubclass(kind, one) and kind is not one), None)
    if engine is None:
        return reference(kind.__name__, kind, *((SessionOwner,) if issubclass(kind, SessionOwner) else ()))
    return f"{reference(kind.__name__, kind)}\nThe rest is as of [`{engine.__name__}`](#{engine.__name__.lower()}).\n"
