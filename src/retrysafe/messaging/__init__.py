"""Messages that leave exactly when the work that they tell of is committed, and are applied once where they arrive."""

from retrysafe.core.inboxing import Became, Handled
from retrysafe.messaging.batches import BatchHandler
from retrysafe.messaging.errors import BrokerUnavailable, MessageDead, MessageRefused, MessageUnreadable, SequenceGap
from retrysafe.messaging.handler import Handler
from retrysafe.messaging.inbox import Inbox
from retrysafe.messaging.inbox_operating import InboxOperator
from retrysafe.messaging.operating import OutboxOperator
from retrysafe.messaging.outbox import Message, Outbox
from retrysafe.messaging.received import Received
from retrysafe.messaging.relay import Relay, Relayed
from retrysafe.messaging.retention import OutboxSweeper
from retrysafe.messaging.subscription import Subscription
from retrysafe.types import Chosen, Envelope, Published, Reception

__all__ = [
    "BatchHandler",
    "Became",
    "BrokerUnavailable",
    "Chosen",
    "Envelope",
    "Handled",
    "Handler",
    "Inbox",
    "InboxOperator",
    "Message",
    "MessageDead",
    "MessageRefused",
    "MessageUnreadable",
    "Outbox",
    "OutboxOperator",
    "OutboxSweeper",
    "Published",
    "Received",
    "Reception",
    "Relay",
    "Relayed",
    "SequenceGap",
    "Subscription",
]
