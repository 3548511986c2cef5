"""Messages that leave exactly when the work that they tell of is committed."""

from retrysafe.messaging.errors import MessageRefused
from retrysafe.messaging.outbox import Message, Outbox
from retrysafe.types import Envelope

__all__ = ["Envelope", "Message", "MessageRefused", "Outbox"]
