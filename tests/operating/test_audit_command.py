"""`retrysafe audit`: rows of a business beside the records, from CSV, SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary
from retrysafe.admin.effect_rows import from_csv
from retrysafe.admin.operator import Operator
from retrysafe.admin.reconcile import Difference, Reconciliation
from retrysafe.cli import main
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Filter
from tests.faults.helpers import unique
from tests.operating.conftest import surroundings
from tests.tables import each_row

SHARED = ("--settled-for", "1ms")


class Broken(Exception):
    """The work refuses."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store in which A, B and C are completed, and F is failed."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(Boundary("orders", store=url, observers=(), permanent=Broken)) as boundary:

        @boundary.once(key="key", operation="pay")
        def pay(key: str) -> str:
            if key == "F":
                raise Broken
            return key

        for key in "ABC":
            pay(key)
        with pytest.raises(Broken):
            pay("F")
    return url


def audited(
    store: str, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, set[str | None]], dict[str, Any]]:
    arguments = ["--store", store, "--boundary", "orders", "--operation", "pay", "--json", "--show-keys", *SHARED]
    code = main(["audit", *arguments, *options])
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found: dict[str, set[str | None]] = {}
    for line in lines:
        found.setdefault(line["difference"], set()).add(line["key"])
    return code, found, last


