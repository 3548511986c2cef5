"""`retrysafe plan`: its arithmetic, and its bytes beside those of real stores filled through claims."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from retrysafe import Boundary
from retrysafe.admin import capacity
from retrysafe.admin.capacity import PlannedLoad
from retrysafe.backends.dynamodb.store import size_of
from retrysafe.backends.footprint import Sizes
from retrysafe.backends.registry import connect
from retrysafe.cli import main
from retrysafe.errors import ConfigurationError
from tests.conftest import require
from tests.faults.helpers import own_database, unique
from tests.stores.ageing import dynamodb_client, mysql_connection
from tests.stores.harnesses.dynamodb import DYNAMODB_TABLE, dynamodb_endpoint, dynamodb_url
from tests.stores.harnesses.redis import redis_url
from tests.tables import each_row

NAME, OPERATION = "shop", "orders.create"
NAMES = len(NAME + OPERATION)
RECORDS = 2000
RESULTS = (100, 900, 6000)
PAGE, RESERVED = 16384, 8 / 7
"""InnoDB's page, and how many it takes from the file of a large table for each that it uses."""
ENTRY = 56
"""Bytes of a key's entries in Redis' two dictionaries, which MEMORY USAGE leaves out in part."""


def filled(url: str, result: int, records: int = RECORDS) -> None:
    """Claim so many keys whose encoded results have ``result`` bytes."""
    with closing(Boundary(NAME, store=url, observers=())) as boundary:

        @boundary.once(key="key", operation=OPERATION)
        def work(key: str) -> str:
            return secrets.token_urlsafe(result)[: result - 2]

        with ThreadPoolExecutor(1 if url.startswith("sqlite") else 4) as pool:
            list(pool.map(work, map(str, range(records))))


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
        (item,) = (one for page in pages for one in page["Items"] if one["boundary"]["S"] == boundary.name)
        client.close()
    took = size_of({name: _plain(value) for name, value in item.items()})
    found = capacity.footprint_of("dynamodb", Sizes(len(boundary.name) + len(OPERATION), result))
    assert took == pytest.approx(found.record, rel=0.2)


def _plain(value: dict[str, Any]) -> Any:
    ((kind, plain),) = value.items()
    return int(plain) if kind == "N" else bytes(plain) if kind == "B" else plain


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
