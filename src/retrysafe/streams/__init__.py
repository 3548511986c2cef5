"""Sinks for stream engines: what a batch writes and how far its input is written are committed together.

An engine runs a batch again after a failure. A ledger has, for each source of a job, the position up to which it is
written; the helpers of `spark`, `flink`, `beam` and `quix` write a batch through it once.
"""

from __future__ import annotations

from retrysafe.streams.errors import Fenced, LedgerError, OriginChanged, PositionMissing
from retrysafe.streams.ledger import Ledger, Span, SqlLedger

__all__ = ["Fenced", "Ledger", "LedgerError", "OriginChanged", "PositionMissing", "Span", "SqlLedger"]
