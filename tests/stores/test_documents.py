"""Conditions of documents, against the records that they are about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrysafe.backends.documents import Later, Write, record_of
from retrysafe.protocol.records import Record, State, StoredResult
from retrysafe.protocol.standing import STANDING, Standing

INSTANTS = ("lease_until", "expires", "tombstone_until")
INSTANT = st.integers(0, 3)


def record(state: State, **instants: int) -> Record:
    given = dict.fromkeys(("created", "updated"), 0) | instants
    names = {"boundary": "b", "scope": "s", "operation": "o", "attempt": "a", "fingerprint": b"f", "effects": "keyed"}
    return Record(key=b"k", state=state, token=1, attempts=1, version=1, result=None, now=0, **names, **given)  # type: ignore[arg-type]


def is_met(condition: Standing, by: Record, now: int) -> bool:
    over = all(getattr(by, name) <= now for name in condition.over)
    return by.state in condition.states and over and all(getattr(by, name) > now for name in condition.ahead)


@given(st.sampled_from(State), st.fixed_dictionaries(dict.fromkeys(INSTANTS, INSTANT)), INSTANT)
def test_each_record_stands_in_the_one_way_of_its_effective_state(
    state: State, instants: dict[str, int], now: int
) -> None:
    one = record(state, **instants)
    assert [name for name, condition in STANDING.items() if is_met(condition, one, now)] == [
        one.effective_state_at(now)
    ]


def test_a_write_gets_its_instants_when_its_time_is_known() -> None:
    write = Write(b"k", None, frozenset(), {"lease_until": Later(30), "token": Later(0, 101), "attempt": "a"})
    assert write.at(100).sets == {"lease_until": 130, "token": 101, "attempt": "a"}
    assert (write.at(100).judged_at, write._replace(judged_at=7).at(100).judged_at) == (100, 7)


def test_a_result_that_is_withheld_has_a_kind_and_no_bytes() -> None:
    stored = record(State.COMPLETED, **dict.fromkeys(INSTANTS, 9))
    document = {**stored._asdict(), "key_hash": b"k", "media_type": "text/plain", "codec_version": 3}
    del document["result"]
    read = stored._replace(result=StoredResult(None, "text/plain", 3))
    assert record_of({**document, "now": 7}, 5) == read._replace(now=7)
    del document["now"]
    assert record_of(document, 5) == read._replace(now=5)
