"""Messages that leave exactly when the work that they tell of is committed."""

from retrysafe.messaging.errors import MessageRefused
from retrysafe.messaging.operating import OutboxOperator
from retrysafe.messaging.outbox import Message, Outbox
from retrysafe.messaging.relay import Relay, Relayed
from retrysafe.messaging.retention import OutboxSweeper
from retrysafe.types import Chosen, Envelope, Published, Reception

__all__ = [
    "Chosen",
    "Envelope",
    "Message",
    "MessageRefused",
    "Outbox",
    "OutboxOperator",
    "OutboxSweeper",
    "Published",
    "Reception",
    "Relay",
    "Relayed",
]
