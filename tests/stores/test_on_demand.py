"""A SQLite file has the tables of the features that were asked for, whatever version it comes from."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import Boundary, StoreUnavailable
from retrysafe.backends import migrations, registry
from retrysafe.backends.migrations import on_demand
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.loads import Loads
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.outbox import Outbox
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.messaging.relay.relay import Relay

RECORDS = {"retrysafe_records", "retrysafe_schema"}
LATEST = migrations.load("sqlite")[-1].version


def asked(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def tables(path: Path) -> set[str]:
    return {name for (name,) in asked(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def of(feature: str) -> set[str]:
    whole = on_demand.creation(("retrysafe_",), LATEST)
    names = [line.split("(")[0].split()[-1].strip('"') for line in whole if line.startswith("CREATE TABLE")]
    return {name for name in names if name.startswith(on_demand.FEATURES[feature])}


def forms(path: Path) -> dict[str, str]:
    """The tables and indexes of a file, each as it was written; a rename quotes names."""
    rows = asked(path, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.replace('"', "").split()) for name, sql in rows if name != "sqlite_sequence"}


def migrated_by_hand(path: Path, version: int) -> None:
    """A file as an earlier retrysafe left it: with every table of its version."""
    with closing(sqlite3.connect(path)) as connection:
        for migration in migrations.load("sqlite"):
            if migration.version <= version:
                for statement in migrations.forward("sqlite", migration.version):
                    connection.execute(statement)
        connection.commit()


STORES: dict[str, Callable[[Path], Any]] = {
    "url": lambda path: f"sqlite:///{path}?busy=50ms",
    "engine": lambda path: create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.05}),
    "async engine": lambda path: create_async_engine(f"sqlite+aiosqlite:///{path}"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "async engine":
        pytest.importorskip("aiosqlite")
    made = STORES[request.param](tmp_path / "shop.db")
    yield made
    for backend in [shared for shared, given in registry._shared.values() if given is made]:
        registry.forget(backend)
        asyncio.run(backend.aclose())
    if request.param == "engine":
        made.dispose()
    elif request.param == "async engine":
        asyncio.run(made.dispose())


def test_each_feature_makes_its_tables_when_it_is_first_asked_for(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=store, observers=(), effects="transactional")
    assert tables(path) == RECORDS
    Outbox(store, source="/shop")
    assert tables(path) - {"sqlite_sequence"} == RECORDS | of("outbox")
    assert asked(path, "SELECT count(*) FROM retrysafe_outbox_buckets") == [(64,)]
    Inbox(boundary)
    assert tables(path) - {"sqlite_sequence"} == RECORDS | of("outbox") | of("inbox")


def test_a_user_s_own_tables_stay(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    Boundary("shop", store=f"sqlite:///{path}", observers=())
    assert tables(path) == RECORDS | {"orders"}


@pytest.mark.parametrize("version", [0, 3, LATEST])
def test_a_user_s_table_whose_name_begins_like_ours_is_not_taken_for_a_feature(version: int, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    migrated_by_hand(path, version)
    mine = {"retrysafe_outbox_archive", "retrysafe_inbox_of_ada"}
    with closing(sqlite3.connect(path)) as connection:
        for table in tables(path) - RECORDS - {"sqlite_sequence"}:
            connection.execute(f"DROP TABLE {table}")
        for table in mine:
            connection.execute(f"CREATE TABLE {table} AS SELECT 7 AS kept")
        connection.commit()
    boundary = Boundary("shop", store=f"sqlite:///{path}", observers=(), effects="transactional")
    assert tables(path) - {"sqlite_sequence"} == RECORDS | mine
    Outbox(f"sqlite:///{path}", source="/shop")
    Inbox(boundary)
    assert tables(path) - {"sqlite_sequence"} == RECORDS | mine | of("outbox") | of("inbox")
    assert [asked(path, f"SELECT kept FROM {table}") for table in sorted(mine)] == [[(7,)]] * 2


def test_the_tables_are_those_of_the_migrations(tmp_path: Path) -> None:
    migrated_by_hand(tmp_path / "hand.db", LATEST)
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path / 'shop.db'}", observers=(), effects="transactional")
    Outbox(f"sqlite:///{tmp_path / 'shop.db'}", source="/shop")
    Inbox(boundary)
    boundary.signal("k", "shipped")
    Loads(Boundary("loads", store=f"sqlite:///{tmp_path / 'shop.db'}"), f"sqlite:///{tmp_path / 'shop.db'}").window(
        "t", 1
    )
    assert forms(tmp_path / "shop.db") == forms(tmp_path / "hand.db")


def test_migrate_makes_all_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrated_by_hand(tmp_path / "hand.db", LATEST)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert main(["migrate", "--store", url]) == 0
    assert capsys.readouterr().out.count("applied") == LATEST
    assert forms(tmp_path / "shop.db") == forms(tmp_path / "hand.db")
    assert main(["migrate", "--store", url]) == 0
    assert capsys.readouterr().out == "up to date\n"


def test_migrate_completes_the_file_of_a_boundary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    migrated_by_hand(tmp_path / "hand.db", LATEST)
    Boundary("shop", store=f"sqlite:///{tmp_path / 'shop.db'}", observers=()).close()
    for expected in ([(3, "outbox"), (4, "inbox"), (8, "steps"), (9, "loads")], []):
        assert main(["migrate", "--json", "--store", f"sqlite:///{tmp_path / 'shop.db'}"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert told == [{"version": version, "name": name} for version, name in expected]
    assert forms(tmp_path / "shop.db") == forms(tmp_path / "hand.db")


@pytest.mark.parametrize("version", range(1, LATEST + 1))
def test_a_file_of_an_earlier_version_keeps_the_features_it_has(version: int, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    migrated_by_hand(path, version)
    before = tables(path)
    boundary = Boundary("shop", store=f"sqlite:///{path}", observers=())
    assert asked(path, "SELECT max(version) FROM retrysafe_schema") == [(LATEST,)]
    kept = {feature for feature, table in on_demand.FEATURES.items() if any(name.startswith(table) for name in before)}
    assert tables(path) - {"sqlite_sequence"} == RECORDS.union(*map(of, kept))
    with boundary.claim("k") as claim:
        claim.result = 1


@pytest.mark.parametrize("version", range(3, LATEST))
def test_a_file_without_a_feature_is_migrated_from_any_version(version: int, tmp_path: Path) -> None:
    """As a later retrysafe finds the file of a boundary of this one."""
    path = tmp_path / "shop.db"
    migrated_by_hand(path, version)
    with closing(sqlite3.connect(path)) as connection:
        for table in tables(path) - RECORDS - {"sqlite_sequence"}:
            connection.execute(f"DROP TABLE {table}")
    Boundary("shop", store=f"sqlite:///{path}", observers=())
    assert tables(path) - {"sqlite_sequence"} == RECORDS
    Outbox(f"sqlite:///{path}", source="/shop")
    migrated_by_hand(tmp_path / "hand.db", LATEST)
    lacking = ("retrysafe_inbox", "retrysafe_steps", "retrysafe_loads")
    hand = {name: form for name, form in forms(tmp_path / "hand.db").items() if not name.startswith(lacking)}
    assert forms(path) == hand


def test_an_operator_of_an_outbox_that_nobody_used_finds_it_empty(tmp_path: Path) -> None:
    Boundary("shop", store=f"sqlite:///{tmp_path / 'shop.db'}", observers=()).close()
    with OutboxOperator(f"sqlite:///{tmp_path / 'shop.db'}", observers=()) as operator:
        assert list(operator.dead()) == []


def test_an_outbox_that_is_made_in_a_transaction_leaves_that_alone_and_says_what_to_do(
    store: Any, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    Boundary("shop", store=store, observers=())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(StoreUnavailable, match=r"before a transaction .* retrysafe migrate --store '?sqlite"):
            Outbox(store, source="/shop")
        assert connection.in_transaction
        connection.execute("ROLLBACK")
    assert tables(path) == RECORDS | {"orders"}
    Outbox(store, source="/shop")
    assert tables(path) >= of("outbox")


def test_a_rollback_of_the_user_s_transaction_leaves_the_tables(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=store, observers=())
    outbox = Outbox(store, source="/shop")
    inbox_before = tables(path) & of("inbox")
    with closing(sqlite3.connect(path)) as connection:
        outbox.add(connection, "orders", 1)
        connection.rollback()
        outbox.add(connection, "orders", 2)
        Relay(store, MemoryPublisher(), observers=()).stop()
        connection.commit()
    assert (inbox_before, asked(path, "SELECT count(*) FROM retrysafe_outbox")) == (set(), [(1,)])
    boundary.close()


def test_messages_and_dead_letters_need_no_schema_in_the_user_s_transaction(tmp_path: Path) -> None:
    """Nothing that is given tx= changes the schema: the transaction is the user's to roll back."""
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=f"sqlite:///{path}", observers=(), effects="transactional")
    outbox = Outbox(f"sqlite:///{path}", source="/shop")
    Inbox(boundary)
    before = asked(path, "PRAGMA schema_version")
    with boundary.claim("k") as claim:
        outbox.add(claim.tx, "orders", 1)
        claim.result = 1
    assert asked(path, "PRAGMA schema_version") == before


