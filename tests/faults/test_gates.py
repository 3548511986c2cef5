"""A transaction of many claims takes a bounded part of PostgreSQL's lock table, and nothing runs twice beyond that."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, InProgress, Quota, QuotaExceeded
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.backends.sql import postgresql
from retrysafe.protocol.procedures import open_many
from retrysafe.protocol.records import ClaimRequest, Clocks
from retrysafe.protocol.requests import Rows
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, unique, until

MOST = 3
MANY = 8


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "MOST_GATES", MOST)


def held(tx: Any) -> int:
    """Count the session's advisory locks."""
    mine = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    return int(tx.execute(mine).fetchone()[0])


def claim(boundary: Boundary, number: int, tx: Any) -> bool:
    """Claim and complete a key; whether it was there."""
    with boundary.claim(f"key{number}", tx=tx) as made:
        if not made.replayed:
            made.result = number
        assert made.result == number
        return made.replayed


def test_a_thousand_are_the_most_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert postgresql.MOST_GATES == 1000


def test_one_transaction_takes_so_many_and_the_next_one_again(migrated: str, make: Making) -> None:
    boundary = make(migrated, effects="transactional")
    with psycopg.connect(migrated) as tx:
        assert [claim(boundary, number, tx) for number in range(MANY)] == [False] * MANY
        assert held(tx) == MOST
        tx.commit()
        assert [claim(boundary, number, tx) for number in range(MANY)] == [True] * MANY
        assert held(tx) == 0, "what is there needs no lock"
        assert [claim(boundary, number, tx) for number in range(MANY, 2 * MANY)] == [False] * MANY
        assert held(tx) == MOST


def test_so_do_claims_that_take_over_an_expired_key(migrated: str, make: Making) -> None:
    boundary = make(migrated, effects="transactional", window="1h")
    with psycopg.connect(migrated) as tx:
        for number in range(MANY):
            claim(boundary, number, tx)
        tx.execute(b"UPDATE retrysafe_records SET expires = 0 WHERE boundary = %s", (boundary.name,))
        tx.commit()
        assert [claim(boundary, number, tx) for number in range(MANY)] == [False] * MANY
        assert held(tx) == MOST


def test_so_do_claims_that_a_quota_refuses(migrated: str, make: Making) -> None:
    boundary = make(migrated, effects="transactional", quota=Quota(outstanding=1))
    with psycopg.connect(migrated) as tx:
        claim(boundary, 0, tx)
        for number in range(1, MANY):
            with pytest.raises(QuotaExceeded):
                claim(boundary, number, tx)
        assert held(tx) == MOST


def test_so_do_claims_of_many_keys_at_once(migrated: str) -> None:
    backend, attempt = connect(migrated), unique("attempt")
    clocks = Clocks(lease=1, window=10**9, memory=10**9)
    wants = [
        ClaimRequest(bytes([n]) * 32, "many", "", "o", b"", attempt, "transactional", clocks)
        for n in range(200, 200 + MANY)
    ]
    with backend.client().transaction() as opened:
        opened_many = run(open_many(backend.store, wants), opened.execute)  # type: ignore[arg-type]
        assert len(opened_many.ownerships) == MANY
        assert held(opened.handle) == MOST
    backend.close()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_duplicate_beyond_them_waits_for_the_end(ending: str, migrated: str, make: Making) -> None:
    boundary, last = make(migrated, effects="transactional"), MANY - 1
    found: list[bool] = []

    def duplicate() -> None:
        with psycopg.connect(migrated) as tx:
            found.append(claim(boundary, last, tx))

    with psycopg.connect(migrated) as tx, psycopg.connect(migrated, autocommit=True) as watching:
        for number in range(MANY):
            claim(boundary, number, tx)
        with psycopg.connect(migrated) as other, pytest.raises(InProgress):
            claim(boundary, 0, other)
        waiting = threading.Thread(target=duplicate)
        waiting.start()
        blockers = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        until(lambda: watching.execute(blockers, (tx.info.backend_pid,)).fetchone())
        getattr(tx, ending)()
        waiting.join(DEADLINE)
    assert found == [ending == "commit"]


def test_the_transactions_that_are_counted_are_bounded_in_number() -> None:
    counts = postgresql.Gates()
    answers = [Rows([(number, "rest")], 1) for number in range(5000)]
    for answer in answers:
        assert counts.count_locks(answer).rows == [("rest",)]
    assert len(counts._held) == 4096
    for number in range(100):
        for _ in range(MOST):
            counts.count_locks(answers[number])
    assert counts.full() == list(range(84, 100))
    counts.count_locks(answers[84])
    assert counts.full()[-1] == 84, "one that goes on is not forgotten"
