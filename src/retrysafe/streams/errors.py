"""The refusals of a stream's ledger."""

from __future__ import annotations

from retrysafe.errors import RetrysafeError


class LedgerError(RetrysafeError):
    """A ledger and its job disagree. Nothing of this batch was written."""


class Fenced(LedgerError):
    """Another process has taken the job over, and this one writes nothing any more. End it."""


class PositionMissing(LedgerError):
    """Input between the last position that was written and this batch was never written by this job."""


class OriginChanged(LedgerError):
    """The job counts from a new origin, as a query with a new checkpoint does: its positions mean other input."""