def csv_of(folder: Path, text: str) -> str:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_each_difference_is_named(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(tmp_path, "amount,key\n1,A\n2,B\n2,B\n3,X\n4,F\n")
    code, found, last = audited(store, capsys, "--csv", path, "--key-column", "key")
    assert code == 1
    assert found == {
        "duplicate": {"B"},
        "no_record": {"X"},
        "not_completed": {"F"},
        "no_effect": {None},
    }
    assert last["effects"] == 5
    assert last["records"] == 4
    assert last["differences"] == {"duplicate": 1, "no_record": 1, "not_completed": 1, "no_effect": 1}


def test_rows_and_records_that_agree_make_exit_code_0(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audited(store, capsys, "--csv", csv_of(tmp_path, "key\nC\nB\nA\n"))[:2] == (0, {})


def test_records_that_changed_a_moment_ago_are_left_out(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = csv_of(tmp_path, "key\nA\n")
    assert audited(store, capsys, "--csv", path, "--settled-for", "1h")[:2] == (0, {})


def test_keys_are_not_printed_unless_asked_for(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(tmp_path, "key\nsecret-key\n")
    main(["audit", "--store", store, "--boundary", "orders", "--operation", "pay", "--csv", path])
    out = capsys.readouterr()
    assert "effect without a record" in out.out
    assert "secret-key" not in out.out + out.err


def test_a_scope_is_part_of_the_key(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(tmp_path, "key,tenant\nA,\nB,\nC,acme\n")
    code, found, _ = audited(store, capsys, "--csv", path, "--scope-column", "tenant")
    assert (code, found) == (1, {"no_record": {"C"}, "no_effect": {None}})


def test_rows_of_a_query(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE payments (key TEXT)")
        shop.executemany("INSERT INTO payments VALUES (?)", [("A",), ("B",), ("X",)])
        shop.commit()
    options = ("--sql", f"sqlite:///{tmp_path}/shop.db", "--query")
    assert audited(store, capsys, *options, "SELECT key FROM payments")[1] == {"no_record": {"X"}, "no_effect": {None}}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert main(["audit", "--store", store, "--boundary", "orders", *options, "DELETE FROM payments"]) == 2
        assert shop.execute("SELECT count(*) FROM payments").fetchone() == (3,)


def test_rows_of_a_query_on_postgresql(store: str, postgresql: str, capsys: pytest.CaptureFixture[str]) -> None:
    url, table = postgresql, unique("payments")
    with psycopg.connect(url, autocommit=True) as shop:
        shop.execute(f"CREATE TABLE {table} (key text)".encode())
        try:
            shop.execute(f"INSERT INTO {table} VALUES ('A'), ('B'), ('B'), ('C')".encode())
            options = ("--sql", url, "--query", f"SELECT key FROM {table} WHERE key LIKE '%'")
            assert audited(store, capsys, *options)[:2] == (1, {"duplicate": {"B"}})
        finally:
            shop.execute(f"DROP TABLE {table}".encode())


@each_row(
    "options",
    [
        [],
        ["--csv", "nothing.csv"],
        ["--sql", "sqlite:///nothing.db", "--query", "SELECT 1"],
        ["--sql", "oracle://x", "--query", "SELECT 1"],
        ["--sql", "sqlite:///x.db"],
        ["--csv", "x", "--sql", "sqlite:///x.db", "--query", "SELECT 1"],
    ],
)
def test_unreadable_input_makes_exit_code_2(store: str, options: list[str]) -> None:
    assert main(["audit", "--store", store, "--boundary", "orders", *options]) == 2


@each_row(("text", "complaint"), [("", "names of columns"), ("key\nA\n,\n", "line 3"), ("a\nA\n", "key")])
def test_a_csv_file_is_checked(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        list(from_csv(csv_of(tmp_path, text), "key" if text else None))


@pytest.mark.one_of("seconds of a core", of=3)
def test_memory_does_not_grow_with_the_rows(store: str) -> None:
    with Operator(store, observers=()) as operator:

        def peak(rows: int) -> int:
            tracemalloc.start()
            with Reconciliation() as both:
                both.add_effects(operator, ((str(n), "") for n in range(rows)), boundary="orders", operation="pay")
                both.add_records(operator, Filter("orders"), settled_for=0)
                assert sum(one.difference is Difference.NO_RECORD for one in both.differences()) == rows
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return most

        assert peak(30_000) < 1.5 * peak(10_000)


@pytest.mark.slow
def test_stdin_is_read_like_a_file(store: str, tmp_path: Path) -> None:
    """In UTF-8 whatever the locale, with a mark of byte order or without; empty lines are no rows."""
    boundary = Boundary("orders", store=store, observers=(), shared=True)
    with boundary.claim("Müller", operation="pay"):
        pass
    boundary.close()
    text = "\ufeffid\nA\nB\n\nC\nMüller\n\n".encode()
    arguments = ["--store", store, "--boundary", "orders", "--operation", "pay", *SHARED, "--csv", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "retrysafe", "audit", *arguments, "--key-column", "id"],
        input=text,
        env={**surroundings(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"4 effects, 5 records; they agree\n")


@each_row("text", ["id\nA\n\x01\n", 'id\nA\n"B\n', "id\nA\n" + "x" * 256], ids=["control", "quote", "long"])
def test_a_row_that_cannot_be_a_key_is_named_by_its_line(
    text: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--store", store, "--boundary", "orders", "--csv", csv_of(tmp_path, text)]) == 2
    assert "rows.csv: line 3: " in capsys.readouterr().err


@each_row(
    ("url", "query", "told"),
    [
        ("sqlite:///{}/shop.db", "SELECT x'41'", "it returns bytes"),
        ("sqlite:///{}/shop.db", "SELECT 'A', x'41'", "it returns bytes"),
        ("mysql://ada:half/hunter2@db/shop", "SELECT 1", "the port is no number"),
        ("postgresql+psycopg://ada:hunter2@127.0.0.1:1/shop", "SELECT 1", "connection failed"),
        ("postgresql://ada:hunter2%zz@127.0.0.1:1/shop", "SELECT 1", "is written %25"),
    ],
    ids=["bytes", "scope", "port", "scheme", "percent"],
)
def test_a_query_that_cannot_be_used_is_refused_without_a_password(
    url: str, query: str, told: str, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sqlite3.connect(tmp_path / "shop.db").close()
    options = ("--sql", url.format(tmp_path), "--query", query)
    assert main(["audit", "--store", store, "--boundary", "orders", *options]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "hunter2" not in said
