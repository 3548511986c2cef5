"""The Operator: what can be done by hand, to which record, and that losing a race changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from retrysafe import (
    Boundary,
    ConfigurationError,
    Event,
    InProgress,
    KeyExpired,
    LeaseLost,
    OutcomeUnknown,
    RetrysafeError,
    SchemaOutdated,
    StoredFailure,
)
from retrysafe.admin.audit import AuditFile
from retrysafe.admin.operator import Operator
from retrysafe.admin.rendering import details
from retrysafe.backends.registry import connect
from retrysafe.protocol.procedures import Change
from retrysafe.protocol.records import EffectiveState, Filter
from tests.operating.conftest import PLACES, Place, surroundings


def exactly_one(changes: list[Change]) -> None:
    assert sorted(change.done for change in changes) == [False] * (len(changes) - 1) + [True]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The answers of calls that are made at the same time."""
    start = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        start.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


# ---------------------------------------------------------------- resolving and releasing


def test_an_unknown_key_is_resolved_as_completed(place: Place) -> None:
    seen = place.unknown(window="1h", memory="2h")
    place.elapse("K", 60)
    change = place.operator().resolve(seen, "completed", result={"id": 7})
    assert (change.done, place.retry(window="1h", memory="2h")) == (True, {"id": 7})
    settled = place.record("K")
    assert (settled.expires - settled.updated, settled.tombstone_until - settled.updated) == (
        3600 * 10**6,
        7200 * 10**6,
    )


def test_an_unknown_key_is_resolved_as_failed(place: Place) -> None:
    assert place.operator().resolve(place.unknown(), "failed", result="no such account").done
    with pytest.raises(StoredFailure) as caught:
        place.retry()
    assert caught.value.message == "no such account"


def test_an_unknown_key_is_released(place: Place) -> None:
    seen = place.unknown()
    assert place.operator().release(seen).done
    assert place.retry() == "again"
    assert place.record("K").token > seen.token


def test_an_attempt_that_died_in_doubt_can_be_settled_before_anybody_asks(place: Place) -> None:
    boundary = place.boundary(lease=600)
    claim = boundary.claim("K", payload={"amount": 5})
    with pytest.raises(LeaseLost), claim:
        place.elapse("K", 610)
        seen = place.record("K")
        assert seen.effective_state is EffectiveState.LAPSED
        assert place.operator().resolve(seen, "completed", result="found").done
    assert place.retry() == "found"


@pytest.mark.parametrize("standing", ["running", "lapsed", "completed"])
def test_keys_without_doubt_are_not_resolved(place: Place, standing: str) -> None:
    if standing == "completed":
        seen = place.completed()
        assert not place.operator().release(seen).done
        assert place.retry() == "first"
        return
    boundary = place.boundary(effects="keyed", lease=600)
    with boundary.claim("K", payload={"amount": 5}) as claim:
        place.elapse("K", 610 if standing == "lapsed" else 0)
        change = place.operator().release(place.record("K"))
        assert not change.done
        assert change.record is not None
        assert change.record.effective_state == standing
        claim.result = "mine"
    assert place.retry(effects="keyed", lease=600) == "mine"


def test_a_key_that_is_another_attempts_by_now_is_left_alone(place: Place) -> None:
    seen = place.unknown()
    operator = place.operator()
    assert operator.release(seen).done
    again = place.unknown()
    change = operator.resolve(seen, "completed", result="about the first attempt")
    assert not change.done
    assert change.record is not None
    assert change.record.attempt == again.attempt != seen.attempt
    with pytest.raises(OutcomeUnknown):
        place.retry()


# ---------------------------------------------------------------- expiring


def test_an_expired_key_is_new_work(place: Place) -> None:
    seen = place.completed()
    assert place.operator().expire(seen, reason="refunded").done
    ended = place.record("K")
    assert ended.effective_state is EffectiveState.EXPIRED
    told = details(ended)
    assert told["why"].startswith(f"Its window was ended by {told['settled_by']} at {told['updated']}, because: refund")
    assert place.retry() == "again"
    assert place.record("K").token > seen.token
    assert place.record("K").attempts == 1


def test_a_key_that_refuses_reuse_runs_again_only_when_forgotten(place: Place) -> None:
    terms: dict[str, Any] = {"window": "1h", "memory": "2h", "on_expired": "refuse"}
    assert place.operator().expire(place.completed("A", **terms)).done
    with pytest.raises(KeyExpired):
        place.retry("A", **terms)
    assert place.operator().expire(place.completed("B", **terms), forget=True).done
    assert place.retry("B", **terms) == "again"


def test_keys_used_since_they_were_seen_are_not_expired(place: Place) -> None:
    seen = place.completed()
    assert place.operator().expire(seen).done
    assert place.retry() == "again"
    change = place.operator().expire(seen)
    assert not change.done
    assert change.record is not None
    assert change.record.effective_state is EffectiveState.COMPLETED


