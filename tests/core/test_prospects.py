"""The answer to a retry after every ending on every ground, written out once more by hand."""

from __future__ import annotations

from retrysafe.protocol import transitions
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import Ending, ModeKind
from retrysafe.protocol.records import ClaimRequest, Clocks, EffectiveState, Effects, Record, State, StoredResult
from retrysafe.protocol.retry_table import Prospect, in_doubt, possible, prospects, retry
from retrysafe.protocol.transitions import Transition
from tests.tables import each_row

GONE = (EffectiveState.ABSENT, Decision.TAKE, False)
DONE = (EffectiveState.COMPLETED, Decision.REPLAY, False)
WITHHELD = (EffectiveState.COMPLETED, Decision.REPLAY, True)
FAILED = (EffectiveState.FAILED, Decision.REPLAY_FAILURE, False)
FREE = (EffectiveState.RELEASED, Decision.TAKE, False)
DOUBT = (EffectiveState.UNKNOWN, Decision.DOUBT, False)
BLANK_DOUBT = (EffectiveState.UNKNOWN, Decision.DOUBT, True)
RUNNING = (EffectiveState.RUNNING, Decision.BUSY, False)
LAPSED = (EffectiveState.LAPSED, Decision.TAKE, False)

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
    Ending.ABORTED.value: (DONE, DONE, DONE, DONE),
    Ending.DECLINED.value: (FREE, FREE, FREE, FREE),
    "its process died": (GONE, GONE, LAPSED, DOUBT),
    "it is still running": (RUNNING, RUNNING, RUNNING, RUNNING),
    "it is paused for longer than its lease": (RUNNING, RUNNING, LAPSED, DOUBT),
    "the window is over": ((EffectiveState.EXPIRED, Decision.TAKE, False),) * 4,
    "the memory is over": ((EffectiveState.FORGOTTEN, Decision.TAKE, False),) * 4,
    "the same key comes with another payload": ((EffectiveState.COMPLETED, Decision.REUSED, False),) * 4,
}


@each_row(("column", "ground"), list(enumerate(ModeKind)))
def test_every_prospect(column: int, ground: ModeKind) -> None:
    expected = [Prospect(situation, *row[column]) for situation, row in MET.items()]
    assert list(prospects(ground, "new")) == expected
    expired = [
        one._replace(decision=Decision.EXPIRED) if one.standing is EffectiveState.EXPIRED else one for one in expected
    ]
    assert list(prospects(ground, "refuse")) == expired


CLOCKS = Clocks(10, 20, 30)


def record(effects: Effects, state: State = State.RUNNING, now: int = 0) -> Record:
    want = ClaimRequest(b"key", "b", "", "op", b"payload", "first", effects, CLOCKS)
    return transitions.first_claim(want, 0)._replace(state=state, now=now, result=StoredResult(b"", "", 0))


@each_row("effects", ["keyed", "external", "transactional"])
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


def test_transitions_of_a_person() -> None:
    resolutions = (Transition.RESOLVE_COMPLETED, Transition.RESOLVE_FAILED, Transition.RESOLVE_RELEASED)
    assert possible(record("external", State.UNKNOWN)) == resolutions
    assert possible(record("external", now=10)) == resolutions
    assert possible(record("keyed", now=10)) == ()
    assert possible(record("keyed")) == ()
    assert possible(record("keyed", State.COMPLETED)) == (Transition.EXPIRE,)


@each_row("effects", ["transactional", "keyed", "external"])
@each_row("state", State)
@each_row("lease_until", [0, 2])
def test_keys_reported_as_unknown_are_those_that_refuse_a_retry(
    effects: Effects, state: State, lease_until: int
) -> None:
    record = Record(
        key=b"k", boundary="b", scope="", operation="o", fingerprint=b"", state=state, attempt="a", token=1, attempts=1,
        effects=effects, lease_until=lease_until, created=0, updated=0, expires=5, tombstone_until=5, version=1,
        result=None, now=1,
    )  # fmt: skip
    refused = retry(record) is Decision.DOUBT
    assert in_doubt(record) == (record.reported_state is EffectiveState.UNKNOWN) == refused
    assert (Transition.RESOLVE_RELEASED in possible(record)) == refused
