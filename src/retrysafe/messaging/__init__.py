"""Messages that leave exactly when the work that they tell of is committed, and are applied once where they arrive."""

from retrysafe.core.inboxing import HandleResult, MessageOutcome
from retrysafe.messaging.batches import BatchHandler
from retrysafe.messaging.errors import BrokerUnavailable, MessageDead, MessageRefused, MessageUnreadable, SequenceGap
from retrysafe.messaging.handler import Handler
from retrysafe.messaging.inbox import Inbox
from retrysafe.messaging.inbox_operating import InboxOperator
from retrysafe.messaging.operating import OutboxOperator
from retrysafe.messaging.outbox import Message, Outbox
from retrysafe.messaging.received import InboxMessage
from retrysafe.messaging.relay import Relay, Relayed
from retrysafe.messaging.retention import OutboxSweeper
from retrysafe.messaging.subscription import Subscription
from retrysafe.types import DeadLetterFilter, Envelope, PublishResult, PublishStatus

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
    "Relay",
    "Relayed",
    "SequenceGap",
    "Subscription",
]