@pytest.mark.parametrize("standing", ["running", "unknown"])
def test_unsettled_keys_are_not_expired(place: Place, standing: str) -> None:
    seen = place.unknown()
    if standing == "running":
        assert place.operator().release(seen).done
        with pytest.raises(InProgress), place.boundary().claim("K", payload={"amount": 5}):
            assert not place.operator().expire(place.record("K")).done
            place.retry()
        return
    assert not place.operator().expire(seen).done
    with pytest.raises(OutcomeUnknown):
        place.retry()


# ---------------------------------------------------------------- races


@pytest.mark.parametrize("round_", range(5))
def test_of_two_operators_at_once_exactly_one_changes_the_key(place: Place, round_: int) -> None:
    seen = place.unknown()
    one, other = place.operator(), place.operator()
    changes = at_once(lambda: one.resolve(seen, "completed", result="one"), lambda: other.resolve(seen, "failed"))
    exactly_one(changes)
    if changes[0].done:
        assert place.retry() == "one"
    else:
        with pytest.raises(StoredFailure):
            place.retry()


@pytest.mark.parametrize("round_", range(5))
def test_of_an_operator_and_a_late_owner_exactly_one_settles_the_key(place: Place, round_: int) -> None:
    """The owner was paused beyond its lease and finishes in the very moment in which somebody resolves its key."""
    boundary = place.boundary(lease=600)
    claim = boundary.claim("K", payload={"amount": 5})
    claim.__enter__()
    place.elapse("K", 610)
    seen, operator = place.record("K"), place.operator()
    claim.result = "owner"

    def finish() -> bool:
        try:
            claim.__exit__(None, None, None)
        except LeaseLost:
            return False
        return True

    owner, change = at_once(finish, lambda: operator.resolve(seen, "completed", result="operator"))
    assert owner != change.done
    assert place.retry() == ("owner" if owner else "operator")


# ---------------------------------------------------------------- finding


def test_keys_are_found_by_what_they_are(place: Place) -> None:
    place.unknown("U")
    place.completed("C")
    with pytest.raises(TimeoutError), place.boundary().claim("S", operation="other", scope="tenant"):
        raise TimeoutError
    operator = place.operator()

    def found(**wanted: Any) -> int:
        return len(operator.find(boundary=place.name, **wanted))

    assert found() == 3
    assert found(states=["unknown"]) == found(states={EffectiveState.UNKNOWN}) == 2
    assert (found(operation="other"), found(scope="tenant"), found(scope="")) == (1, 1, 2)
    assert len(operator.find(boundary=place.name, limit=2)) == 2
    assert operator.find(boundary=place.name, limit=0) == []
    assert all(record.result is None for record in operator.find(boundary=place.name))
    assert {tally.state: tally.records for tally in operator.tallies() if tally.boundary == place.name} == {
        EffectiveState.UNKNOWN: 2,
        EffectiveState.COMPLETED: 1,
    }


def test_a_key_is_found_by_the_digits_in_the_log(place: Place) -> None:
    told: list[Event] = []
    with place.boundary(observers=[told.append]).claim("K") as claim:
        claim.result = 1
    operator = place.operator()
    (record,) = operator.matching(told[0].key, Filter(boundary=place.name))
    assert [one.key for one in operator.matching(record.key.hex().upper())] == [record.key]
    assert record.key == operator.hash_of("K", boundary=place.name)
    assert operator.matching(record.key.hex(), Filter(boundary="another")) == []
    for digits in ("abc", "xyzw1234", "0" * 65, ""):
        with pytest.raises(ConfigurationError, match="hex digits"):
            operator.matching(digits)


def test_a_boundary_with_a_secret_is_operated_with_it(place: Place) -> None:
    with place.boundary(secret="s" * 16).claim("K") as claim:
        claim.result = 1
    without, with_ = place.operator(), place.operator(secret="s" * 16)
    assert without.show(without.hash_of("K", boundary=place.name)) is None
    assert with_.show(with_.hash_of("K", boundary=place.name)) is not None


def test_an_error_leads_to_its_record(place: Place) -> None:
    place.unknown()
    with pytest.raises(OutcomeUnknown) as caught:
        place.retry()
    error = caught.value
    assert (error.boundary, error.operation) == (place.name, place.name)
    assert f"retrysafe keys show --hash {error.key}" in str(error)
    (record,) = place.operator().matching(error.key, Filter(error.boundary))
    assert record.effective_state is EffectiveState.UNKNOWN


# ---------------------------------------------------------------- being told, and the audit


def test_every_change_is_told_and_audited_and_nothing_else_is(place: Place) -> None:
    told: list[Event] = []
    entries: list[Mapping[str, Any]] = []
    operator = place.operator(observers=[told.append], audit=entries.append, actor="alice")
    seen = place.unknown()
    assert operator.resolve(seen, "completed", result=1, reason="ticket 7").done
    assert not operator.release(seen).done
    assert operator.expire(place.record("K"), reason="refunded").done
    assert [occurrence.name for occurrence in told] == ["resolved", "expired"]
    assert told[0][1:5] == (place.name, place.name, seen.key.hex()[:8], seen.attempt)
    assert told[0].fields == {
        "outcome": "completed", "reason": "ticket 7", "actor": "alice", "before": "unknown", "after": "completed"
    }  # fmt: skip
    assert told[1].fields["after"] == "expired"
    assert [(entry["audit"], entry.get("done")) for entry in entries] == [
        ("intent", None), ("outcome", True), ("intent", None), ("outcome", False), ("intent", None), ("outcome", True)
    ]  # fmt: skip
    assert [entry["id"] for entry in entries[::2]] == [entry["id"] for entry in entries[1::2]]
    assert entries[3]["after"] == "completed"
    assert {entry["key_hash"] for entry in entries} == {seen.key.hex()}


