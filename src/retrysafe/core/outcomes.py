"""What becomes of a record and its transaction when the guarded work ends, as one table.

The rows are the ways in which work can end, the columns the ground on which its record stands.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from retrysafe.core.transitions import Event


class Ground(StrEnum):
    """Where a record stands relative to the effect."""

    OWN = "the boundary's own transaction"
    JOINED = "the caller's transaction"
    KEYED = "a lease, and downstream calls carry derived keys"
    EXTERNAL = "a lease, and the effect cannot be recognised twice"


class Ending(StrEnum):
    """How guarded work ended."""

    RETURNED = "it returned a result that can be stored"
    UNENCODABLE = "it returned a result that cannot be stored"
    DECLARED = "the handler declared a permanent failure with claim.fail()"
    PERMANENT = "it raised one of the permanent= types"
    TRANSIENT = "it raised anything else, or was cancelled"
    NOT_EXECUTED = "it raised, and had said that no effect happened"
    COMMITTED = "it raised, and had said that an effect happened"


class Transaction(StrEnum):
    """What becomes of the boundary's own transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "roll back to the savepoint, then commit"


class Verdict(NamedTuple):
    """The event to record, if any, and the fate of an own transaction."""

    event: Event | None
    transaction: Transaction = Transaction.COMMIT


_ROLLED_BACK = Verdict(None, Transaction.ROLLBACK)
_COMPLETE, _FAIL, _DOUBT, _RELEASE = map(Verdict, (Event.COMPLETE, Event.FAIL, Event.DOUBT, Event.RELEASE))
_FAIL_ALONE = Verdict(Event.FAIL, Transaction.SAVEPOINT)
_DOUBT_ALONE = Verdict(Event.DOUBT, Transaction.SAVEPOINT)

OUTCOMES: dict[Ending, tuple[Verdict, Verdict, Verdict, Verdict]] = {
    #                     OWN           JOINED     KEYED      EXTERNAL
    Ending.RETURNED: (_COMPLETE, _COMPLETE, _COMPLETE, _COMPLETE),
    Ending.UNENCODABLE: (_ROLLED_BACK, _DOUBT, _COMPLETE, _COMPLETE),
    Ending.DECLARED: (_FAIL_ALONE, _FAIL, _FAIL, _FAIL),
    Ending.PERMANENT: (_FAIL_ALONE, _DOUBT, _FAIL, _FAIL),
    Ending.TRANSIENT: (_ROLLED_BACK, _DOUBT, _RELEASE, _DOUBT),
    Ending.NOT_EXECUTED: (_ROLLED_BACK, _RELEASE, _RELEASE, _RELEASE),
    Ending.COMMITTED: (_DOUBT_ALONE, _DOUBT, _DOUBT, _DOUBT),
}
_COLUMN = {ground: column for column, ground in enumerate(Ground)}


def verdict(ending: Ending, ground: Ground) -> Verdict:
    """Return what becomes of the record and its transaction."""
    return OUTCOMES[ending][_COLUMN[ground]]


def ending_of_error(*, permanent: bool, committed: bool, not_executed: bool) -> Ending:
    """How work that raised has ended; what the handler said outranks the type of the exception."""
    if committed:
        return Ending.COMMITTED
    if permanent:
        return Ending.PERMANENT
    return Ending.NOT_EXECUTED if not_executed else Ending.TRANSIENT
