"""Sweeping while others claim. FAULTS 79, 80, 81."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.connect import connect
from retrysafe.programs.drivers import run
from retrysafe.programs.sweeping import forgotten, remove, sweep
from retrysafe.types import Record
from tests.faults.helpers import plain, reached, run_sql, until


def age(url: str, boundary: str, seconds: int = 10**9) -> None:
    """Let the time of a boundary's records pass."""
    micros = seconds * 10**6
    shift = ", ".join(f"{name} = {name} - {micros}" for name in ("lease_until", "expires", "forget"))
    run_sql(url, f"UPDATE retrysafe_records SET {shift} WHERE boundary = '{boundary}'")


def left(url: str, boundary: str) -> int:
    """How many records a boundary has."""
    import psycopg

    with psycopg.connect(plain(url), autocommit=True) as connection:
        sql = "SELECT count(*) FROM retrysafe_records WHERE boundary = %s"
        found = connection.execute(sql, (boundary,)).fetchone()
    assert found is not None
    return int(found[0])


def completed(boundary: Boundary, keys: int) -> None:
    """Complete so many keys."""
    for number in range(keys):
        with boundary.claim(f"key{number}") as claim:
            claim.result = number


@pytest.mark.parametrize("how", ["sweep", "remove"])
def test_a_key_that_is_claimed_while_it_is_removed_stays(
    how: str, migrated: str, make: Callable[..., Boundary]
) -> None:
    """The claim is not committed when the statement meets its row, and is committed then."""
    import psycopg

    boundary = make(migrated, effects="transactional")
    completed(boundary, 1)
    age(migrated, boundary.name)
    backend = connect(migrated)
    seen: list[Record] = [
        one for one in run(forgotten(backend.store, 10_000), backend.client()) if one.boundary == boundary.name
    ]
    ended = threading.Event()

    def removing() -> None:
        program: Any = sweep(backend.store, 10_000) if how == "sweep" else remove(backend.store, seen)
        run(program, backend.client())
        ended.set()

    with psycopg.connect(migrated) as tx, boundary.claim("key0", tx=tx) as claim:
        assert not claim.replayed
        thread = threading.Thread(target=removing)
        thread.start()
        until(lambda: ended.is_set() or _waits(migrated))
        claim.result = "again"
    thread.join(30)
    reached(ended)
    with boundary.claim("key0") as claim:
        assert claim.replayed


def _waits(url: str) -> bool:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(sql).fetchone() is not None
