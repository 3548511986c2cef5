"""`retrysafe plan`: its arithmetic, and its bytes, logs and requests beside those of real stores that claims filled."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
import redis
from botocore.client import BaseClient
from pymongo.synchronous.pool import Connection

from retrysafe import Boundary
from retrysafe.admin import capacity
from retrysafe.admin.capacity import PlannedLoad
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.dynamodb.store import size_of
from retrysafe.backends.footprint import Sizes
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.errors import ConfigurationError
from retrysafe.testing.time_travel import elapse_all
from tests.conftest import absent, require, variable_of
from tests.faults.helpers import own_database, unique
from tests.faults.redis_servers import Server, installed
from tests.stores.ageing import do_at, dynamodb_client, mysql_connection
from tests.stores.harnesses.dynamodb import DYNAMODB_TABLE, dynamodb_endpoint, dynamodb_url
from tests.stores.harnesses.mongodb import mongodb_url
from tests.stores.harnesses.redis import redis_url
from tests.tables import each_row

NAME, OPERATION = "shop", "orders.create"
NAMES = len(NAME + OPERATION)
RECORDS = 2000
RESULTS = (100, 900, 6000)
WINDOW = 2 * 86_400_000_000
"""Microseconds after which a record of `filled` can be removed."""
PAGE, RESERVED = 16384, 8 / 7
"""InnoDB's page, and how many it takes from the file of a large table for each that it uses."""
ENTRY = 56
"""Bytes of a key's entries in Redis' two dictionaries, which MEMORY USAGE leaves out in part."""


def filled(url: str, result: int, records: int = RECORDS, prefix: str = "") -> None:
    """Claim so many keys whose encoded results have ``result`` bytes."""
    with closing(Boundary(NAME, store=url, observers=())) as boundary:

        @boundary.once(key="key", operation=OPERATION)
        def work(key: str) -> str:
            return secrets.token_urlsafe(result)[: result - 2]

        with ThreadPoolExecutor(1 if url.startswith("sqlite") else 4) as pool:
            list(pool.map(work, (f"{prefix}{number}" for number in range(records))))


def planned(kind: str, result: int) -> float:
    """Bytes of one record and its indexes."""
    found = capacity.footprint_of(kind, Sizes(NAMES, result))
    return found.record + found.indexes


@each_row("result", RESULTS)
def test_sqlite_takes_what_was_planned(tmp_path: Path, result: int) -> None:
    filled(f"sqlite:///{tmp_path}/plan.db?synchronous=NORMAL", result)
    with closing(sqlite3.connect(tmp_path / "plan.db")) as database:
        took = database.execute("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%retrysafe_records%'").fetchone()[0]
    assert took / RECORDS == pytest.approx(planned("sqlite", result), rel=0.2)


@pytest.fixture
def database(postgresql: str) -> Iterator[str]:
    with own_database(postgresql) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("result", RESULTS)
def test_postgresql_takes_what_was_planned(database: str, result: int) -> None:
    """Without what waits for vacuum, which differs with what else the server does."""
    filled(database, result)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE live (LIKE retrysafe_records INCLUDING ALL)")
        connection.execute("INSERT INTO live SELECT * FROM retrysafe_records")
        row = connection.execute("SELECT pg_total_relation_size('live')").fetchone()
    assert row is not None
    assert row[0] / RECORDS == pytest.approx(planned("postgresql", result), rel=0.2)


