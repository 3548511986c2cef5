"""A broker in the memory of one process, and publishers that keep what they are given, for tests."""

from __future__ import annotations

from retrysafe.messaging.brokers.memory.broker import MemoryBroker
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher

__all__ = ["AsyncMemoryPublisher", "MemoryBroker", "MemoryPublisher"]
