"""Change data capture: relays that read the outbox from PostgreSQL's log instead of asking its table."""

from retrysafe.messaging.cdc.slot import Slot, SlotStatus

__all__ = ["Slot", "SlotStatus"]
