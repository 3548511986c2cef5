"""Each pattern on each kind of transaction: what the losing side is told, one after the other and eight at once."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from retrysafe import ConfigurationError, RetryTransaction, insert_once, patterns, update_if, upsert
from tests.boundary.shops import SHOPS, Shop
from tests.conftest import served
from tests.django.aliases import set_up
from tests.tables import each_row

CHOSEN = (
    "sqlite3",
    "SQLAlchemy AsyncSession, aiosqlite",
    "Django, SQLite",
    "psycopg",
    "asyncpg",
    "SQLAlchemy Session, psycopg",
    "PyMySQL",
    "Django, MySQL",
    "SQLAlchemy AsyncSession, asyncmy",
    "PyMySQL, mysql-8",
)
AT_ONCE = 8
TABLES = (
    "{t}_ledger (transfer varchar(40) PRIMARY KEY, amount int, account varchar(40) UNIQUE)",
    "{t}_stock (sku varchar(40) PRIMARY KEY, qty int, version bigint)",
    "{t}_job (id varchar(40) PRIMARY KEY, status varchar(40), mailed varchar(40), fence bigint)",
)
Do = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture(params=CHOSEN)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """A database with the tables of the patterns, by one kind of transaction."""
    service, open_ = SHOPS[request.param]
    served(request, service)
    shop = open_(tmp_path)
    if request.param == "sqlite3":
        shop.begin = lambda: _begun(str(tmp_path / "shop.db"))
    shop.goods = f"t{secrets.token_hex(6)}"
    for verb in ("CREATE", "DROP"):
        for table in TABLES:
            statement = f"{verb} TABLE {table.format(t=shop.goods)}"
            async with shop.transaction() as tx:
                answer = shop.execute(tx, statement if verb == "CREATE" else statement.partition(" (")[0])
                if hasattr(answer, "__await__"):
                    await answer
        if verb == "CREATE":
            yield shop
    await shop.close()


@contextmanager
def _begun(file: str) -> Any:
    with closing(sqlite3.connect(file, timeout=20)) as connection, connection:
        yield connection


def _in_colour(shop: Shop, tx: Any) -> Do:
    """Calls a pattern in the shop's colour."""

    async def do(name: str, table: str, *args: Any, **options: Any) -> Any:
        function = getattr(patterns, name if shop.sync else f"a{name}")
        answer = function(tx, f"{shop.goods}_{table}", *args, **options)
        return answer if shop.sync else await answer

    return do


@pytest.mark.slow
@pytest.mark.every_value
async def test_patterns_tell_the_loser(shop: Shop) -> None:
    async with shop.transaction() as tx:
        await _one_after_the_other(_in_colour(shop, tx))
    await _at_once(shop)
    for write in ("insert_once", "upsert"):
        with pytest.raises(ConfigurationError, match=rf"CREATE UNIQUE INDEX .{shop.goods}_stock_qty. ON .*\(.qty.\)"):
            async with shop.transaction() as tx:
                await _in_colour(shop, tx)(write, "stock", {"qty": 1, "sku": "z"}, key=("qty",))


async def _one_after_the_other(do: Do) -> None:
    row, key = {"transfer": "t1", "amount": 5, "account": "a"}, ("transfer",)
    assert await do("insert_once", "ledger", row, key=key) == (row, True)
    assert await do("insert_once", "ledger", {**row, "amount": 6}, key=key) == (row, False)
    more = await do("insert_once", "ledger", {"transfer": "t2"}, key=key, returning=("amount",))
    assert more == ({"transfer": "t2", "amount": None}, True)

    stock = [{"sku": "x", "qty": version, "version": version} for version in (3, 3, 2, 4)]
    written = [await do("upsert", "stock", row, key=("sku",), newer="version") for row in stock]
    assert written == [True, False, False, True]
    assert await do("upsert", "stock", {"sku": "x", "version": 1}, key=("sku",))
    _, created = await do("insert_once", "stock", {"sku": "x"}, key=("sku",), returning=("qty", "version"))
    assert not created
    assert _ == {"sku": "x", "qty": 4, "version": 1}
    assert await do("upsert", "stock", {"sku": "y", "qty": 1}, key=("sku",))
    assert await do("upsert", "stock", {"sku": "y", "version": 1}, key=("sku",), newer="version")  # over NULL

    await do("insert_once", "job", {"id": "j", "status": "new"}, key=("id",))
    assert [await do("update_if", "job", {"status": "paid"}, {"id": "j", "status": "new"}) for _ in "12"] == [
        True,
        False,
    ]
    assert [await do("update_if", "job", {"mailed": "now"}, {"id": "j"}, unset=("mailed",)) for _ in "12"] == [
        True,
        False,
    ]
    fenced = [await do("update_if", "job", {}, {"id": "j"}, at_most={"fence": token}) for token in (5, 4, 5, 6)]
    assert fenced == [True, False, True, True]
    assert not await do("update_if", "job", {"status": "paid"}, {"id": "missing"})


