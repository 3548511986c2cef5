"""Transactional claims: in the boundary's own transaction and in the caller's, on every client library."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    ConfigurationError,
    Event,
    InProgress,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultNotEncodable,
    StoredFailure,
    wait,
)
from retrysafe.backends.registry import connect
from retrysafe.protocol.outcomes import Answered
from tests.boundary.shops import Shop

pytestmark = pytest.mark.asyncio


class Declined(Exception):
    """A failure for good."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.data = {"code": "card_declined"}


def new_key() -> str:
    return secrets.token_hex(16)


# ---------------------------------------------------------------- the boundary's own transaction


async def test_own_effect_and_record_commit_together(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.entered(boundary.claim(key, payload={"sku": 1})) as claim:
        assert not claim.replayed
        await shop.insert(claim.tx, "one")
        assert shop.rows() == []
        claim.result = {"placed": 1}
    assert shop.rows() == ["one"]
    async with shop.entered(boundary.claim(key, payload={"sku": 1})) as claim:
        assert claim.replayed
        assert claim.result == {"placed": 1}
    with pytest.raises(KeyReused) as caught:
        async with shop.entered(boundary.claim(key, payload={"sku": 2})):
            pytest.fail("the block of a refused claim must not run")
    assert caught.value.differing == ("sku",)


async def test_own_exception_rolls_everything_back(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ZeroDivisionError):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "lost")
            raise ZeroDivisionError
    assert shop.rows() == []
    assert shop.state(boundary) == []
    async with shop.entered(boundary.claim(key)) as claim:
        assert not claim.replayed
        await shop.insert(claim.tx, "again")
    assert shop.rows() == ["again"]


async def test_own_permanent_failure_is_stored_without_the_effect(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional", permanent=Declined), new_key()
    with pytest.raises(Declined):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "undone")
            raise Declined("no funds")
    assert shop.rows() == []
    assert shop.state(boundary) == ["failed"]
    with pytest.raises(StoredFailure) as caught:
        async with shop.entered(boundary.claim(key)):
            pytest.fail("a stored failure is not run again")
    assert (caught.value.type, caught.value.message, caught.value.data) == (
        "Declined",
        "no funds",
        {"code": "card_declined"},
    )


async def test_own_declared_failure_is_stored_without_the_effect(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.entered(boundary.claim(key)) as claim:
        await shop.insert(claim.tx, "undone")
        claim.fail(Declined("no funds"))
    assert shop.rows() == []
    with pytest.raises(StoredFailure):
        async with shop.entered(boundary.claim(key)):
            pytest.fail("a stored failure is not run again")


async def test_own_failure_after_committed_is_unknown_without_the_database_effect(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ZeroDivisionError):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "undone")
            claim.committed()
            raise ZeroDivisionError
    assert shop.rows() == []
    assert shop.state(boundary) == ["unknown"]
    with pytest.raises(OutcomeUnknown):
        async with shop.entered(boundary.claim(key)):
            pytest.fail("an unknown outcome is not run again")


async def test_own_result_that_cannot_be_encoded_rolls_back(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ResultNotEncodable):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "undone")
            claim.result = object()
    assert shop.rows() == []
    assert shop.state(boundary) == []


async def test_own_transaction_committed_by_the_handler_is_unknown(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(OutcomeUnknown, match="committed the boundary's transaction"):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "committed too early")
            await _end(shop, claim.tx, "COMMIT")
    assert shop.rows() == ["committed too early"]
    assert shop.state(boundary) == ["unknown"]


async def test_own_transaction_that_the_handler_commits_and_begins_again_is_unknown(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(OutcomeUnknown, match="committed the boundary's transaction"):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "a: committed too early")
            await _end(shop, claim.tx, "COMMIT")
            await _begin(shop, claim.tx)
            await shop.insert(claim.tx, "b: never committed")
    assert shop.rows() == ["a: committed too early"]
    assert shop.state(boundary) == ["unknown"]


