"""The settlement of a record and its transaction when the guarded work ends, as one table.

The rows are the ways in which work can end, the columns the modes of a claim.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from retrysafe.protocol.transitions import Transition


class ModeKind(StrEnum):
    """The mode of a claim: how its record and the effect are kept together."""

    OWN = "the boundary's own transaction"
    JOINED = "the caller's transaction"
    KEYED = "a lease, and downstream calls carry derived keys"
    EXTERNAL = "a lease, and the effect cannot be recognised twice"


class Ending(StrEnum):
    """The kind of end of guarded work."""

    RETURNED = "it returned a result that can be stored"
    UNENCODABLE = "it returned a result that cannot be stored"
    DECLARED = "the handler declared a permanent failure with claim.fail()"
    PERMANENT = "it raised one of the permanent= types"
    TRANSIENT = "it raised anything else, or was cancelled"
    NOT_EXECUTED = "it raised, and had said that no effect happened"
    COMMITTED = "it raised, and had said that an effect happened"
    REFUSED = "it answered with a refusal that is stored, such as an HTTP 4xx"
    ABORTED = "it was ended by a refusal that is stored, such as an HTTPException"
    DECLINED = "it answered with a refusal that frees the key, such as an HTTP 403"


class Answered(StrEnum):
    """The entry point's classification of an answer, such as an HTTP response, that stands for a result or an error."""

    DONE = "the answer is the result"
    REFUSED = "the work was refused, what it did stays, and the answer is to be stored"
    ABORTED = "the work was refused, what it did is undone, and the answer is to be stored"
    FAILED = "the work failed, as if it had raised"
    DECLINED = "the work was refused, what it did stays, and a retry may fare better"
    NOT_EXECUTED = "the work was refused, what it did is undone, and a retry may fare better"
    ELSEWHERE = "what was done stays, and the work is to be asked for elsewhere, as another request with the same key"


DONE = Answered.DONE
"""The usual one, as `retrysafe.protocol.records.RUNNING`."""


class Transaction(StrEnum):
    """The end of the boundary's own transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "roll back to the savepoint, then commit"
    EITHER = "commit; where an error that was caught has spoilt it, roll back to the savepoint, then commit"


class Settlement(NamedTuple):
    """The event to record, if any, and how an own transaction ends."""

    event: Transition | None
    transaction: Transaction = Transaction.COMMIT

    @property
    def refuses(self) -> bool:
        """True in an own transaction for an answer that refuses the work: without its record a retry runs again."""
        refused = self.event in (Transition.COMPLETE, Transition.RELEASE)
        return refused and self.transaction is not Transaction.COMMIT


_ROLLED_BACK = Settlement(None, Transaction.ROLLBACK)
_COMPLETE, _FAIL, _DOUBT, _RELEASE = map(
    Settlement, (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE)
)
_COMPLETE_ALONE = Settlement(Transition.COMPLETE, Transaction.SAVEPOINT)
_COMPLETE_REFUSED = Settlement(Transition.COMPLETE, Transaction.EITHER)
_RELEASE_REFUSED = Settlement(Transition.RELEASE, Transaction.EITHER)
_FAIL_ALONE = Settlement(Transition.FAIL, Transaction.SAVEPOINT)
_DOUBT_ALONE = Settlement(Transition.DOUBT, Transaction.SAVEPOINT)

OUTCOMES: dict[Ending, tuple[Settlement, Settlement, Settlement, Settlement]] = {
    #                     OWN           JOINED     KEYED      EXTERNAL
    Ending.RETURNED: (_COMPLETE, _COMPLETE, _COMPLETE, _COMPLETE),
    Ending.UNENCODABLE: (_ROLLED_BACK, _DOUBT, _COMPLETE, _COMPLETE),
    Ending.DECLARED: (_FAIL_ALONE, _FAIL, _FAIL, _FAIL),
    Ending.PERMANENT: (_FAIL_ALONE, _DOUBT, _FAIL, _FAIL),
    Ending.TRANSIENT: (_ROLLED_BACK, _DOUBT, _RELEASE, _DOUBT),
    Ending.NOT_EXECUTED: (_ROLLED_BACK, _RELEASE, _RELEASE, _RELEASE),
    Ending.COMMITTED: (_DOUBT_ALONE, _DOUBT, _DOUBT, _DOUBT),
    Ending.REFUSED: (_COMPLETE_REFUSED, _COMPLETE, _COMPLETE, _COMPLETE),
    Ending.ABORTED: (_COMPLETE_ALONE, _COMPLETE, _COMPLETE, _COMPLETE),
    Ending.DECLINED: (_RELEASE_REFUSED, _RELEASE, _RELEASE, _RELEASE),
}
_COLUMN = {mode: column for column, mode in enumerate(ModeKind)}


def settlement_of(ending: Ending, mode: ModeKind) -> Settlement:
    """Return the settlement of work that ended so in this mode."""
    return OUTCOMES[ending][_COLUMN[mode]]


def ending_of_error(*, permanent: bool, committed: bool, not_executed: bool) -> Ending:
    """Classify the end of work that raised. A signal of the handler takes precedence over the type of the exception."""
    if committed:
        return Ending.COMMITTED
    if permanent:
        return Ending.PERMANENT
    return Ending.NOT_EXECUTED if not_executed else Ending.TRANSIENT


def ending_of_answer(answered: Answered, *, committed: bool, not_executed: bool) -> Ending:
    """Classify work that answered. A signal of the handler takes precedence over a failure, not over a result."""
    match answered:
        case Answered.DONE:
            return Ending.RETURNED
        case Answered.REFUSED:
            return Ending.DECLINED if not_executed and not committed else Ending.REFUSED
        case Answered.ABORTED:
            return Ending.NOT_EXECUTED if not_executed and not committed else Ending.ABORTED
        case Answered.FAILED:
            return ending_of_error(permanent=False, committed=committed, not_executed=not_executed)
        case Answered.DECLINED | Answered.ELSEWHERE:
            return Ending.COMMITTED if committed else Ending.DECLINED
        case Answered.NOT_EXECUTED:
            return Ending.COMMITTED if committed else Ending.NOT_EXECUTED