async def _at_once(shop: Shop) -> None:
    gate = threading.Barrier(AT_ONCE)
    won: list[tuple[bool, bool, bool]] = []

    async def one(i: int) -> None:
        if shop.sync:
            gate.wait(30)
        while True:
            try:
                async with shop.transaction() as tx:
                    do = _in_colour(shop, tx)
                    _, created = await do("insert_once", "ledger", {"transfer": "r", "amount": i}, key=("transfer",))
                    row = {"sku": "r", "qty": i, "version": i}
                    wrote = await do("upsert", "stock", row, key=("sku",), newer="version")
                    paid = await do("update_if", "job", {"status": "sent"}, {"id": "j", "status": "paid"})
                won.append((created, wrote, paid))
            except RetryTransaction:
                continue
            return

    if shop.sync:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda i: asyncio.run(one(i)), range(AT_ONCE)))
    else:
        await asyncio.gather(*(one(i) for i in range(AT_ONCE)))
    async with shop.transaction() as tx:
        row, _ = await _in_colour(shop, tx)("insert_once", "stock", {"sku": "r"}, key=("sku",), returning=("qty",))
    assert row["qty"] == AT_ONCE - 1
    assert [sum(each) for each in zip(*won, strict=True)][::2] == [1, 1]
    assert len(won) == AT_ONCE


REFUSED: dict[str, Callable[[Any], Any]] = {
    "a key without a value": lambda tx: insert_once(tx, "t", {"b": 1}, key=("a",)),
    "NULL in the key": lambda tx: upsert(tx, "t", {"a": None, "b": 1}, key=("a",)),
    "an empty key": lambda tx: insert_once(tx, "t", {"b": 1}, key=()),
    "a key that is text": lambda tx: insert_once(tx, "t", {"a": 1}, key="a"),
    "a column to return that is text": lambda tx: insert_once(tx, "t", {"a": 1}, key=("a",), returning="id"),
    "a mark that is text": lambda tx: update_if(tx, "t", {"a": 1}, {"b": 1}, unset="m"),
    "a row that is a key": lambda tx: upsert(tx, "t", {"a": 1}, key=("a",)),
    "no version": lambda tx: upsert(tx, "t", {"a": 1, "b": None}, key=("a",), newer="b"),
    "SQL in a name": lambda tx: insert_once(tx, "t; DROP", {"a": 1}, key=("a",)),
    "no condition": lambda tx: update_if(tx, "t", {"a": 1}, {}),
    "a condition of NULL": lambda tx: update_if(tx, "t", {"a": 1}, {"b": None}),
    "nothing to write": lambda tx: update_if(tx, "t", {}, {"b": 1}),
    "a table of another library": lambda tx: update_if(tx, object(), {"a": 1}, {"b": 1}),
}


