"""Common parts of the backends' time travel, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrysafe.protocol.requests import Ask

INSTANTS = ("lease_until", "created", "updated", "expires", "tombstone_until")
"""The instants of a record that move."""

Aged = Iterable[Ask[Any]]
"""Each ask is made when the one before it has been answered."""
