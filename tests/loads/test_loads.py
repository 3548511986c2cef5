"""Loads on each target: a run is loaded once, and a part of a table equals one clean load, also after kills."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, KeyReused, StoredFailure, StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.errors import StaleToken
from retrysafe.loads import Late, Loads, Merge, Window, sql
from retrysafe.loads.work import part_of
from tests.boundary.shops import SHOPS, Shop
from tests.conftest import served
from tests.steps.kills import Killed, Killer, elsewhere
from tests.tables import each_row

DAY, OTHER = "2026-11-27", "2026-11-28"
CHOSEN = (
    "sqlite3",
    "psycopg",
    "PyMySQL",
    "PyMySQL, mysql-8",
    "SQLAlchemy Session, psycopg",
    "SQLAlchemy Connection, PyMySQL",
    "Django, SQLite",
    "Django, psycopg",
)
TABLES = {
    "sales": "day varchar(40), id int, amount int, loaded_by varchar(250)",
    "customers": "id int PRIMARY KEY, name varchar(40), version bigint, loaded_by varchar(250)",
}


class Warehouse:
    """A target with two tables."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.names = {name: f"{name}_{secrets.token_hex(6)}" for name in TABLES}
        self.boundary = shop.boundary(effects="keyed", lease="2s", observers=[])
        self.loads = Loads(self.boundary, shop.store)
        self.do(*(f"CREATE TABLE {name} ({TABLES[key]})" for key, name in self.names.items()))

    def do(self, *statements: str) -> None:
        async def done() -> None:
            for statement in statements:
                async with self.shop.transaction() as tx:
                    self.shop.execute(tx, statement)

        asyncio.run(done())

    def load(self, run: str, n: int = 5, *, day: str = DAY, extra: int = 0, **options: Any) -> Any:
        """Load so many rows of a day."""
        given = {"rows": lambda: sales(n, day, extra), "by": "day", "partition": day, **options}
        return elsewhere(lambda: self.loads.load(self.names["sales"], run=run, **given))

    def merge(self, run: str, rows: Any, **options: Any) -> Any:
        given = {"strategy": Merge(("id",), "version"), "tag": None, "rows": lambda: rows, **options}
        return elsewhere(lambda: self.loads.load(self.names["customers"], run=run, **given))

    def sales(self, day: str = DAY) -> list[int]:
        return self.shop.look(f"SELECT amount FROM {self.names['sales']} WHERE day = '{day}' ORDER BY id")  # type: ignore[return-value]

    def ledger(self, limit: int, **named: str) -> list[Any]:
        backend = connect(self.shop.store)
        return backend.run(sql.marks_of(backend, limit, target=self.names["sales"], **named))

    def customers(self) -> list[str]:
        return self.shop.look(f"SELECT name FROM {self.names['customers']} ORDER BY id")


def sales(n: int, day: str = DAY, extra: int = 0) -> list[tuple[Any, ...]]:
    return [(day, i, i * 10 + extra) for i in range(n)]


def clean(n: int, extra: int = 0) -> list[int]:
    return [amount for _, _, amount in sales(n, extra=extra)]


def customer(key: int, version: int) -> dict[str, Any]:
    return {"id": key, "name": f"{key}v{version}", "version": version}


@pytest.fixture(params=CHOSEN)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    yield from _warehouse(request, request.param, tmp_path)


@pytest.fixture
def on_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    yield from _warehouse(request, "sqlite3", tmp_path)