async def test_callers_transaction_that_is_committed_and_begun_again_in_the_claim_is_found_out(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with suppress(Exception):  # the library's complaint of a transaction that was ended beneath it
        async with shop.transaction() as tx:
            with pytest.raises(LeaseLost):
                async with shop.entered(boundary.claim(key, tx=tx)) as claim:
                    await shop.insert(tx, "committed too early")
                    answer = shop.execute(tx, "COMMIT")
                    if hasattr(answer, "__await__"):
                        await answer
                    await _begin(shop, tx)
                    claim.result = "not in one transaction with its record"
    assert "completed" not in shop.state(boundary)


async def _begin(shop: Shop, tx: Any) -> None:
    answer = shop.execute(tx, "BEGIN")
    if hasattr(answer, "__await__"):
        await answer


async def test_own_transaction_rolled_back_by_the_handler_stores_nothing(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ConfigurationError, match="the handler rolled it back"):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "gone")
            await _end(shop, claim.tx, "ROLLBACK")
    assert shop.rows() == []
    assert shop.state(boundary) == []


async def test_own_failure_after_a_rollback_by_the_handler_stores_nothing(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional", permanent=Declined), new_key()
    with pytest.raises(ConfigurationError, match="the handler rolled it back"):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "gone")
            await _end(shop, claim.tx, "ROLLBACK")
            claim.fail(Declined("no funds"))
    assert shop.rows() == []
    assert shop.state(boundary) == []


async def test_own_work_behind_a_rollback_by_the_handler_is_not_committed_alone(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ConfigurationError, match="the handler rolled it back"):
        async with shop.entered(boundary.claim(key)) as claim:
            if type(claim.tx).__module__.startswith(("asyncpg", "pymysql", "asyncmy", "django")):
                pytest.skip("asyncpg and Django have no such method; on MySQL its work is committed")
            await _end(shop, claim.tx, "ROLLBACK")
            await shop.insert(claim.tx, "each retry would do it again")
    assert shop.rows() == []
    assert shop.state(boundary) == []


async def test_own_refusal_is_recorded_after_an_error_that_was_caught(shop: Shop) -> None:
    """The work is undone where the database takes no more then; its answer is recorded all the same."""
    boundary, rows = shop.boundary(effects="transactional"), []
    for answered in (Answered.REFUSED, Answered.ABORTED, Answered.DECLINED):
        key, spoilt = new_key(), False
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, answered.name)
            for sql in ("SELECT * FROM missing", "SELECT 1"):
                try:
                    await _end(shop, claim.tx, sql)
                except Exception:  # noqa: BLE001 - of any driver
                    spoilt = sql == "SELECT 1"
            claim._take_answer(answered, 409, "HTTP 409")
        if answered is not Answered.DECLINED:
            async with shop.entered(boundary.claim(key)) as claim:
                assert claim.result == 409
        if answered is not Answered.ABORTED and not spoilt:
            rows.append(answered.name)
    assert shop.rows() == sorted(rows)
    assert sorted(shop.state(boundary)) == ["completed", "completed", "released"]


