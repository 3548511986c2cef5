"""What a retry meets after every ending on every ground, written out once more by hand."""

from __future__ import annotations

import pytest

from retrysafe.protocol import transitions
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import Ending, Ground
from retrysafe.protocol.records import Clocks, Effects, Record, Standing, State, StoredResult, Want
from retrysafe.protocol.retry_table import Prospect, in_doubt, possible, prospects, retry
from retrysafe.protocol.transitions import Transition

GONE = (Standing.ABSENT, Decision.TAKE, False)
DONE = (Standing.COMPLETED, Decision.REPLAY, False)
WITHHELD = (Standing.COMPLETED, Decision.REPLAY, True)
FAILED = (Standing.FAILED, Decision.REPLAY_FAILURE, False)
FREE = (Standing.RELEASED, Decision.TAKE, False)
DOUBT = (Standing.UNKNOWN, Decision.DOUBT, False)
BLANK_DOUBT = (Standing.UNKNOWN, Decision.DOUBT, True)
RUNNING = (Standing.RUNNING, Decision.BUSY, False)
LAPSED = (Standing.LAPSED, Decision.TAKE, False)

MET = {
    #                          OWN    JOINED       KEYED     EXTERNAL
    Ending.RETURNED.value: (DONE, DONE, DONE, DONE),
    Ending.UNENCODABLE.value: (GONE, BLANK_DOUBT, WITHHELD, WITHHELD),
    Ending.DECLARED.value: (FAILED, FAILED, FAILED, FAILED),
    Ending.PERMANENT.value: (FAILED, DOUBT, FAILED, FAILED),
    Ending.TRANSIENT.value: (GONE, DOUBT, FREE, DOUBT),
    Ending.NOT_EXECUTED.value: (GONE, FREE, FREE, FREE),
    Ending.COMMITTED.value: (DOUBT, DOUBT, DOUBT, DOUBT),
    Ending.REFUSED.value: (DONE, DONE, DONE, DONE),
    "its process died": (GONE, GONE, LAPSED, DOUBT),
    "it is still running": (RUNNING, RUNNING, RUNNING, RUNNING),
    "it is paused for longer than its lease": (RUNNING, RUNNING, LAPSED, DOUBT),
    "the window is over": ((Standing.EXPIRED, Decision.TAKE, False),) * 4,
    "the memory is over": ((Standing.FORGOTTEN, Decision.TAKE, False),) * 4,
    "the same key comes with another payload": ((Standing.COMPLETED, Decision.REUSED, False),) * 4,
}


@pytest.mark.parametrize(("column", "ground"), list(enumerate(Ground)))
def test_every_prospect(column: int, ground: Ground) -> None:
    expected = [Prospect(situation, *row[column]) for situation, row in MET.items()]
    assert list(prospects(ground, "new")) == expected
    expired = [one._replace(decision=Decision.EXPIRED) if one.standing is Standing.EXPIRED else one for one in expected]
    assert list(prospects(ground, "refuse")) == expired


CLOCKS = Clocks(10, 20, 30)


def record(effects: Effects, state: State = State.RUNNING, now: int = 0) -> Record:
    want = Want(b"key", "b", "", "op", b"payload", "first", effects, CLOCKS)
    return transitions.first_claim(want, 0)._replace(state=state, now=now, result=StoredResult(b"", "", 0))


@pytest.mark.parametrize("effects", ["keyed", "external", "transactional"])
def test_a_dead_attempt_is_in_doubt_unless_it_can_be_run_again(effects: Effects) -> None:
    dead = record(effects, now=10)
    assert in_doubt(dead) is (effects != "keyed")
    assert retry(dead) is (Decision.TAKE if effects == "keyed" else Decision.DOUBT)
    assert not in_doubt(record(effects, now=9))
    assert in_doubt(record(effects, State.UNKNOWN))
    assert not in_doubt(record(effects, State.COMPLETED))


def test_a_retry_of_an_expired_key_is_what_the_boundary_says() -> None:
    expired = record("keyed", State.COMPLETED, now=20)
    assert retry(expired) is Decision.TAKE
    assert retry(expired, "refuse") is Decision.EXPIRED


def test_what_a_person_may_do() -> None:
    resolutions = (Transition.RESOLVE_COMPLETED, Transition.RESOLVE_FAILED, Transition.RESOLVE_RELEASED)
    assert possible(record("external", State.UNKNOWN)) == resolutions
    assert possible(record("external", now=10)) == resolutions
    assert possible(record("keyed", now=10)) == ()
    assert possible(record("keyed")) == ()
    assert possible(record("keyed", State.COMPLETED)) == (Transition.EXPIRE,)