def _warehouse(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Iterator[Warehouse]:
    service, open_ = SHOPS[name]
    served(request, service)
    made = Warehouse(open_(tmp_path))
    yield made
    made.do(*(f"DROP TABLE {name}" for name in made.names.values()))
    asyncio.run(made.shop.close())


# ---------------------------------------------------------------- in order


@pytest.mark.slow
@pytest.mark.every_value
def test_loads(warehouse: Warehouse) -> None:
    _a_run_is_loaded_once(warehouse)
    _rows_are_appended_once(warehouse)
    _rows_are_merged(warehouse)
    _a_part_of_a_like_text_stays(warehouse)
    _a_table_is_one_however_it_is_written(warehouse)
    _a_run_that_was_overtaken_is_refused(warehouse)
    _a_run_that_an_overlapping_one_overtook_is_refused(warehouse)
    _two_writers_at_once(warehouse)


def _a_run_is_loaded_once(warehouse: Warehouse) -> None:
    first = warehouse.load("first")
    assert (first.rows, first.superseded) == (5, None)
    assert warehouse.load("first", 9) == first
    assert warehouse.load("other day", 2, day=OTHER).superseded is None
    second = warehouse.load("second", 3, extra=1, version=7)
    assert (second.rows, second.superseded) == (3, "first")
    assert second.fence == first.fence + 1
    assert warehouse.sales() == clean(3, 1)
    tags = warehouse.shop.look(f"SELECT DISTINCT loaded_by FROM {warehouse.names['sales']} WHERE day = '{DAY}'")
    assert tags == ["second/2"]
    with pytest.raises(StaleToken, match="Version 7"):
        warehouse.load("late", version=6)
    with pytest.raises(ValueError, match="refused"):
        warehouse.load("checked", check=lambda tx: False)
    with pytest.raises(ConfigurationError, match="Of 5 rows, 0 have"):
        warehouse.load("mixed", rows=lambda: sales(5, OTHER))
    assert warehouse.sales() == clean(3, 1)
    assert warehouse.load("empty", 0, version=8).rows == 0
    assert (warehouse.sales(), warehouse.sales(OTHER)) == ([], clean(2))
    with pytest.raises(KeyReused, match=r"^Run 'first' of sales_\w+ was begun with another value of input=\. Nothing"):
        warehouse.load("first", input="another file")
    assert [(part, mark[1:4]) for _, part, mark in warehouse.ledger(9) if part in (f"day={DAY}", f"day={OTHER}")] == [
        (f"day={DAY}", ("empty", 0, 8)),
        (f"day={OTHER}", ("other day", 2, None)),
    ]
    assert (len(warehouse.ledger(1)), warehouse.ledger(9, run="first")) == (1, [])


def _rows_are_appended_once(warehouse: Warehouse) -> None:
    kept = {"by": None, "partition": None, "strategy": "append_once"}
    for run in ("a", "b", "a"):
        warehouse.load(run, 2, day=run, **kept)
    assert [warehouse.sales(run) for run in "ab"] == [clean(2), clean(2)]
    table = warehouse.names["sales"]
    warehouse.load("c", rows=lambda: f"SELECT 'c', id, amount FROM {table} WHERE day = 'a' AND '%' <> ''", **kept)
    warehouse.load(
        "e", rows=lambda: f"SELECT 'e', id, amount, '%s' FROM {table} WHERE day LIKE 'a%' -- all", tag=None, **kept
    )
    assert warehouse.sales("e") == clean(2)
    warehouse.load("d", rows=lambda: ({"amount": n * 10, "id": n, "day": "d"} for n in range(2)), **kept)
    assert [warehouse.sales(run) for run in "cd"] == [clean(2), clean(2)]


def _a_part_of_a_like_text_stays(warehouse: Warehouse) -> None:
    """Collations do not tell them apart: MySQL's by case or accents, MariaDB's by blanks behind them."""
    table, loaded = f"regions_{secrets.token_hex(6)}", []
    kind = connect(warehouse.shop.store).kind
    warehouse.do(f"CREATE TABLE {table} (day varchar(40){' COLLATE NOCASE' if kind == 'sqlite' else ''}, id int)")
    for part in ("Köln", "Koln", "DE", "de", "a", "a "):
        for text in (part.swapcase(), part):  # rows may have another text than their part
            given = {"by": "day", "partition": part, "rows": lambda text=text: [(text, 1)], "tag": None}
            with suppress(ConfigurationError):
                warehouse.loads.load(table, run=f"{text} of {part!r}", **given)
                loaded.append(text)
    assert sorted(warehouse.shop.look(f"SELECT day FROM {table}")) == sorted(loaded)
    assert {"Köln", "DE", "a"} <= set(loaded)
    assert ("de" in loaded) is (kind == "postgresql")
    warehouse.do(f"DROP TABLE {table}")


def _rows_are_merged(warehouse: Warehouse) -> None:
    warehouse.merge("m1", [customer(1, 1), customer(1, 3), customer(1, 2), customer(2, 1)])
    warehouse.merge("m2", [customer(1, 2), customer(2, 2), customer(3, 1)])
    assert warehouse.customers() == ["1v3", "2v2", "3v1"]
    warehouse.merge("m3", [{"id": 1, "version": 1}, {"id": 4, "version": 1}], strategy=Merge(("id",)))
    assert warehouse.customers() == ["1v3", "2v2", "3v1", None]
    warehouse.merge("only keys", [{"id": 1}, {"id": 5}], strategy=Merge(("id",)))
    assert warehouse.customers() == ["1v3", "2v2", "3v1", None, None]
    by_key, by_version = Merge(("id",)), Merge(("id",), "version")
    for rows, strategy in (
        ([customer(1, 1), customer(1, 2)], by_key),
        ([{**customer(1, 1), "id": None}], by_key),
        ([customer(1, 9), {**customer(1, 1), "version": None}], by_version),
        ([{"id": 1, "name": "unversioned"}], by_version),
        ([customer(1, 9)], Merge(("ident",))),
        ([customer(1, 9)], Merge(("id",), "changed")),
    ):
        with pytest.raises(Exception, match=r"NULL in it, or twice|cannot be null|Merge names \w+;"):
            warehouse.merge("m4", rows, strategy=strategy)
    assert warehouse.customers()[0] == "1v3"
    with pytest.raises(ConfigurationError, match="CREATE UNIQUE INDEX"):
        warehouse.merge("m5", [customer(1, 4)], strategy=Merge(("name",)))


def _a_table_is_one_however_it_is_written(warehouse: Warehouse) -> None:
    table = warehouse.names["sales"]
    kind = connect(warehouse.shop.store).kind
    schema = warehouse.shop.look("SELECT DATABASE()")[0] if kind == "mysql" else "public"
    for name in (table, f"main.{table}", table.upper()) if kind == "sqlite" else (f"{schema}.{table}", table):
        loaded = warehouse.loads.load(name, run="one", rows=lambda: sales(1, "one"), strategy="append_once")
        assert loaded.rows == 1
    assert warehouse.sales("one") == clean(1)
    backend = connect(warehouse.shop.store)
    assert len(backend.run(sql.marks_of(backend, 9, target=name, part="run one"))) == 1


def _a_run_that_was_overtaken_is_refused(warehouse: Warehouse) -> None:
    def overtaken(*by: tuple[str, int]) -> Callable[[], Any]:
        def rows() -> Any:
            for run, extra in by:
                warehouse.load(run, extra=extra)
            return sales(9)

        return rows

    with pytest.raises(StaleToken, match="later"):
        warehouse.load("zombie", rows=overtaken(("later", 4)))
    with pytest.raises(StaleToken, match="latest"):
        warehouse.load("zombie 2", rows=overtaken(("a while later", 5), ("latest", 6)))
    with pytest.raises(StoredFailure, match="latest"):
        warehouse.load("zombie 2")  # as a scheduler does that sees an error
    assert warehouse.sales() == clean(5, 6)


WHOLE: dict[str, Any] = {"by": None, "partition": None}
ADDED = {**WHOLE, "strategy": "append_once"}


def _a_run_that_an_overlapping_one_overtook_is_refused(warehouse: Warehouse) -> None:
    def overtaken(early: str, options: dict[str, Any]) -> Callable[[], Any]:
        return lambda: warehouse.load(early, 2, **options) and sales(9)

    for number, (late, early, told) in enumerate(
        [
            (WHOLE, {"day": OTHER}, "A part of"),
            (WHOLE, {"day": "a new day"}, "A part of"),
            (WHOLE, ADDED, "A part of"),
            ({}, WHOLE, "All of"),
            (ADDED, WHOLE, "All of"),
        ]
    ):
        with pytest.raises(StaleToken, match=rf"{told} sales_\w+ was loaded since run 'late {number}'"):
            warehouse.load(f"late {number}", rows=overtaken(f"early {number}", early), **late)
    assert warehouse.sales() == clean(2)
    assert warehouse.load("whole", 4, **WHOLE).superseded == "early 4"


WAITING = {
    "psycopg": "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
    "AND query LIKE '%retrysafe_loads%'",
    "PyMySQL": "SELECT info FROM information_schema.processlist WHERE info LIKE '%retrysafe_loads%' "
    "AND id <> connection_id() AND time_ms > 100",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WAITING))