async def test_own_refusal_after_a_rollback_by_the_handler_is_told_and_not_stored(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    for answered in (Answered.REFUSED, Answered.ABORTED, Answered.DECLINED):
        async with shop.entered(boundary.claim(key)) as claim:
            await shop.insert(claim.tx, "gone")
            await _end(shop, claim.tx, "ROLLBACK")
            claim._take_answer(answered, 409, "HTTP 409")
        assert (shop.rows(), shop.state(boundary)) == ([], [])


async def test_own_flush_that_fails_and_is_caught(tmp_path: Path) -> None:
    """SQLAlchemy takes no more in the transaction then, on any database: only a refusal can be stored."""
    from sqlalchemy import Column, Integer, MetaData, Table, create_engine
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.orm import registry, sessionmaker

    class User:
        def __init__(self, id: int) -> None:
            self.id = id

    engine, metadata = create_engine(f"sqlite:///{tmp_path}/shop.db"), MetaData()
    users = Table("users", metadata, Column("id", Integer, primary_key=True))
    registry().map_imperatively(User, users)
    metadata.create_all(engine)
    ended = pytest.raises(ConfigurationError, match=r"begin_nested\(\)")
    key = new_key()
    with closing(Boundary(new_key(), store=sessionmaker(engine), effects="transactional")) as boundary:
        for answered, expected in ((Answered.DONE, ended), (Answered.REFUSED, nullcontext())):
            with expected, boundary.claim(key) as claim:
                with suppress(IntegrityError):
                    claim.tx.add_all([User(1), User(1)])
                    claim.tx.flush()
                claim._take_answer(answered, 409)
        with boundary.claim(key) as claim:
            assert claim.result == 409
        with engine.connect() as connection:
            assert connection.execute(users.select()).all() == []
    engine.dispose()


async def test_own_connection_of_cancelled_work_is_lent_to_no_other(shop: Shop) -> None:
    """A thread that the work was in may go on to write with it."""
    boundary = shop.boundary(effects="transactional")
    with pytest.raises(asyncio.CancelledError):
        async with shop.entered(boundary.claim(new_key())) as claim:
            left = claim.tx
            raise asyncio.CancelledError
    if isinstance(left, sqlite3.Connection):
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            await shop.insert(left, "late")
    async with shop.entered(boundary.claim(new_key())) as claim:
        assert claim.tx is not left or hasattr(left, "in_atomic_block")  # Django's belongs to this thread


async def _end(shop: Shop, tx: Any, word: str) -> None:
    method = getattr(tx, word.lower(), None)
    by_sql = method is None or hasattr(tx, "in_atomic_block")  # Django refuses the method
    answer = shop.execute(tx, word) if by_sql else method()
    if hasattr(answer, "__await__"):
        await answer


async def test_own_nested_claims_share_the_transaction_and_keep_their_results(shop: Shop) -> None:
    orders, stock = shop.boundary(effects="transactional"), shop.boundary(effects="transactional", lease="7s")
    key = new_key()
    with pytest.raises(ZeroDivisionError):
        async with shop.entered(orders.claim(key)) as outer:
            async with shop.entered(stock.claim(key)) as inner:
                assert inner.tx is outer.tx
                await shop.insert(inner.tx, "inner")
                inner.result = "inner"
            raise ZeroDivisionError
    assert shop.rows() == []
    assert shop.state(stock) == []
    async with shop.entered(orders.claim(key)) as outer:
        async with shop.entered(stock.claim(key)) as inner:
            inner.result = "inner"
        outer.result = "outer"
    async with shop.entered(stock.claim(key)) as inner:
        assert inner.result == "inner"
    async with shop.entered(orders.claim(key)) as outer:
        assert outer.result == "outer"


async def test_own_leased_claim_inside_on_the_same_store_is_refused(shop: Shop) -> None:
    orders, mails = shop.boundary(effects="transactional"), shop.boundary(effects="keyed")
    with pytest.raises(ConfigurationError, match="would not be rolled back"):
        async with shop.entered(orders.claim(new_key())), shop.entered(mails.claim(new_key())):
            pytest.fail("the inner claim must be refused")
    assert shop.state(mails) == []


async def test_own_same_key_inside_itself_is_in_progress(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(InProgress, match="wait for itself"):
        async with shop.entered(boundary.claim(key)), shop.entered(boundary.claim(key)):
            pytest.fail("a claim cannot be won twice")


# ---------------------------------------------------------------- the caller's transaction


async def test_joined_effect_and_record_commit_with_the_caller(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.transaction() as tx:
        async with shop.entered(boundary.claim(key, tx=tx)) as claim:
            assert claim.tx is tx
            await shop.insert(tx, "one")
            claim.result = 1
        assert shop.rows() == [], "we must not commit what was handed to us"
    assert shop.rows() == ["one"]
    async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)) as claim:
        assert claim.replayed
        assert claim.result == 1


async def test_joined_rollback_of_the_caller_erases_the_record(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ZeroDivisionError):
        async with shop.transaction() as tx:
            async with shop.entered(boundary.claim(key, tx=tx)) as claim:
                await shop.insert(tx, "gone")
                claim.result = 1
            raise ZeroDivisionError
    assert shop.rows() == []
    assert shop.state(boundary) == []
    async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)) as claim:
        assert not claim.replayed


