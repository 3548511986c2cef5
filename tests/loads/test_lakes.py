"""Loads into DuckDB, Delta Lake and Iceberg: as those into SQL, by what each of them has in its commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from itertools import product, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retrysafe import Boundary, ConfigurationError, StoreUnavailable
from retrysafe import wait as until
from retrysafe.errors import StaleToken
from retrysafe.loads import Late, Loads, Merge, Window
from retrysafe.loads.sql import SqlTarget
from tests.loads.test_loads import DAY, OTHER, clean, sales
from tests.steps.kills import elsewhere

pa = pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Delete operation did not match any records")]
SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64()), ("amount", pa.int64()), ("loaded_by", pa.string())])


class Lake(NamedTuple):
    """A target with a table of sales."""

    target: Any
    table: str
    rows: Callable[[], list[dict[str, Any]]]
    loads: Loads

    def load(self, run: str, n: int = 5, *, day: str = DAY, extra: int = 0, **options: Any) -> Any:
        given = {"rows": lambda: sales(n, day, extra), "by": "day", "partition": day, **options}
        return elsewhere(lambda: self.loads.load(self.table, run=run, **given))

    def sales(self, day: str = DAY) -> list[int]:
        return [row["amount"] for row in sorted(self.rows(), key=lambda row: row["id"]) if row["day"] == day]


def _duckdb(folder: Path) -> tuple[Any, str, Callable[[], Any]]:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect(str(folder / "lake.db"))
    connection.execute("CREATE TABLE IF NOT EXISTS sales (day VARCHAR, id BIGINT, amount BIGINT, loaded_by VARCHAR)")
    looking = connection.cursor()
    return connection, "sales", lambda: pa.table(looking.sql("FROM sales").to_arrow_table())


def _delta(folder: Path) -> tuple[Any, str, Callable[[], Any]]:
    deltalake = pytest.importorskip("deltalake")
    uri = str(folder / "sales")
    deltalake.write_deltalake(uri, SCHEMA.empty_table(), partition_by=["day"], mode="ignore")
    return f"delta://{folder}", "sales", lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())


def _iceberg(folder: Path) -> tuple[Any, str, Callable[[], Any]]:
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table_if_not_exists("shop.sales", schema=SCHEMA)
    return catalog, "shop.sales", lambda: catalog.load_table("shop.sales").scan().to_arrow()


@pytest.fixture(params=[_duckdb, _delta, _iceberg])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with _lake(request.param, tmp_path) as made:
        yield made


@contextmanager
def _lake(make: Callable[[Path], tuple[Any, str, Callable[[], Any]]], tmp_path: Path, **options: Any) -> Iterator[Lake]:
    target, table, read = make(tmp_path)
    boundary = Boundary(tmp_path.name, store=f"sqlite:///{tmp_path}/runs.db", observers=[], **options)
    yield Lake(target, table, lambda: read().to_pylist(), Loads(boundary, target))
    boundary.close()


def test_loads_of_lakes(lake: Lake) -> None:
    first = lake.load("first")
    assert lake.load("first", 9) == first
    assert (first.rows, first.superseded) == (5, None)
    second = lake.load("second", 3, extra=1, version=7)
    assert (second.rows, second.superseded, second.fence) == (3, "first", first.fence + 1)
    lake.load("other day", 2, day=OTHER)
    with pytest.raises(StaleToken, match="Version 7"):
        lake.load("late", version=6)
    with pytest.raises(ConfigurationError, match="would stay when"):
        lake.load("mixed", rows=lambda: sales(5, OTHER))
    with pytest.raises(ValueError, match="refused"):
        lake.load("checked", check=lambda _: False)
    assert {row["loaded_by"] for row in lake.rows() if row["day"] == DAY} == {"second/2"}

    def overtaken() -> Any:
        lake.load("later", 0)  # an empty day
        return sales(9)

    with pytest.raises(StaleToken, match="later"):
        lake.load("zombie", rows=overtaken)
    assert (lake.sales(), lake.sales(OTHER)) == ([], clean(2))
    for run in ("a", "b", "a"):
        lake.load(run, 2, day=run, by=None, partition=None, strategy="append_once")
    assert [lake.sales(run) for run in "ab"] == [clean(2), clean(2)]
    assert lake.load("none", 0, by=None, partition=None, strategy="append_once").rows == 0
    assert lake.loads._target.look(lake.table, "run none")[0] is not None
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=False)) for row in sales(4)])
    for number, rows in enumerate((table, table.to_reader())):
        assert lake.load(f"arrow {number}", rows=partial(next, repeat(rows))).rows == 4
        assert lake.sales() == clean(4)


@pytest.mark.parametrize("make", [_duckdb, _delta, _iceberg])
def test_a_boundary_loads_each_of_its_lakes(make: Callable[[Path], Any], tmp_path: Path) -> None:
    with closing(Boundary(tmp_path.name, store=f"sqlite:///{tmp_path}/runs.db", effects="keyed", observers=[])) as runs:
        for tenant in ("blue", "green"):
            (tmp_path / tenant).mkdir()
            target, table, read = make(tmp_path / tenant)
            for _ in "ab":
                loaded = Loads(runs, target).load(table, by="day", partition=DAY, rows=lambda: sales(2), run="nightly")
                assert (loaded.rows, read().num_rows) == (2, 2)


def test_writers_of_lakes_at_once(lake: Lake) -> None:
    gate = threading.Barrier(4)

    def one(extra: int) -> None:
        gate.wait(30)
        for attempt in range(9):
            try:
                lake.load(f"writer {extra}, {attempt}", extra=extra, day=OTHER if extra == 3 else DAY)
            except StaleToken:
                continue
            return
        raise AssertionError("it was always overtaken")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))
    assert lake.sales() in [clean(5, extra) for extra in range(3)]
    assert lake.sales(OTHER) == clean(5, 3)


ALL: dict[str, Any] = {"by": None, "partition": None}
ADDED = {"strategy": "append_once", **ALL}


def test_loads_of_lakes_that_overlap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (late, early) in enumerate([(ALL, {}), (ALL, ADDED), ({}, ALL), (ADDED, ALL)]):

        def overtake(by: str, early: dict[str, Any] = early) -> Any:
            return lake.load(by, 2, **early)

        _overtaken(lake, by := f"before {number}", late, lambda by=by: overtake(by) and sales(9))
        blind = late == ADDED and lake.table == "sales"  # Delta adds rows whatever else was committed
        if not blind and not isinstance(lake.loads._target, SqlTarget):
            with monkeypatch.context() as patch:
                _before_its_commit(lake, patch, partial(overtake, by := f"meanwhile {number}"))
                _overtaken(lake, by, late, lambda: sales(9))


def _overtaken(lake: Lake, by: str, late: dict[str, Any], rows: Callable[[], Any]) -> None:
    with pytest.raises(StaleToken):
        lake.load(f"{by}, overtaken", rows=rows, **late)
    assert {row["loaded_by"].partition("/")[0] for row in lake.rows()} == {by}
    lake.load(f"{by}, emptied", 0, **ALL)


def _before_its_commit(lake: Lake, patch: pytest.MonkeyPatch, do: Callable[[], Any]) -> None:
    """Do something once when a lake has been looked at and is about to be written."""
    target: Any = lake.loads._target
    write, undone = target.write, [do]

    def written(*args: Any) -> None:
        if undone:
            undone.pop()()
        write(*args)

    patch.setattr(target, "write", written)


def test_loads_of_duckdb_that_overlap_take_turns(tmp_path: Path) -> None:
    with _lake(_duckdb, tmp_path) as lake, ThreadPoolExecutor(1) as threads:
        begun: list[Any] = []

        def check(_: Any) -> None:
            begun.append(threads.submit(lake.load, "part"))
            wait(begun, 0.5)  # until it has loaded, unless it waits for us

        lake.load("whole", 3, check=check, **ALL)
        with pytest.raises(StaleToken):
            begun[0].result()
        assert lake.sales() == clean(3)
        for name in ("sales", "main.sales", "Sales"):  # one table
            assert lake.loads.load(name, run="one", rows=lambda: sales(1, "one"), strategy="append_once").rows == 1
        assert lake.sales("one") == clean(1)


KILLED: dict[str, dict[str, Any]] = {
    "overwrite": {},
    "append_once": ADDED,
    "merge": {"strategy": Merge(("id",)), **ALL},
}


def die(make: str, folder: str, strategy: str, at: str) -> None:
    """Load in a process that is killed before or after its commit."""
    with _lake(globals()[make], Path(folder), lease="1s") as lake:
        target: Any = lake.loads._target
        write = target.write

        def killed(*args: Any) -> None:
            if at == "after":
                write(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        target.write = killed
        lake.load("r", **KILLED[strategy])


def test_loads_of_lakes_that_are_killed(tmp_path: Path) -> None:
    dying = {}
    for make, strategy in [(_delta, "merge"), *product((_delta, _iceberg), ("overwrite", "append_once"))]:
        for at in ("before", "after"):
            (folder := tmp_path / f"{make.__name__}_{strategy}_{at}").mkdir()
            words = f"from tests.loads.test_lakes import die; die{(make.__name__, str(folder), strategy, at)}"
            dying[make, strategy, folder] = subprocess.Popen([sys.executable, "-c", words])
    for (make, strategy, folder), process in dying.items():
        assert process.wait(60) == -signal.SIGKILL
        with _lake(make, folder, lease="1s", concurrency=until("20s")) as lake:
            assert lake.sales() == (clean(5) if folder.name.endswith("after") else [])
            assert lake.load("r", **KILLED[strategy]).rows == 5
            assert lake.sales() == clean(5), folder.name


WRONG = [
    ([{"day": DAY, "id": 1, "sum": 1}], "day, id, sum"),
    ([{"day": DAY, "id": 1, "amount": 1, "sum": 1}], "day, id, amount, sum"),
    (pa.table({"day": [DAY], "id": [1], "sum": [1]}), "day, id, sum"),
    (pa.table({"day": [DAY], "id": [1], "amount": [1], "sum": [1]}), "day, id, amount, sum"),
    ([(DAY, 1)], "a row of 2 values"),
    (["day", "idx", "sum"], r"the text 'day' for a row; of a frame give to_dict\('records'\) or to_arrow\(\)"),
]
LACKING = [
    ([{"day": DAY, "id": 1}], "day, id"),
    (pa.table({"day": [DAY], "id": [1]}), "day, id"),
]


def test_columns_that_a_lake_has_not_are_refused(lake: Lake) -> None:
    defaults = isinstance(lake.loads._target, SqlTarget)  # a column that is not named has its default
    for number, (rows, told) in enumerate(WRONG if defaults else WRONG + LACKING):
        for strategy in ("overwrite", "append_once"):
            with pytest.raises(ConfigurationError, match=f"has the columns day, id, amount; rows= gives {told}\\."):
                lake.load(f"{strategy} {number}", rows=partial(next, repeat(rows)), strategy=strategy)
    assert lake.rows() == []


@pytest.mark.parametrize("lost", ["conflict", "reply"])
def test_a_commit_of_iceberg_that_was_made_is_found(lost: str, tmp_path: Path) -> None:
    """PyIceberg by itself deletes the files of a commit that was made and answered with a conflict."""
    from pyiceberg.exceptions import CommitFailedException

    with _lake(_iceberg, tmp_path) as lake:
        commit, calls = lake.target.commit_table, []

        def answered(*args: Any, **options: Any) -> Any:
            answer = commit(*args, **options)
            calls.append(1)
            if len(calls) == 1:
                raise CommitFailedException if lost == "conflict" else OSError
            return answer

        lake.target.commit_table = answered
        assert lake.load("r").rows == 5
        assert len(calls) == 1
        assert lake.sales() == clean(5)


def test_a_table_of_iceberg_without_repeats_is_refused(tmp_path: Path) -> None:
    with _lake(_iceberg, tmp_path) as lake:
        table = lake.target.load_table(lake.table)
        for name in ("commit.retry.num-retries", "commit.retry.total-timeout-ms"):
            table.transaction().set_properties({name: "0"}).commit_transaction()
            with pytest.raises(ConfigurationError, match=f"remove_properties.'{name}'"):
                lake.load(name, rows=lambda: pytest.fail("the source is read"))
            table.transaction().remove_properties(name).commit_transaction()
        assert lake.load("r").rows == 5


CUSTOMERS = pa.schema([("id", pa.int64()), ("Name", pa.string()), ("version", pa.int64()), ("loaded_by", pa.string())])


@pytest.mark.parametrize("make", [_duckdb, _delta])
def test_merges(make: Callable[[Path], tuple[Any, str, Callable[[], Any]]], tmp_path: Path) -> None:
    with _lake(make, tmp_path) as lake:
        if make is _duckdb:
            lake.target.execute(
                "CREATE TABLE customers (id BIGINT PRIMARY KEY, Name TEXT, version BIGINT, loaded_by TEXT)"
            )
        else:
            pytest.importorskip("deltalake").write_deltalake(str(tmp_path / "customers"), CUSTOMERS.empty_table())

        def rows() -> list[tuple[Any, ...]]:
            if make is _duckdb:
                return lake.target.execute("SELECT Name, loaded_by FROM customers ORDER BY id").fetchall()
            table = pytest.importorskip("deltalake").DeltaTable(str(tmp_path / "customers"))
            found = sorted(pa.table(table.to_pyarrow_table()).to_pylist(), key=lambda row: row["id"])
            return [(row["Name"], row["loaded_by"]) for row in found]

        def merge(run: str, *versions: tuple[Any, Any], newer: str | None = "version", **options: Any) -> Any:
            given = [{"id": key, "Name": f"{key}v{version}", "version": version} for key, version in versions]
            options = {"rows": lambda: given, "strategy": Merge(("id",), newer), **options}
            return elsewhere(lambda: lake.loads.load("customers", run=run, **options))

        assert merge("a", (1, 1), (1, 3), (1, 2)).rows == 3
        merge("b", (1, 2), (2, 1))
        assert merge("c", (1, 3), (2, 1)).fence == 3  # of nothing that is newer, the mark stays, too
        assert merge("d").fence == 4
        assert rows() == [("1v3", "a/1"), ("2v1", "b/2")]
        merge("e", (1, 1), newer=None)
        wrong: list[tuple[list[tuple[Any, Any]], str | None]]
        wrong = [([(3, 1), (3, 2)], None), ([(None, 1)], None), ([(1, 9), (1, None)], "version"), ([(1, 9)], "changed")]
        for versions, newer in wrong:
            with pytest.raises(ConfigurationError, match=r"with NULL in it, or twice|Merge names changed;"):
                merge("f", *versions, newer=newer)
        if make is _delta:
            with pytest.raises(ConfigurationError, match="rows= gives id, version"):
                merge("f", rows=lambda: [{"id": 5, "version": 1}])
        with pytest.raises(StaleToken, match="later"):
            merge("zombie", rows=lambda: merge("later", (2, 7)) and [{"id": 1, "Name": "zombie", "version": 9}])
        assert rows() == [("1v1", "e/5"), ("2v7", "later/6")]
        late: dict[str, Any] = {"late": Late("apart", "version"), "window": Window(5, 9)}
        if make is _delta:
            with pytest.raises(ConfigurationError, match="on a SQL target or DuckDB"):
                merge("w", **late)
            return
        lake.target.execute("CREATE TABLE apart AS FROM customers WHERE false")
        assert merge("w", (7, 3), (8, 5), **late)[::4] == (1, 1)
        assert (rows()[-1], lake.target.execute("SELECT id, loaded_by FROM apart").fetchall()) == (
            ("8v5", "w/1"),
            [(7, "w/1")],
        )


def test_delta_by_any_name_of_a_column_and_its_own_refusals(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for name in ("order-id", "order id", "2day", "Order.Day", 'a"b', "order"):
        schema = pa.schema([(name, pa.string()), ("n", pa.int64()), ("loaded_by", pa.string())])
        (tmp_path / name).mkdir()
        deltalake.write_deltalake(str(tmp_path / name / "sales"), schema.empty_table())
        table = deltalake.DeltaTable(str(tmp_path / name / "sales"))
        table.alter.add_constraint({"few": "n < 10"})
        with closing(Boundary(name, store="memory://", effects="keyed", observers=[])) as boundary:
            loads = Loads(boundary, f"delta://{tmp_path / name}")
            for n, part in enumerate(["a", "b", "it's", "a", "it's"]):
                loads.load("sales", by=name, partition=part, rows=partial(next, repeat([(part, n)])), run=f"{n}")
            with pytest.raises(
                deltalake.exceptions.DeltaError, match=r"failed validation|Invariant violations"
            ):  # no outage, which would pass
                loads.load("sales", by=name, partition="a", rows=lambda: [("a", 50)], run="too many")
        table.update_incremental()
        found = pa.table(table.to_pyarrow_table()).to_pylist()
        assert sorted((row[name], row["n"]) for row in found) == [("a", 3), ("b", 1), ("it's", 4)]


def test_a_lake_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from retrysafe.loads import delta

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route")

    with _lake(_delta, tmp_path) as lake:
        with monkeypatch.context() as patch:
            patch.setattr(delta, "write_deltalake", unreachable)
            with pytest.raises(StoreUnavailable, match="no route"):
                lake.load("r")
        assert lake.load("r").rows == 5
