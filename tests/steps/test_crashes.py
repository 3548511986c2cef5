"""The checkout of the how-to, crashed in processes of its own: at every call, and at pairs of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from retrysafe import Boundary, current
from retrysafe.testing.crashing import crash_points

pytestmark = pytest.mark.slow


def _bank(path: str, amount: int, key: str) -> str:
    """A provider that recognises keys."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT OR IGNORE INTO charges VALUES (?, ?)", (key, amount))
    return f"charged {amount}"


def _checkout(path: str) -> None:
    boundary = Boundary("checkout", store=f"sqlite:///{path}", effects="keyed", observers=())

    @boundary.once(key="order", operation="place")
    def place(order: str, amount: int) -> str:
        claim = current()
        paid = claim.step("charge", lambda: _bank(path, amount, current().key_for("bank")))
        with closing(sqlite3.connect(path)) as db, db, claim.step("order row", tx=db) as step:
            if not step.replayed:
                db.execute("INSERT INTO orders VALUES (?, ?)", (order, paid))
        return claim.step("label", str.upper, order)

    assert place("a", 5) == "A"
    boundary.close()


def _fresh(folder: Path) -> str:
    path = str(folder / f"{uuid4()}.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE orders (id TEXT, charge TEXT)")
        db.execute("CREATE TABLE charges (id TEXT PRIMARY KEY, n INTEGER)")
    Boundary("checkout", store=f"sqlite:///{path}", observers=()).close()
    return path


def _check(path: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for table in ("orders", "charges"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)


@pytest.mark.one_of("handlers that crash at every call", of=3)
def test_a_checkout_in_steps_survives_a_crash_at_every_call(tmp_path: Path) -> None:
    report = crash_points(_checkout, fresh=partial(_fresh, tmp_path), check=_check, pairs=20)
    assert report.ok, str(report)