async def test_joined_exception_that_the_caller_lets_out_erases_the_record(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    with pytest.raises(ZeroDivisionError):
        async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)):
            await shop.insert(tx, "gone")
            raise ZeroDivisionError
    assert shop.rows() == []
    assert shop.state(boundary) == []


async def test_joined_exception_that_the_caller_swallows_is_unknown(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.transaction() as tx:
        try:
            async with shop.entered(boundary.claim(key, tx=tx)):
                await shop.insert(tx, "half done")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert shop.rows() == ["half done"]
    assert shop.state(boundary) == ["unknown"]


async def test_joined_exception_after_not_executed_is_released(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.transaction() as tx:
        try:
            async with shop.entered(boundary.claim(key, tx=tx)) as claim:
                claim.not_executed()
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert shop.state(boundary) == ["released"]
    async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)) as claim:
        assert not claim.replayed


async def test_joined_failure_is_stored_by_declaration_only(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional", permanent=Declined), new_key()
    async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)) as claim:
        claim.fail(Declined("no funds"))
    assert shop.state(boundary) == ["failed"]
    other = new_key()
    with pytest.raises(Declined):
        async with shop.transaction() as tx, shop.entered(boundary.claim(other, tx=tx)):
            raise Declined("rolled back by the caller")
    assert shop.state(boundary) == ["failed"]


async def test_joined_statement_that_failed_leaves_nothing(shop: Shop) -> None:
    boundary, key = shop.boundary(effects="transactional"), new_key()
    async with shop.transaction() as tx:
        await shop.insert(tx, "taken")
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)):
            await shop.insert(tx, "taken")
    assert shop.state(boundary) == []
    async with shop.transaction() as tx, shop.entered(boundary.claim(key, tx=tx)) as claim:
        assert not claim.replayed


async def test_joined_needs_a_transactional_boundary(shop: Shop) -> None:
    boundary = shop.boundary(effects="keyed")
    with pytest.raises(ConfigurationError, match="effects='transactional'"):
        boundary.claim(new_key(), tx=object())


async def test_joined_in_the_other_colour_is_refused(shop: Shop) -> None:
    boundary = shop.boundary(effects="transactional")
    async with shop.transaction() as tx:
        if type(tx).__module__ == "sqlite3":
            return  # a local connection serves both colours
        claim = boundary.claim(new_key(), tx=tx)
        with pytest.raises(ConfigurationError, match=r"use '(async )?with'"):
            if shop.sync:
                await claim.__aenter__()
            else:
                claim.__enter__()


# ---------------------------------------------------------------- what a session stands for


async def test_scoped_sessions_are_joined(tmp_path: Path) -> None:
    import sqlalchemy
    from sqlalchemy.orm import scoped_session, sessionmaker

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'scoped.db'}")
    session = scoped_session(sessionmaker(engine))
    boundary = Boundary("scoped", store=engine, effects="transactional")
    with boundary.claim("k", tx=session) as claim:
        claim.result = 1
    session.commit()
    session.remove()
    with boundary.claim("k") as claim:
        assert claim.replayed
    boundary.close()
    engine.dispose()


@pytest.mark.parametrize(("isolation", "warned"), [("READ COMMITTED", 0), ("SERIALIZABLE", 1)])
async def test_waiting_in_a_frozen_snapshot_warns_at_the_first_claim(
    postgresql: str, isolation: str, warned: int
) -> None:
    import psycopg

    connect(postgresql).migrate()
    seen: list[Event] = []
    terms: dict[str, Any] = {"effects": "transactional", "concurrency": wait(1), "observers": [seen.append]}
    boundary = Boundary(new_key(), store=postgresql, **terms)
    async with await psycopg.AsyncConnection.connect(postgresql) as connection:
        await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        for _ in range(2):
            async with boundary.claim(new_key(), tx=connection) as claim:
                claim.result = 1
    assert [occurrence.name for occurrence in seen].count("frozen_snapshot") == warned
    await boundary.aclose()
