"""A version that is yet to come, in the SQL of each dialect."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from retrysafe.backends import migrations
from retrysafe.backends.migrations.dialects import DIALECTS
from retrysafe.backends.migrations.history import HISTORY, AddColumn, Index, Table, present

NEXT = len(HISTORY) + 1
CHANGES = (
    Table(
        "retrysafe_parts",
        "key_hash hash, name name, note text?, made big",
        (Index("retrysafe_parts_made", "retrysafe_parts", "made", "note IS NULL"),),
        key=2,
    ),
    AddColumn("retrysafe_records", "parts int?"),
)


@pytest.fixture(autouse=True)
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HISTORY, "parts", CHANGES)


def test_a_table_with_a_key_of_two_columns() -> None:
    for dialect, expected in {
        "postgresql": "note text,\n    made bigint NOT NULL,\n    PRIMARY KEY (key_hash, name)\n)",
        "sqlite": "note TEXT,\n    made INTEGER NOT NULL,\n    PRIMARY KEY (key_hash, name)\n)",
        "mysql": "PRIMARY KEY (key_hash, name),\n    INDEX retrysafe_parts_made (made)\n) ENGINE = InnoDB",
    }.items():
        assert expected in DIALECTS[dialect].up(NEXT)[0]
        assert present().tables["retrysafe_parts"].columns[1] == ("name", "name", False)


def test_the_way_back_leaves_the_tables_of_the_version_before() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:

        def tables() -> list[str]:
            return [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]

        for version in range(1, NEXT):
            for statement in migrations.forward("sqlite", version):
                database.execute(statement)
        before = tables()
        for statement in DIALECTS["sqlite"].up(NEXT):
            database.execute(statement)
        assert len(tables()) == len(before) + 2
        for statement in DIALECTS["sqlite"].down(NEXT):
            database.execute(statement)
        assert tables() == before


def test_mysql_asks_before_each_step_that_it_cannot_repeat() -> None:
    made, asked, *_ = DIALECTS["mysql"].up(NEXT)
    assert made.startswith("CREATE TABLE IF NOT EXISTS retrysafe_parts (")
    assert asked.startswith("SET @retrysafe = IF(NOT EXISTS (SELECT 1 FROM information_schema.columns WHERE")
    assert asked.endswith("'ALTER TABLE retrysafe_records ADD COLUMN parts INTEGER', 'DO 0')")
    assert DIALECTS["mysql"].down(NEXT)[0] == "ALTER TABLE retrysafe_records DROP COLUMN parts"
