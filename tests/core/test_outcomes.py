"""The fate of a record when the work ends: each cell of DESIGN.md's table that the core decides."""

from __future__ import annotations

from itertools import product

from retrysafe.protocol.outcomes import (
    Answered,
    Ending,
    ModeKind,
    Settlement,
    Transaction,
    ending_of_answer,
    ending_of_error,
    settlement_of,
)
from retrysafe.protocol.records import EffectiveState
from retrysafe.protocol.transitions import RULES, Transition
from tests.tables import each_row

ROLLED_BACK = (None, Transaction.ROLLBACK)
CELLS = {
    (Ending.RETURNED, ModeKind.OWN): (Transition.COMPLETE, Transaction.COMMIT),
    (Ending.RETURNED, ModeKind.JOINED): (Transition.COMPLETE, None),
    (Ending.RETURNED, ModeKind.KEYED): (Transition.COMPLETE, None),
    (Ending.RETURNED, ModeKind.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.UNENCODABLE, ModeKind.OWN): ROLLED_BACK,
    (Ending.UNENCODABLE, ModeKind.JOINED): (Transition.DOUBT, None),
    (Ending.UNENCODABLE, ModeKind.KEYED): (Transition.COMPLETE, None),
    (Ending.UNENCODABLE, ModeKind.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.DECLARED, ModeKind.OWN): (Transition.FAIL, Transaction.SAVEPOINT),
    (Ending.DECLARED, ModeKind.JOINED): (Transition.FAIL, None),
    (Ending.DECLARED, ModeKind.KEYED): (Transition.FAIL, None),
    (Ending.DECLARED, ModeKind.EXTERNAL): (Transition.FAIL, None),
    (Ending.PERMANENT, ModeKind.OWN): (Transition.FAIL, Transaction.SAVEPOINT),
    (Ending.PERMANENT, ModeKind.JOINED): (Transition.DOUBT, None),
    (Ending.PERMANENT, ModeKind.KEYED): (Transition.FAIL, None),
    (Ending.PERMANENT, ModeKind.EXTERNAL): (Transition.FAIL, None),
    (Ending.TRANSIENT, ModeKind.OWN): ROLLED_BACK,
    (Ending.TRANSIENT, ModeKind.JOINED): (Transition.DOUBT, None),
    (Ending.TRANSIENT, ModeKind.KEYED): (Transition.RELEASE, None),
    (Ending.TRANSIENT, ModeKind.EXTERNAL): (Transition.DOUBT, None),
    (Ending.NOT_EXECUTED, ModeKind.OWN): ROLLED_BACK,
    (Ending.NOT_EXECUTED, ModeKind.JOINED): (Transition.RELEASE, None),
    (Ending.NOT_EXECUTED, ModeKind.KEYED): (Transition.RELEASE, None),
    (Ending.NOT_EXECUTED, ModeKind.EXTERNAL): (Transition.RELEASE, None),
    (Ending.COMMITTED, ModeKind.OWN): (Transition.DOUBT, Transaction.SAVEPOINT),
    (Ending.COMMITTED, ModeKind.JOINED): (Transition.DOUBT, None),
    (Ending.COMMITTED, ModeKind.KEYED): (Transition.DOUBT, None),
    (Ending.COMMITTED, ModeKind.EXTERNAL): (Transition.DOUBT, None),
    (Ending.REFUSED, ModeKind.OWN): (Transition.COMPLETE, Transaction.EITHER),
    (Ending.REFUSED, ModeKind.JOINED): (Transition.COMPLETE, None),
    (Ending.REFUSED, ModeKind.KEYED): (Transition.COMPLETE, None),
    (Ending.REFUSED, ModeKind.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.ABORTED, ModeKind.OWN): (Transition.COMPLETE, Transaction.SAVEPOINT),
    (Ending.ABORTED, ModeKind.JOINED): (Transition.COMPLETE, None),
    (Ending.ABORTED, ModeKind.KEYED): (Transition.COMPLETE, None),
    (Ending.ABORTED, ModeKind.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.DECLINED, ModeKind.OWN): (Transition.RELEASE, Transaction.EITHER),
    (Ending.DECLINED, ModeKind.JOINED): (Transition.RELEASE, None),
    (Ending.DECLINED, ModeKind.KEYED): (Transition.RELEASE, None),
    (Ending.DECLINED, ModeKind.EXTERNAL): (Transition.RELEASE, None),
}


@each_row(("ending", "ground"), list(product(Ending, ModeKind)))
def test_every_cell(ending: Ending, ground: ModeKind) -> None:
    event, transaction = CELLS[ending, ground]
    found = settlement_of(ending, ground)
    assert found.event is event
    if ground is ModeKind.OWN:
        assert found.transaction is transaction


@each_row("ending", Ending)
@each_row("ground", [ModeKind.JOINED, ModeKind.KEYED, ModeKind.EXTERNAL])
def test_outside_an_own_transaction_every_ending_is_recorded_and_nothing_rolled_back(
    ending: Ending, ground: ModeKind
) -> None:
    """Cancellation is an ending like the others: no key stays locked (idemkit, fastapi-idempotency-key)."""
    found = settlement_of(ending, ground)
    assert found == Settlement(found.event, Transaction.COMMIT)
    assert found.event is not None
    assert EffectiveState.RUNNING in RULES[found.event].sources


def test_the_handlers_signal_outranks_the_type_of_its_error() -> None:
    cases = {
        (False, False, False): Ending.TRANSIENT,
        (False, False, True): Ending.NOT_EXECUTED,
        (False, True, False): Ending.COMMITTED,
        (False, True, True): Ending.COMMITTED,
        (True, False, False): Ending.PERMANENT,
        (True, False, True): Ending.PERMANENT,
        (True, True, False): Ending.COMMITTED,
        (True, True, True): Ending.COMMITTED,
    }
    for (permanent, committed, not_executed), ending in cases.items():
        found = ending_of_error(permanent=permanent, committed=committed, not_executed=not_executed)
        assert found is ending


def test_an_effect_that_may_have_happened_never_frees_an_external_key() -> None:
    for ending in Ending:
        if ending not in (Ending.NOT_EXECUTED, Ending.DECLINED):
            assert settlement_of(ending, ModeKind.EXTERNAL).event is not Transition.RELEASE
    for ground in ModeKind:
        assert settlement_of(Ending.COMMITTED, ground).event is Transition.DOUBT


@each_row("answered", Answered)
@each_row("committed", [False, True])
@each_row("not_executed", [False, True])
def test_answers_end_the_work(answered: Answered, *, committed: bool, not_executed: bool) -> None:
    ending = ending_of_answer(answered, committed=committed, not_executed=not_executed)
    stored = {Answered.REFUSED: Ending.REFUSED, Answered.ABORTED: Ending.ABORTED}
    stays = answered in (Answered.REFUSED, Answered.DECLINED, Answered.ELSEWHERE)
    if answered is Answered.DONE:
        assert ending is Ending.RETURNED
    elif committed:
        assert ending is stored.get(answered, Ending.COMMITTED)
    elif not_executed or answered in (Answered.NOT_EXECUTED, Answered.DECLINED, Answered.ELSEWHERE):
        assert ending is (Ending.DECLINED if stays else Ending.NOT_EXECUTED)
    else:
        assert ending is stored.get(answered, Ending.TRANSIENT)
