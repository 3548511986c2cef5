"""Messages that leave exactly when the work that they tell of is committed, and are applied once where they arrive."""

from retrysafe.messaging.brokers.sync_publisher import SyncPublisher
from retrysafe.messaging.errors import (
    BrokerUnavailable,
    MessageDead,
    MessageRefused,
    MessageUnreadable,
    QueueMissing,
    SequenceGap,
)
from retrysafe.messaging.inbox.batches import BatchHandler
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.inbox.message import InboxMessage
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.messaging.outbox import Message, Outbox
from retrysafe.messaging.relay.operator import OutboxOperator, OutboxSweeper
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.messaging.subscription.subscription import Subscription
from retrysafe.protocol.messages import DeadLetterFilter, Envelope, PublishResult, PublishStatus
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome

__all__ = [
    "BatchHandler",
    "BrokerUnavailable",
    "DeadLetterFilter",
    "Envelope",
    "HandleResult",
    "Handler",
    "Inbox",
    "InboxMessage",
    "InboxOperator",
    "Message",
    "MessageDead",
    "MessageOutcome",
    "MessageRefused",
    "MessageUnreadable",
    "Outbox",
    "OutboxOperator",
    "OutboxSweeper",
    "PublishResult",
    "PublishStatus",
    "QueueMissing",
    "Relay",
    "Relayed",
    "SequenceGap",
    "Subscription",
    "SyncPublisher",
]