def test_loads_that_overlap_wait_for_each_other(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither sees the rows of the other, to delete them, until that has committed; two parts do not overlap."""
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_isolation=repeatable\\ read")
    for warehouse in _warehouse(request, name, tmp_path):
        if name == "psycopg":  # a DELETE of MySQL's without an index locks the whole table
            with ThreadPoolExecutor(1) as threads:
                beside = partial(threads.submit, warehouse.load, "beside", day=OTHER)
                warehouse.load("a part", check=lambda _, beside=beside: beside().result(30))
        for day, (first, second) in {DAY: (WHOLE, {}), OTHER: ({}, WHOLE)}.items():
            assert _overlapping(warehouse, WAITING[name], day, first, second) == clean(5)


def _overlapping(
    warehouse: Warehouse, waiting: str, day: str, first: dict[str, Any], second: dict[str, Any]
) -> list[int]:
    """Load a day while another load of it is about to commit; return its rows."""
    begun: list[Any] = []

    def check(_: Any) -> None:
        begun.append(threads.submit(warehouse.load, f"second {day}", 3, day=day, extra=1, **second))
        while not begun[0].done() and not warehouse.shop.look(waiting):
            pass

    with ThreadPoolExecutor(1) as threads:
        warehouse.load(f"first {day}", 5, day=day, check=check, **first)
        with pytest.raises(StaleToken):
            begun[0].result()
    return warehouse.sales(day)


def _two_writers_at_once(warehouse: Warehouse) -> None:
    gate = threading.Barrier(4)

    def one(extra: int) -> None:
        gate.wait(30)
        day = OTHER if extra == 3 else DAY
        for attempt in range(9):
            try:
                warehouse.load(f"writer {extra}, {attempt}", extra=extra, day=day)
            except StaleToken:
                continue
            return
        raise AssertionError("it was always overtaken")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))
    assert warehouse.sales() in [clean(5, extra) for extra in range(3)]
    assert warehouse.sales(OTHER) == clean(5, 3)


# ---------------------------------------------------------------- killed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite3", "psycopg", "PyMySQL"])
def test_killed_at_every_boundary(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for warehouse in _warehouse(request, name, tmp_path):
        _killed(warehouse, monkeypatch, pairs=name == "sqlite3")


def _killed(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, *, pairs: bool) -> None:
    """A process is killed before or after each request that it makes, and the run is tried again."""
    killer, plain = Killer(None), sql.run

    def run(*args: Any) -> Any:
        killer()
        answer = plain(*args)
        killer()
        return answer

    monkeypatch.setattr(sql, "run", run)
    kept = {"by": None, "partition": None, "strategy": "append_once"}
    ways: dict[str, Callable[[str], Any]] = {
        "overwrite": lambda run: warehouse.load(run, extra=2),
        "append": lambda run: warehouse.load(run, day=run[:20], **kept),
        "merge": lambda run: warehouse.merge(run, [customer(1, 1), customer(1, 2)]),
    }
    for way, load in ways.items():
        killer = Killer(None)
        load(f"{secrets.token_hex(8)} counted")
        most = next(killer._passed)
        plans = [[at] for at in range(most)]
        if pairs:
            plans = [[first, then] for first in range(most) for then in range(most)]
        for plan in plans:
            run_id = f"{secrets.token_hex(8)} {way}"
            for at in plan:
                killer = Killer(at)
                try:
                    load(run_id)
                except Killed:
                    continue
            killer = Killer(None)
            loaded = load(run_id)
            assert loaded.run == run_id
            if way == "overwrite":
                assert (loaded.rows, warehouse.sales()) == (5, clean(5, 2)), plan
            elif way == "append":
                assert (loaded.rows, warehouse.sales(run_id[:20])) == (5, clean(5)), plan
            else:
                assert (loaded.rows, warehouse.customers()) == (2, ["1v2"]), plan


def test_the_command_line_shows_loads(on_sqlite: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, code: int = 0) -> list[Any]:
        assert main(["batch", *words, "--store", on_sqlite.shop.store, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with on_sqlite.boundary.claim("no load"):
        pass
    assert told("runs") == []  # the file has no ledger yet
    for run in ("before", "last"):
        on_sqlite.load(run, version=7)
    part = {"table": on_sqlite.names["sales"], "part": f"day={DAY}", "fence": 2, "run": "last", "rows": 5}
    part |= {"version": 7, "upto": None}
    assert told("runs") == [part]
    assert told("runs", "--table", "other") == []
    for run, parts, states in (("last", [part], ["completed"]), ("before", [], ["completed"]), ("never", [], [])):
        (shown,) = told("show", run, code=0 if states else 1)
        assert (shown["parts"], [record["effective_state"] for record in shown["records"]]) == (parts, states)
    assert told("runs", "--table", f"main.{part['table']}") == [part]
    assert main(["batch", "runs", "--store", on_sqlite.shop.store, "--target", "duckdb:///x.db"]) == 2
    assert "duckdb:///x.db is no SQL database" in capsys.readouterr().err


def test_a_lost_reply_of_a_commit_is_looked_up(on_sqlite: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = sql.SqlTarget.publish

    def lost(target: Any, work: Any) -> int:
        publish(target, work)
        raise StoreUnavailable("the reply is lost")

    monkeypatch.setattr(sql.SqlTarget, "publish", lost)
    assert on_sqlite.load("r").rows == 5
    assert on_sqlite.sales() == clean(5)

    def unsent(target: Any, work: Any) -> int:
        raise StoreUnavailable("it cannot be reached")

    monkeypatch.setattr(sql.SqlTarget, "publish", unsent)
    with pytest.raises(StoreUnavailable):
        on_sqlite.load("s")


def test_a_connection_lost_while_rows_are_written_is_told(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for warehouse in _warehouse(request, "psycopg", tmp_path):
        copying = (
            f"FROM pg_stat_activity WHERE query LIKE 'COPY%{warehouse.names['sales']}%' AND pid <> pg_backend_pid()"
        )

        def rows(warehouse: Warehouse = warehouse, copying: str = copying) -> Iterator[tuple[Any, ...]]:
            yield from sales(5)
            assert warehouse.shop.look(f"SELECT pg_terminate_backend(pid) {copying}") == [True]
            yield from sales(100_000)

        with pytest.raises(StoreUnavailable):
            warehouse.load("lost", rows=rows)
        assert warehouse.load("lost").rows == 5


# ---------------------------------------------------------------- where it is loaded, and for which tenant


def _load(loads: Loads, table: str, run: str, n: int, **options: Any) -> int:
    given = {"by": "day", "partition": DAY, "tag": None, "rows": lambda: sales(n), **options}
    return int(loads.load(table, run=run, **given).rows)


def test_scopes_share_a_table_but_no_run(on_sqlite: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    """The fence of a part is one for all; runs, added rows and windows are of each tenant."""
    table, store = on_sqlite.names["sales"], on_sqlite.shop.store
    both = {scope: on_sqlite.shop.boundary(effects="keyed", scope=scope, observers=[]) for scope in ("blue", "green")}
    for scope, boundary in both.items():
        loads, added = Loads(boundary, store), {"by": None, "partition": None, "strategy": "append_once"}
        _load(loads, table, "nightly", 1, tag="loaded_by", **added)
        window = loads.window(table, 7)
        assert window.low is None
        _load(loads, table, "to 7", 1, tag="loaded_by", window=window, **added)
        _load(loads, table, "parted", 1, tag="loaded_by", partition=OTHER, rows=lambda: sales(1, OTHER))
        assert main(["batch", "show", "parted", "--scope", scope, "--store", store]) == 0
        assert f"parted of {scope}" in capsys.readouterr().out
    assert len(on_sqlite.sales()) == 4
    assert [mark.fence for _, part, mark in on_sqlite.ledger(9) if part == f"day={OTHER}"] == [2]


def test_one_boundary_loads_each_of_its_targets(tmp_path: Path) -> None:
    """A file by two names is one target."""
    events: list[Any] = []
    store = f"sqlite:///{tmp_path}/runs.db"
    with closing(Boundary("runs", store=store, effects="keyed", observers=[events.append])) as boundary:
        for name in ("a", "b", "x" * 200):
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as db:
                db.execute("CREATE TABLE sales (day text, id int, amount int)")
            for url in (f"sqlite:///{tmp_path}/{name}.db", f"sqlite:///{tmp_path}/../{tmp_path.name}/{name}.db"):
                assert _load(Loads(boundary, url), "sales", "nightly", 3) == 3
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as db:
                assert db.execute("SELECT count(*) FROM sales").fetchone() == (3,)
    assert [event.name for event in events].count("completed") == 3


# ---------------------------------------------------------------- windows and input


def test_a_window_moves_with_its_load(on_sqlite: Warehouse) -> None:
    table, at = on_sqlite.names["customers"], datetime(2026, 11, 27, tzinfo=UTC)
    first = on_sqlite.loads.window(table, at)
    assert first[:2] == (None, at)
    on_sqlite.merge("w1", [customer(1, 1)], window=first)
    then = on_sqlite.loads.window(table, at + timedelta(hours=3), overlap="2h")
    assert then[:2] == (at - timedelta(hours=2), at + timedelta(hours=3))
    with pytest.raises(StaleToken):
        on_sqlite.merge("w0", [customer(1, 9)], window=first)
    with pytest.raises(ConfigurationError, match="append_once would add the rows between them again"):
        on_sqlite.merge("w2 added", [customer(1, 2)], window=then, strategy="append_once")
    on_sqlite.merge("w2", [customer(1, 2)], window=then)
    assert on_sqlite.merge("w2", [], window=then).rows == 1
    for wrong in (at, datetime(2026, 12, 1), 9):
        with pytest.raises(ConfigurationError, match="below"):
            on_sqlite.loads.window(table, wrong)
    assert on_sqlite.loads.window(on_sqlite.names["sales"], 5).low is None


def test_late_rows_are_apart_and_counted_once(warehouse: Warehouse) -> None:
    table, apart = warehouse.names["customers"], f"late_{secrets.token_hex(6)}"
    warehouse.do(f"CREATE TABLE {apart} ({TABLES['customers']})")
    options: dict[str, Any] = {"late": Late(apart, "version"), "tag": "loaded_by"}
    first = warehouse.loads.window(table, 100)
    assert warehouse.merge("w1", [customer(1, 5)], window=first, **options)[::4] == (1, 0)
    then = warehouse.loads.window(table, 200)
    rows = [customer(1, 99), customer(2, 100), customer(3, 7), customer(4, 150)]
    given = {"window": then, "strategy": "append_once", **options}
    assert warehouse.merge("w2", rows, **given)[::4] == (2, 2)
    assert warehouse.merge("w2", rows, **given)[::4] == (2, 2)
    forgetful = warehouse.shop.boundary(effects="keyed", observers=[])
    warehouse.loads = Loads(forgetful, warehouse.shop.store)  # the run's record is gone: it is found in the target
    assert warehouse.merge("w2", rows, **given)[::4] == (2, 2)
    assert warehouse.customers() == ["1v5", "2v100", "4v150"]
    assert warehouse.shop.look(f"SELECT name FROM {apart} ORDER BY id") == ["1v99", "3v7"]
    warehouse.do(f"DROP TABLE {apart}")


@each_row(
    ("options", "told"),
    [
        ({"tag": None}, "with window= and tag="),
        ({"window": None, "strategy": "append_once"}, "with window= and tag="),
        ({"rows": "SELECT 1"}, "reads rows, not SQL"),
        ({"rows": [{"id": 1}]}, "compares 'version'"),
        ({"rows": [customer(1, 1) | {"version": None}]}, "cannot compare version = None"),
    ],
)
def test_late_rows_that_cannot_be_told_are_refused(on_sqlite: Warehouse, options: dict[str, Any], told: str) -> None:
    given = {"late": Late("late", "version"), "tag": "loaded_by", "window": Window(5, 9), **options}
    with pytest.raises(ConfigurationError, match=told):
        on_sqlite.merge("w", **{"rows": [], **given})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows that are no function": ({"rows": []}, "has to be a function"),
    "half a partition": ({"partition": None}, "belong together"),
    "a partition of two columns": ({"by": ("day",)}, "name of one column"),
    "a key that is text": ({"strategy": Merge("id")}, "has to be a tuple"),
    "an unknown strategy": ({"strategy": "swap"}, "append_once, merge, overwrite"),
    "a partition with a session's text": ({"partition": Decimal("1.0")}, "same in every session"),
    "an instant without a zone": ({"partition": datetime(2026, 11, 27)}, "no time zone"),
    "a version that is no number": ({"version": "7"}, "whole number"),
    "a window of a partition": ({"window": (None, 5, 0)}, "of a whole table"),
    "a tag without its column": ({"tag": "batch"}, "no column 'batch'"),
    "no rows but None": ({"rows": lambda: None}, r"no rows are an empty list\."),
    "tuples that are too short": ({"rows": lambda: [*sales(1), (DAY, 1)]}, "columns day, id, amount; .* 2 values"),
    "tuples that are too long": ({"rows": lambda: [(DAY, 1, 2, "batch")]}, "columns day, id, amount; .* 4 values"),
    "a frame, which gives the names of its columns": (
        {"rows": lambda: iter(["day", "idx", "sum"])},
        r"the text 'day' for a row; of a frame give to_dict",
    ),
    "dicts of an unknown column": ({"rows": lambda: [{"day": DAY, "sum": 1}]}, "amount; rows= gives day, sum"),
    "rows that differ": (
        {"rows": lambda: [{"day": DAY, "id": 1}, {"day": DAY, "amount": 1}]},
        "differ in their columns",
    ),
}


@each_row("options, told", REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_refused(on_sqlite: Warehouse, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        on_sqlite.load(secrets.token_hex(4), **options)
    assert on_sqlite.sales() == []


def test_partitions_have_one_name() -> None:
    assert part_of("day", date(2026, 11, 27)) == part_of("day", DAY) == "day=2026-11-27"
    assert part_of("n", 7) == "n=7"


def test_boundaries_and_targets_that_cannot_load_are_refused(on_sqlite: Warehouse) -> None:
    external = on_sqlite.shop.boundary(effects="external")
    with pytest.raises(ConfigurationError, match="keyed"):
        Loads(external, on_sqlite.shop.store)
    with pytest.raises(ConfigurationError, match="SQLite, PostgreSQL"):
        Loads(on_sqlite.boundary, "memory://")