def test_a_look_at_a_file_without_a_schema_keeps_no_later_outbox_from_its_tables(tmp_path: Path) -> None:
    """Both share the backend of the file in this process."""
    path = tmp_path / "shop.db"
    sqlite3.connect(path).close()
    assert connect(f"sqlite:///{path}", migrate=False).tables.provide("outbox") == []
    Boundary("shop", store=f"sqlite:///{path}", observers=())
    Outbox(f"sqlite:///{path}", source="/shop")
    assert tables(path) >= of("outbox")


def test_an_operator_does_not_touch_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    migrated_by_hand(path, 2)
    before = forms(path)
    backend = connect(f"sqlite:///{path}", migrate=False)
    assert backend.tables.provide("outbox") == []
    assert forms(path) == before


@pytest.mark.slow
def test_many_at_once_make_the_tables_once(tmp_path: Path) -> None:
    """Each in a process of its own, as workers start."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    go, ready = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(ready)
                os.read(go, 1)
                Outbox(url, source="/shop")
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the parent looks at the exit code
                os._exit(1)
        children.append(pid)
    os.close(ready)
    os.close(go)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]
    assert asked(tmp_path / "shop.db", "SELECT count(*) FROM retrysafe_outbox_buckets") == [(64,)]


def test_threads_make_the_tables_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    Boundary("shop", store=url, observers=())
    with ThreadPoolExecutor(4) as pool:
        for outbox in [pool.submit(Outbox, url, source=f"/shop/{n}") for n in range(8)]:
            outbox.result()
    assert asked(tmp_path / "shop.db", "SELECT count(*) FROM retrysafe_outbox_buckets") == [(64,)]


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["new", "old"])
@pytest.mark.parametrize("at", [1, 3, 9, 20])
def test_a_process_that_is_killed_on_the_way_leaves_the_file_as_it_was(begun: str, at: int, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    if begun == "old":
        migrated_by_hand(path, 5)
    else:
        sqlite3.connect(path).close()
    before = forms(path)
    pid = os.fork()
    if pid == 0:
        seen = 0
        run = on_demand._perform

        def killing(statements: Any) -> Any:
            nonlocal seen
            for statement in statements:
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from run([statement])

        on_demand._perform = killing
        try:
            Outbox(f"sqlite:///{path}", source="/shop")
        finally:
            os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    version = asked(path, "SELECT count(*) FROM sqlite_master WHERE name = 'retrysafe_schema'") == [(1,)]
    if killed and not version:
        assert forms(path) == before
    Outbox(f"sqlite:///{path}", source="/shop")
    migrated_by_hand(tmp_path / "hand.db", LATEST)
    expected = forms(tmp_path / "hand.db")
    lacking = (
        ("retrysafe_inbox", "retrysafe_steps", "retrysafe_loads")
        if begun == "new"
        else ("retrysafe_steps", "retrysafe_loads")
    )
    expected = {name: form for name, form in expected.items() if not name.startswith(lacking)}
    assert forms(path) == expected