def test_the_intent_is_written_before_the_change_and_the_outcome_after_it(place: Place) -> None:
    stood: list[tuple[str, str]] = []
    seen = place.unknown()
    operator = place.operator(audit=lambda entry: stood.append((entry["audit"], place.record("K").effective_state)))
    assert operator.release(seen).done
    assert stood == [("intent", "unknown"), ("outcome", "released")]


def test_without_an_audit_there_is_no_change(place: Place) -> None:
    def full(entry: Mapping[str, Any]) -> None:
        raise OSError("no space left on device")

    seen = place.unknown()
    with pytest.raises(OSError, match="no space"):
        place.operator(audit=full).release(seen)
    assert place.record("K").version == seen.version


def test_a_disk_that_takes_half_a_line_gets_the_other_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:40]))
    audit = AuditFile(tmp_path / "audit.jsonl")
    audit({"audit": "intent", "reason": "r" * 100})
    audit({"audit": "outcome"})
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["audit"] for line in lines] == ["intent", "outcome"]


def test_a_change_without_an_answer_is_audited_as_such(shelf: Place, tmp_path: Path) -> None:
    import sqlite3

    entries: list[Mapping[str, Any]] = []

    def drop(entry: Mapping[str, Any]) -> None:
        entries.append(entry)
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS retrysafe_records")

    with pytest.raises(RetrysafeError):
        shelf.operator(audit=drop).release(shelf.unknown())
    assert entries[1]["done"] is None
    assert entries[1]["error"]


KILLED = """
import os, signal, sys
from retrysafe.admin.audit import AuditFile
from retrysafe.admin.operator import Operator

store, key_hash, path, moment = sys.argv[1:]
write = AuditFile(path)

def audit(entry):
    write(entry)
    if entry["audit"] == moment:
        os.kill(os.getpid(), signal.SIGKILL)

operator = Operator(store, observers=(), audit=audit)
operator.release(operator.show(bytes.fromhex(key_hash)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "left"), [("intent", "unknown"), ("outcome", "released")])
def test_a_killed_operator_leaves_a_whole_audit(place: Place, tmp_path: Path, moment: str, left: str) -> None:
    import json

    seen, path = place.unknown(), tmp_path / "audit.jsonl"
    child = [sys.executable, "-c", KILLED, place.operators, seen.key.hex(), str(path), moment]
    done = subprocess.run(child, check=False, env=surroundings(), timeout=60)
    assert done.returncode == -signal.SIGKILL
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["audit"] for entry in entries] == ["intent", "outcome"][: len(entries)]
    assert entries[-1]["audit"] == moment
    assert entries[0]["key_hash"] == seen.key.hex()
    assert place.record("K").effective_state == left


# ---------------------------------------------------------------- what cannot be operated


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        Operator(f"sqlite:///{tmp_path / 'mistyped.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_our_tables_is_not_migrated(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.touch()
    with Operator(f"sqlite:///{file}") as operator:
        with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
            operator.find()
        assert operator.status().schema == (0, 9)


def test_memory_cannot_be_seen_from_outside() -> None:
    with pytest.raises(ConfigurationError, match="exist only in the process of the boundary"):
        Operator("memory://")


def test_an_engine_of_somebody_elses_loop_is_refused(tmp_path: Path) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    file = tmp_path / "x.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    with pytest.raises(ConfigurationError, match="give its URL"):
        Operator(engine)
    asyncio.run(engine.dispose())


def test_a_boundary_and_an_operator_share_a_store_until_the_last_one_leaves(shelf: Place) -> None:
    boundary = Boundary("shared", store=shelf.boundaries, observers=())
    shared = connect(shelf.boundaries)
    with Operator(shelf.operators):
        pass
    with boundary.claim("K") as claim:
        claim.result = 1
    assert connect(shelf.boundaries) is shared
    boundary.close()
    assert connect(shelf.boundaries) is not shared


def test_the_clock_is_found_among_keys_that_are_not_ours(tmp_path: Path) -> None:
    """A page of Redis may be empty although there are records: it shows other people's keys, and leaves them out."""
    place = PLACES["redis"](tmp_path)
    others = {f"somebody else's {place.name} {number}": "1" for number in range(500)}
    client = redis.Redis.from_url(place.operators)
    client.mset(others)
    try:
        place.completed()
        assert place.operator().status().clock is not None
    finally:
        client.delete(*others)
        client.close()
        place.close()
