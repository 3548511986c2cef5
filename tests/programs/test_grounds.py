"""The beliefs of a holder without asking again: a commit whose reply was lost, and the length of its lease."""

from __future__ import annotations

import pytest

from retrysafe.claims import heartbeat
from retrysafe.claims.heartbeat import LeaseTerm
from retrysafe.claims.modes import Settled, _judge_lost_commit
from retrysafe.claims.observers import UNOBSERVED
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.outcomes import Settlement
from retrysafe.protocol.records import Clocks, Record, State
from retrysafe.protocol.transitions import Transition
from tests.programs.script import HELD, record
from tests.tables import each_row

COMPLETED = Settlement(Transition.COMPLETE)
LOST = StoreUnavailable("the connection broke")


def test_a_commit_whose_reply_was_lost_happened_if_the_record_is_there_as_it_was_wanted() -> None:
    assert _judge_lost_commit(record(State.COMPLETED, attempt="me"), HELD, COMPLETED, LOST) is Settled.RECORDED


@each_row(
    "found",
    [
        None,
        record(State.COMPLETED, attempt="another"),
        record(State.COMPLETED, attempt="me", token=HELD.token + 1),
        record(State.FAILED, attempt="me"),
        record(State.RUNNING, attempt="me"),
    ],
    ids=["no record", "another attempt's", "another token", "another outcome", "still running"],
)
def test_any_other_record_leaves_it_open_whether_the_commit_happened(found: Record | None) -> None:
    """A rival that has done the work meanwhile stores its own result: ours is not the one that retries get."""
    with pytest.raises(StoreUnavailable, match="could not be ended: the connection broke"):
        _judge_lost_commit(found, HELD, COMPLETED, LOST)


def test_a_lease_is_held_from_when_its_renewal_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts from when it was asked, or later; the answer may have been under way for long."""
    now = 100.0
    monkeypatch.setattr(heartbeat, "clock", lambda: now)
    held = HELD._replace(clocks=Clocks(lease=30_000_000, window=10**9, memory=10**9))
    lease = LeaseTerm(held, 100.0, UNOBSERVED)
    now = 128.0
    lease.apply_renewal({held}, asked_at=110.0)
    now = 139.9
    assert lease.is_held()
    now = 140.0
    assert not lease.is_held()