@each_row("call", REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_refused(call: Callable[[Any], Any]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(ConfigurationError, match="Nothing was sent"):
            call(connection)
        assert not connection.in_transaction or connection.execute("SELECT 1").fetchone() == (1,)


def test_a_statement_that_sqlite_does_not_take_is_its_own_error() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a PRIMARY KEY)")
        with pytest.raises(sqlite3.OperationalError, match="no column named b"):
            insert_once(connection, "t", {"a": 1, "b": 1}, key=("a",))
        connection.execute("CREATE VIEW v AS SELECT a FROM t")
        with pytest.raises(sqlite3.OperationalError, match="a view"):
            insert_once(connection, "v", {"a": 1}, key=("a",))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PyMySQL", "PyMySQL, mysql-8"])
async def test_a_row_of_another_unique_key_is_not_written_over(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """MySQL's ON DUPLICATE KEY is about all keys, and would take the other row."""
    service, open_ = SHOPS[name]
    served(request, service)
    shop = open_(tmp_path)
    table = shop.goods
    async with shop.transaction() as tx:
        shop.execute(tx, f"ALTER TABLE {table} ADD COLUMN bar varchar(9) UNIQUE, ADD COLUMN n int")
        insert_once(tx, table, {"value": "a", "bar": "x", "n": 1}, key=("value",))
        for write in (insert_once, upsert):
            with pytest.raises(ConfigurationError, match="another key"):
                write(tx, table, {"value": "b", "bar": "x", "n": 2}, key=("value",))
    assert shop.look(f"SELECT concat(value, bar, n) FROM {table}") == ["ax1"]
    await shop.close()


@pytest.mark.parametrize("name", ["SQLAlchemy Connection, SQLite", "SQLAlchemy Connection, psycopg"])
async def test_tables_of_sqlalchemy_keep_their_types_and_defaults(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    import sqlalchemy as sa

    made = datetime(2026, 11, 28, 12)
    table = sa.Table(
        f"entry_{secrets.token_hex(6)}",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("transfer", sa.String, unique=True),
        sa.Column("amount", sa.Numeric(10, 2)),
        sa.Column("rate", sa.Float),
        sa.Column("tax", sa.Numeric(10, 2, asdecimal=False)),
        sa.Column("fee", sa.Numeric(10, 2)),
        sa.Column("notes", sa.JSON, default=dict),
        sa.Column("made", sa.DateTime, default=lambda: made),
    )
    service, open_ = SHOPS[name]
    served(request, service)
    shop = open_(tmp_path)
    async with shop.transaction() as tx:
        table.create(tx)
        row = {"transfer": "t", "amount": Decimal("1.50"), "rate": 1.5, "tax": 2.5, "fee": None}
        made_now, created = insert_once(tx, table, row, key=("transfer",), returning=("id", "made", "rate", "amount"))
        assert (made_now, created) == ({**row, "id": 1, "made": made}, True)
        met, created = insert_once(tx, table, row, key=("transfer",), returning=("notes",))
        assert (met, created) == ({**row, "notes": {}}, False)
        assert [type(value) for value in met.values()] == [str, Decimal, float, float, type(None), dict]
        assert update_if(tx, table, {"notes": {"a": 1}}, {"amount": Decimal("1.50"), "made": made})
        assert tx.execute(sa.select(table.c.notes)).scalar() == {"a": 1}
        table.drop(tx)
    await shop.close()


async def test_models_of_django_keep_their_types_and_defaults(tmp_path: Path) -> None:
    set_up()
    from django.db import connections, models

    class Entry(models.Model):
        transfer = models.CharField(max_length=40, unique=True)
        amount = models.DecimalField(max_digits=9, decimal_places=2, db_column="sum")
        notes = models.JSONField(default=dict)
        made = models.DateTimeField(auto_now_add=True)
        parent = models.ForeignKey("self", models.CASCADE, null=True)

        class Meta:
            app_label = "patterns"

    shop = SHOPS["Django, SQLite"][1](tmp_path)
    with connections[shop.store].schema_editor() as editor:
        editor.create_model(Entry)
    async with shop.transaction() as tx:
        row = {"transfer": "t", "amount": Decimal("1.50")}
        made, created = insert_once(tx, Entry, row, key=("transfer",), returning=("id",))
        assert created
        found = Entry.objects.using(shop.store).get()
        assert (found.pk, found.amount, found.notes) == (made["id"], Decimal("1.50"), {})
        met, created = insert_once(tx, Entry, row, key=("transfer",), returning=("notes", "made"))
        assert (met, created) == ({**row, "notes": {}, "made": found.made}, False)
        assert upsert(tx, Entry, {"transfer": "u", "amount": 2, "parent": found}, key=("transfer",))
        assert update_if(tx, Entry, {"notes": {"a": 1}}, {"parent": found})
        assert Entry.objects.using(shop.store).get(transfer="u").notes == {"a": 1}
    await shop.close()
