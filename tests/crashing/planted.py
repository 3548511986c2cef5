"""Six small handlers, each with a bug that is often written, and each with its fixed twin.

All charge order A once. `TaskState` says where: a database of its own, and a bank.
"""

from __future__ import annotations

import asyncio
import sqlite3
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from retrysafe import Boundary
from retrysafe.testing.agent_tasks import TaskState


def connect(state: TaskState, *, autocommit: bool = False) -> Any:
    """A plain connection to the database."""
    if state.url.startswith("sqlite"):
        path = state.url.removeprefix("sqlite:///")
        return sqlite3.connect(path, isolation_level=None if autocommit else "IMMEDIATE")
    import psycopg

    return psycopg.connect(state.url, autocommit=autocommit)


def boundary(state: TaskState, **terms: Any) -> Boundary:
    return Boundary("shop", store=state.url, observers=(), **terms)


def post(state: TaskState, **headers: str) -> None:
    request = urllib.request.Request(state.bank, data=state.account.encode(), headers=headers)
    urllib.request.urlopen(request, timeout=60).close()


# ---------------------------------------------------------------- autocommit charge


def autocommit_charge(state: TaskState) -> None:
    with closing(connect(state, autocommit=True)) as db:
        if db.execute("SELECT 1 FROM done WHERE id = 'A'").fetchone() is None:
            db.execute("INSERT INTO charges VALUES ('A', 12)")
            db.execute("INSERT INTO done VALUES ('A')")


def charge_in_one_transaction(state: TaskState) -> None:
    shop = boundary(state, effects="transactional")
    with closing(connect(state)) as db, db, shop.claim("A", tx=db) as claim:
        if not claim.replayed:
            db.execute("INSERT INTO charges VALUES ('A', 12)")
            claim.result = "charged"


# ---------------------------------------------------------------- mark before effect


def mark_before_effect(state: TaskState) -> None:
    with closing(connect(state)) as db:
        won = db.execute("INSERT INTO done VALUES ('A') ON CONFLICT DO NOTHING").rowcount
        db.commit()
        if won:
            db.execute("INSERT INTO charges VALUES ('A', 12)")
            db.commit()


def mark_and_effect_in_one_commit(state: TaskState) -> None:
    with closing(connect(state)) as db:
        if db.execute("INSERT INTO done VALUES ('A') ON CONFLICT DO NOTHING").rowcount:
            db.execute("INSERT INTO charges VALUES ('A', 12)")
        db.commit()


# ---------------------------------------------------------------- effect before mark


def effect_before_mark(state: TaskState) -> None:
    with closing(connect(state, autocommit=True)) as db:
        if db.execute("SELECT 1 FROM done WHERE id = 'A'").fetchone() is None:
            post(state)
            db.execute("INSERT INTO done VALUES ('A')")


def effect_with_a_derived_key(state: TaskState) -> None:
    shop = boundary(state)
    with shop.claim("A") as claim:
        if not claim.replayed:
            post(state, **{"Idempotency-Key": claim.key_for("bank")})
            claim.result = "charged"
    shop.close()


# ---------------------------------------------------------------- guarded by a record on another connection


def record_on_another_connection(state: TaskState) -> None:
    shop = boundary(state)
    with shop.claim("A") as claim:
        if not claim.replayed:
            with closing(connect(state)) as db, db:
                db.execute("INSERT INTO charges VALUES ('A', 12)")
            claim.result = "charged"
    shop.close()


def record_in_the_same_transaction(state: TaskState) -> None:
    shop = boundary(state, effects="transactional")
    with shop.claim("A") as claim:
        if not claim.replayed:
            claim.tx.execute("INSERT INTO charges VALUES ('A', 12)")
            claim.result = "charged"
    shop.close()


# ---------------------------------------------------------------- swallowed CancelledError


async def swallowed_cancellation(state: TaskState) -> None:
    import httpx

    shop = boundary(state)
    async with shop.claim("A") as claim:
        if not claim.replayed:
            try:
                async with httpx.AsyncClient() as client:
                    await client.post(
                        state.bank, content=state.account, headers={"Idempotency-Key": claim.key_for("bank")}
                    )
            except (httpx.HTTPError, asyncio.CancelledError):
                pass  # "the bank is slow, we go on"
            claim.result = "charged"
    await shop.aclose()


async def cancellation_goes_on(state: TaskState) -> None:
    import httpx

    shop = boundary(state)
    async with shop.claim("A") as claim:
        if not claim.replayed:
            async with httpx.AsyncClient() as client:
                await client.post(state.bank, content=state.account, headers={"Idempotency-Key": claim.key_for("bank")})
            claim.result = "charged"
    await shop.aclose()


# ---------------------------------------------------------------- lease shorter than the work


def lease_shorter_than_the_work(state: TaskState) -> None:
    shop = boundary(state, effects="external", lease="10s", probe=lambda claim: claim.not_executed())
    with shop.claim("A") as claim:
        if not claim.replayed:
            post(state)  # takes as long as the bank takes
            claim.result = "charged"
    shop.close()


def lease_and_a_fence(state: TaskState) -> None:
    shop = boundary(state, lease="1m")  # the kit lets it lapse where it says so; one of a second does on a busy machine
    with shop.claim("A") as claim:
        if not claim.replayed:
            with closing(connect(state)) as db, db:
                key = claim.key_for("charges")
                mark = f"INSERT INTO done VALUES ('{key}') ON CONFLICT DO NOTHING"
                if db.execute(mark).rowcount:
                    db.execute("INSERT INTO charges VALUES ('A', 12)")
            claim.result = "charged"
    shop.close()


class Planted(NamedTuple):
    """A handler with a bug, its twin without, and the actions that show the bug."""

    buggy: Callable[[TaskState], Any]
    fixed: Callable[[TaskState], Any]
    shown_by: frozenset[str]
    at: str
    """A word of the line at which it must be found."""


BUGS = {
    "autocommit charge": Planted(
        autocommit_charge, charge_in_one_transaction, frozenset({"crash after, the reply lost"}), "INSERT INTO charges"
    ),
    "mark before effect": Planted(
        mark_before_effect, mark_and_effect_in_one_commit, frozenset({"crash before"}), "INSERT INTO charges"
    ),
    "effect before mark": Planted(
        effect_before_mark, effect_with_a_derived_key, frozenset({"crash after, the reply lost"}), "POST"
    ),
    "record on another connection": Planted(
        record_on_another_connection,
        record_in_the_same_transaction,
        frozenset({"crash after, the reply lost"}),
        "COMMIT",
    ),
    "swallowed CancelledError": Planted(swallowed_cancellation, cancellation_goes_on, frozenset({"cancelled"}), "POST"),
    "lease shorter than the work": Planted(
        lease_shorter_than_the_work, lease_and_a_fence, frozenset({"frozen until its lease has lapsed"}), "POST"
    ),
}
