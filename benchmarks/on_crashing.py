"""The crash kit: what exploring one crash point costs, on SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import services
from benchmarks.rows import FLOOR, OURS, Row, Side, Stopwatch, Turn
from retrysafe import Boundary
from retrysafe.backends.migrations import forward, load
from retrysafe.backends.registry import connect
from retrysafe.testing.crashing import crash_points

_CHARGES = "CREATE TABLE charges (id TEXT, amount INT)"
_numbers = itertools.count()


def rows() -> Sequence[Row]:
    """A charge in the caller's transaction. The floor makes the state of a point, and runs the charge in it."""
    return [
        Row(f"crash kit, a point on {name}", "making the state and one charge", sides, needs=needs, operations=1)
        for name, sides, needs in (
            ("sqlite", {OURS: partial(_on_sqlite, True), FLOOR: partial(_on_sqlite, False)}, ()),
            (
                "postgresql",
                {OURS: partial(_on_postgresql, True), FLOOR: partial(_on_postgresql, False)},
                ("postgresql",),
            ),
        )
    ]


def _charge(opened: Callable[[str], Any], url: str) -> None:
    shop = Boundary("shop", store=url, observers=(), effects="transactional")
    with closing(opened(url)) as db, db, shop.claim("A", tx=db) as claim:
        if not claim.replayed:
            db.execute("INSERT INTO charges VALUES ('A', 12)")
            claim.result = "charged"
    shop.close()


def _side(exploring: bool, opened: Callable[[str], Any], fresh: Callable[[], str]) -> Side:
    run = partial(_charge, opened)

    def turn(keys: Sequence[str]) -> Turn:
        watch = Stopwatch()
        if not exploring:
            run(fresh())
            return watch.turn(1)
        report = crash_points(run, fresh=fresh, check=str, pairs=0)
        if not report.ok:
            raise RuntimeError(str(report))
        return watch.turn(report.points)

    return Side(turn)


def _file(url: str) -> sqlite3.Connection:
    return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level="IMMEDIATE")


@contextmanager
def _on_sqlite(exploring: bool) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.db")
        backend = connect(f"sqlite:///{template}")
        backend.migrate()
        backend.close()
        with closing(sqlite3.connect(template)) as db, db:
            db.execute(_CHARGES)

        def fresh() -> str:
            path = Path(folder, f"{os.getpid()}-{next(_numbers)}.db")
            shutil.copyfile(template, path)
            return f"sqlite:///{path}"

        yield _side(exploring, _file, fresh)


@contextmanager
def _on_postgresql(exploring: bool) -> Iterator[Side]:
    import psycopg

    url, prefix = services.url("postgresql"), f"bench_{os.getpid()}"
    ours = [sql for migration in load("postgresql") for sql in forward("postgresql", migration.version)]

    def fresh() -> str:
        name = f"{prefix}_{os.getpid()}_{next(_numbers)}"
        start = (f"CREATE SCHEMA {name}", f"SET LOCAL search_path TO {name}", "SET LOCAL synchronous_commit TO off")
        with psycopg.connect(url) as db:
            db.execute(";".join((*start, *ours, _CHARGES)).encode())
        return f"{url}?options=-csearch_path%3D{name}"

    try:
        yield _side(exploring, psycopg.connect, fresh)
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            found = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)"
            for (name,) in db.execute(found, (prefix,)).fetchall():
                db.execute(f"DROP SCHEMA {name} CASCADE".encode())