@pytest.mark.parametrize("result", [900, 6000, 20_000])
def test_mysql_takes_what_was_planned(mysql: str, result: int) -> None:
    """By the pages that InnoDB uses: what it has taken from the file beyond them is a lot in a small table."""
    name, records = unique("plan"), 600
    with closing(mysql_connection(mysql)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            url = urlsplit(mysql)._replace(path=f"/{name}").geturl()
            with closing(connect(url)) as backend:
                backend.migrate()
            filled(url, result, records)
            cursor.execute(f"ANALYZE TABLE {name}.retrysafe_records")
            cursor.execute(
                "SELECT stat_name, stat_value FROM mysql.innodb_index_stats"
                f" WHERE database_name = '{name}' AND table_name = 'retrysafe_records' AND index_name = 'PRIMARY'"
            )
            pages = dict(cursor.fetchall())
        finally:
            cursor.execute(f"DROP DATABASE {name}")
    took = pages["n_leaf_pages"] * RESERVED if result < PAGE / 2 else pages["size"]
    plan = capacity.footprint_of("mysql", Sizes(NAMES, result)).record
    assert took * PAGE / records == pytest.approx(plan, rel=0.2)


@each_row("result", RESULTS)
def test_redis_takes_what_was_planned(result: int) -> None:
    require("redis")
    url, records = redis_url(), RECORDS // 10
    with redis.Redis.from_url(url) as server:
        before = set(server.scan_iter("retrysafe:*", count=1000))
        filled(url, result, records)
        mine = list(set(server.scan_iter("retrysafe:*", count=1000)) - before)
        took = sum(server.memory_usage(key, samples=0) for key in mine)
        server.delete(*mine)
    assert len(mine) == records
    assert took / records + ENTRY == pytest.approx(planned("redis", result), rel=0.2)


@each_row("result", RESULTS)
def test_dynamodb_counts_what_was_planned(result: int) -> None:
    """The service's own rule: the bytes of all attributes' names and values."""
    require("dynamodb")
    url = dynamodb_url()
    connect(url).migrate()
    with closing(Boundary(unique("plan"), store=url, observers=())) as boundary:

        @boundary.once(key="key", operation=OPERATION)
        def work(key: str) -> str:
            return secrets.token_urlsafe(result)[: result - 2]

        work("key")
        client = dynamodb_client(dynamodb_endpoint())
        pages = client.get_paginator("scan").paginate(TableName=DYNAMODB_TABLE)
        (item,) = (one for page in pages for one in page["Items"] if one.get("boundary") == {"S": boundary.name})
        client.close()
    took = size_of({name: _plain(value) for name, value in item.items()})
    found = capacity.footprint_of("dynamodb", Sizes(len(boundary.name) + len(OPERATION), result))
    assert took == pytest.approx(found.record, rel=0.2)


def _plain(value: dict[str, Any]) -> Any:
    ((kind, plain),) = value.items()
    return int(plain) if kind == "N" else bytes(plain) if kind == "B" else plain


# ---------------------------------------------------------------- logs


def server_of(service: str) -> str:
    require(service)
    return os.environ[variable_of(service)]


Log = tuple[str, Callable[[], Any], Callable[[Any], int]]
"""The URL of a store, a function that tells the place in its log, and one that counts what it wrote from there on."""


@contextmanager
def log_of_sqlite(folder: Path) -> Iterator[Log]:
    """The write-ahead log, which a reader keeps from beginning anew."""
    url, wal = f"sqlite:///{folder}/plan.db?synchronous=NORMAL", folder / "plan.db-wal"
    filled(url, RESULTS[0], RECORDS)  # pages of a small table are split more often
    do_at(url, lambda store: elapse_all(store, WINDOW))
    with closing(sqlite3.connect(folder / "plan.db", isolation_level=None)) as reader:

        def place() -> int:
            if reader.in_transaction:
                reader.execute("COMMIT")
            reader.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM retrysafe_records").fetchone()
            return wal.stat().st_size

        yield url, place, lambda before: wal.stat().st_size - before


@contextmanager
def log_of_postgresql(_: Path) -> Iterator[Log]:
    """The write-ahead log's records of the database and of its transactions, without images of whole pages."""
    with (
        own_database(server_of("postgresql")) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        connection.execute("CREATE EXTENSION pg_walinspect")
        (own,) = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone() or ()

        def place() -> str:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
            return str(row and row[0])

        def count(before: str) -> int:
            row = connection.execute(
                "WITH written AS (SELECT * FROM pg_get_wal_records_info(%(before)s, %(now)s)), "
                "changed AS (SELECT xid::text FROM written WHERE block_ref LIKE %(own)s AND xid::text <> '0') "
                "SELECT sum(record_length - fpi_length) FROM written "
                "WHERE block_ref LIKE %(own)s OR xid::text IN (SELECT xid FROM changed)",
                {"before": before, "now": place(), "own": f"%/{own}/%"},
            ).fetchone()
            return int(row[0]) if row else 0

        yield url, place, count


@contextmanager
def log_of_mysql(_: Path) -> Iterator[Log]:
    """The transactions of the database in the binary log."""
    server, name = server_of("mysql"), unique("plan")
    with closing(mysql_connection(server, autocommit=True)) as connection, connection.cursor() as cursor:

        def ask(sql: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql)
            return list(cursor.fetchall())

        def count(before: tuple[str, int]) -> int:
            files = [file for file, *_ in ask("SHOW BINARY LOGS")]
            total, size, own = 0, 0, False
            for file in files[files.index(before[0]) :]:
                since = f" FROM {before[1]}" if file == before[0] else ""
                for _, begin, kind, _, end, told in ask(f"SHOW BINLOG EVENTS IN '{file}'{since}"):
                    if "gtid" in kind.lower():
                        total, size, own = total + own * size, 0, False
                    size, own = size + end - begin, own or name in told
            return total + own * size

        ask(f"CREATE DATABASE {name}")
        try:
            url = urlsplit(server)._replace(path=f"/{name}").geturl()
            with closing(connect(url)) as backend:
                backend.migrate()
            yield url, lambda: ask("SHOW BINARY LOGS")[-1][:2], count
        finally:
            ask(f"DROP DATABASE {name}")


@contextmanager
def log_of_redis(_: Path) -> Iterator[Log]:
    """The append-only file of a server of the test's own."""
    if not installed():
        absent("no redis-server to start")
    with closing(Server("--appendonly", "yes", "--appendfsync", "no")) as server:

        def place() -> int:
            server.hand_over_its_log()
            return sum(file.stat().st_size for file in Path(server.home, "appendonlydir").iterdir())

        yield server.url, place, lambda before: place() - before


LOGS = {"sqlite": log_of_sqlite, "postgresql": log_of_postgresql, "mysql": log_of_mysql, "redis": log_of_redis}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("result", RESULTS)
def test_a_log_takes_what_was_planned(kind: str, result: int, tmp_path: Path) -> None:
    plan, records = capacity.footprint_of(kind, Sizes(NAMES, result)), 600
    with LOGS[kind](tmp_path) as (url, place, count):
        before = place()
        filled(url, result, records, prefix="logged ")
        took = count(before)
        if not plan.forgets:
            do_at(url, lambda store: elapse_all(store, WINDOW))
            before = place()
            removed = Sweeper(url, observers=()).run_once().removed
            took += round(count(before) * records / removed)
        logs_statements = kind == "mysql" and is_mixed(url)
    if logs_statements:
        assert plan.log < took / records < 1.8 * plan.log
    else:
        assert took / records == pytest.approx(plan.log, rel=0.2)


def is_mixed(url: str) -> bool:
    """Tell whether a server of MySQL's kind logs statements beside rows, as MariaDB's does by default."""
    with closing(mysql_connection(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@binlog_format")
        return bool(cursor.fetchone() == ("MIXED",))


# ---------------------------------------------------------------- requests


ASKED = {
    "postgresql": (lambda: server_of("postgresql"), psycopg.Cursor, "_execute_gen"),
    "mysql": (lambda: server_of("mysql"), pymysql.connections.Connection, "query"),
    "dynamodb": (dynamodb_url, BaseClient, "_make_api_call"),
    "mongodb": (mongodb_url, Connection, "command"),
}
"""The stores, each with the method by which its client sends a request; those of others are in test_round_trips.py."""


@pytest.mark.parametrize("kind", ASKED)
def test_a_store_is_asked_as_often_as_was_planned(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(kind)
    url_of, client, method = ASKED[kind]
    url, send, asked, thread = url_of(), getattr(client, method), list[Any](), threading.get_ident()

    def note(*args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:  # PyMongo's monitors ask beside us
            asked.append(args[1:])
        return send(*args, **options)

    connect(url).migrate()
    plan = capacity.footprint_of(kind, Sizes(NAMES, 10))
    with closing(Boundary(unique("plan"), store=url, observers=())) as boundary:
        work = boundary.once(key="key", operation=OPERATION)(lambda key: key)
        work("first")
        monkeypatch.setattr(client, method, note)
        for requests in (plan.requests, plan.replay_requests):
            asked.clear()
            work("key")
            assert len(asked) == requests, asked


def test_dynamodb_charges_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """For new keys: the stand-in does not tell that the service charges a refused write, by the size of the item."""
    require("dynamodb")
    call, charged = BaseClient._make_api_call, list[float]()

    def note(self: Any, operation: str, given: dict[str, Any]) -> Any:
        answer = call(self, operation, {**given, "ReturnConsumedCapacity": "TOTAL"})
        charged.append(answer["ConsumedCapacity"]["CapacityUnits"])
        return answer

    url, name = dynamodb_url(), unique("plan")
    connect(url).migrate()
    with closing(Boundary(name, store=url, observers=())) as boundary:
        work = boundary.once(key="size", operation=OPERATION)(lambda size: "x" * (size - 2))
        work(2)
        monkeypatch.setattr(BaseClient, "_make_api_call", note)
        for result in RESULTS:
            charged.clear()
            work(result)
            plan = capacity.footprint_of("dynamodb", Sizes(len(name + OPERATION), result))
            assert sum(charged) == plan.write_units


# ---------------------------------------------------------------- arithmetic


def test_the_records_are_those_that_are_remembered_and_those_that_wait_for_a_sweep() -> None:
    found = capacity.plan("postgresql", PlannedLoad(100.0, 86400.0, Sizes(40, 500), 0.5, 3600.0))
    assert found.records == 100 * (86400 + 3600)
    assert found.requests == 300, "two for each of 100 new keys, one for each of 100 replays"
    assert (found.sweep, found.sweepers) == (100.0, 1)
    assert found.partitions == 1


def test_a_service_that_forgets_by_itself_needs_no_sweeper() -> None:
    found = capacity.plan("dynamodb", PlannedLoad(100.0, 86400.0, Sizes(40, 3000), 0.0))
    assert (found.records, found.sweep, found.sweepers) == (8_640_000, 0.0, 0)
    assert found.write_units == 100 * 5, "1 KB when it is claimed, 3.5 KB with its result"
    again = capacity.plan("dynamodb", PlannedLoad(100.0, 86400.0, Sizes(40, 3000), 0.5))
    assert (again.write_units, again.requests) == (100 * (5 + 4), 300), "a refused write is charged"


def test_many_records_are_divided_into_partitions_of_half_a_million() -> None:
    found = capacity.plan("postgresql", PlannedLoad(1000.0, 86400.0, Sizes(40, 500)))
    assert found.records / found.partitions <= capacity.PARTITION


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "2000000/d", "--window", "24h", "--memory", "7d", "--result", "2kB"]
    assert main(["plan", "--kind", "postgresql", *load, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == pytest.approx(2_000_000 * (7 + 1 / 24), abs=1)
    assert main(["plan", "--kind", "dynamodb", *load]) == 0
    assert "write units" in capsys.readouterr().out


@each_row(
    ("options", "names"),
    [
        (["--rate", "many", "--window", "1h"], "--rate='many'"),
        (["--rate", "0/s", "--window", "1h"], "rate=0.0"),
        (["--rate", "1/s", "--window", "2h", "--memory", "1h"], "--memory is shorter than --window"),
        (["--rate", "1/s", "--window", "1h", "--result", "2 parsec"], "--result='2 parsec'"),
        (["--rate", "1/s", "--window", "1h", "--duplicates", "1"], "duplicates=1.0"),
    ],
)
def test_a_load_that_cannot_be_is_refused(options: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--kind", "sqlite", *options]) == 2
    assert names in capsys.readouterr().err


def test_a_kind_without_a_plan_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'memory'"):
        capacity.footprint_of("memory", Sizes(0, 0))
