"""What becomes of a record when the work ends: each cell of DESIGN.md's table that the core decides."""

from __future__ import annotations

from itertools import product

import pytest

from retrysafe.protocol.outcomes import (
    Answered,
    Ending,
    Ground,
    Transaction,
    Verdict,
    ending_of_answer,
    ending_of_error,
    verdict,
)
from retrysafe.protocol.records import Standing
from retrysafe.protocol.transitions import RULES, Transition

ROLLED_BACK = (None, Transaction.ROLLBACK)
CELLS = {
    (Ending.RETURNED, Ground.OWN): (Transition.COMPLETE, Transaction.COMMIT),
    (Ending.RETURNED, Ground.JOINED): (Transition.COMPLETE, None),
    (Ending.RETURNED, Ground.KEYED): (Transition.COMPLETE, None),
    (Ending.RETURNED, Ground.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.UNENCODABLE, Ground.OWN): ROLLED_BACK,
    (Ending.UNENCODABLE, Ground.JOINED): (Transition.DOUBT, None),
    (Ending.UNENCODABLE, Ground.KEYED): (Transition.COMPLETE, None),
    (Ending.UNENCODABLE, Ground.EXTERNAL): (Transition.COMPLETE, None),
    (Ending.DECLARED, Ground.OWN): (Transition.FAIL, Transaction.SAVEPOINT),
    (Ending.DECLARED, Ground.JOINED): (Transition.FAIL, None),
    (Ending.DECLARED, Ground.KEYED): (Transition.FAIL, None),
    (Ending.DECLARED, Ground.EXTERNAL): (Transition.FAIL, None),
    (Ending.PERMANENT, Ground.OWN): (Transition.FAIL, Transaction.SAVEPOINT),
    (Ending.PERMANENT, Ground.JOINED): (Transition.DOUBT, None),
    (Ending.PERMANENT, Ground.KEYED): (Transition.FAIL, None),
    (Ending.PERMANENT, Ground.EXTERNAL): (Transition.FAIL, None),
    (Ending.TRANSIENT, Ground.OWN): ROLLED_BACK,
    (Ending.TRANSIENT, Ground.JOINED): (Transition.DOUBT, None),
    (Ending.TRANSIENT, Ground.KEYED): (Transition.RELEASE, None),
    (Ending.TRANSIENT, Ground.EXTERNAL): (Transition.DOUBT, None),
    (Ending.NOT_EXECUTED, Ground.OWN): ROLLED_BACK,
    (Ending.NOT_EXECUTED, Ground.JOINED): (Transition.RELEASE, None),
    (Ending.NOT_EXECUTED, Ground.KEYED): (Transition.RELEASE, None),
    (Ending.NOT_EXECUTED, Ground.EXTERNAL): (Transition.RELEASE, None),
    (Ending.COMMITTED, Ground.OWN): (Transition.DOUBT, Transaction.SAVEPOINT),
    (Ending.COMMITTED, Ground.JOINED): (Transition.DOUBT, None),
    (Ending.COMMITTED, Ground.KEYED): (Transition.DOUBT, None),
    (Ending.COMMITTED, Ground.EXTERNAL): (Transition.DOUBT, None),
    (Ending.REFUSED, Ground.OWN): (Transition.COMPLETE, Transaction.SAVEPOINT),
    (Ending.REFUSED, Ground.JOINED): (Transition.COMPLETE, None),
    (Ending.REFUSED, Ground.KEYED): (Transition.COMPLETE, None),
    (Ending.REFUSED, Ground.EXTERNAL): (Transition.COMPLETE, None),
}


@pytest.mark.parametrize(("ending", "ground"), list(product(Ending, Ground)))
def test_every_cell(ending: Ending, ground: Ground) -> None:
    event, transaction = CELLS[ending, ground]
    found = verdict(ending, ground)
    assert found.event is event
    if ground is Ground.OWN:
        assert found.transaction is transaction


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("ground", [Ground.JOINED, Ground.KEYED, Ground.EXTERNAL])
def test_outside_an_own_transaction_every_ending_is_recorded_and_nothing_rolled_back(
    ending: Ending, ground: Ground
) -> None:
    """Cancellation is an ending like the others: no key stays locked (idemkit, fastapi-idempotency-key)."""
    found = verdict(ending, ground)
    assert found == Verdict(found.event, Transaction.COMMIT)
    assert found.event is not None
    assert Standing.RUNNING in RULES[found.event].sources


def test_what_the_handler_said_outranks_the_type_of_its_error() -> None:
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
        if ending is not Ending.NOT_EXECUTED:
            assert verdict(ending, Ground.EXTERNAL).event is not Transition.RELEASE
    for ground in Ground:
        assert verdict(Ending.COMMITTED, ground).event is Transition.DOUBT


@pytest.mark.parametrize("answered", Answered)
@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("not_executed", [False, True])
def test_how_an_answer_ends_the_work(answered: Answered, *, committed: bool, not_executed: bool) -> None:
    ending = ending_of_answer(answered, committed=committed, not_executed=not_executed)
    if answered is Answered.DONE:
        assert ending is Ending.RETURNED
    elif committed:
        assert ending is (Ending.REFUSED if answered is Answered.REFUSED else Ending.COMMITTED)
    elif not_executed or answered in (Answered.UNEXECUTED, Answered.ELSEWHERE):
        assert ending is Ending.NOT_EXECUTED
    else:
        assert ending is (Ending.REFUSED if answered is Answered.REFUSED else Ending.TRANSIENT)
