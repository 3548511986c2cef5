"""A migration and a repair of the schema keep no claim waiting, whatever transactions are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from retrysafe import Boundary, StoreUnavailable
from retrysafe.backends import migrations, schema
from retrysafe.backends.registry import connect
from retrysafe.doctor import diagnose
from retrysafe.protocol.migrating import Migration
from tests.faults.helpers import own_database, unique
from tests.tables import each_row

LAST = "retrysafe_records_unknown"


@pytest.fixture
def empty(postgresql: str) -> Iterator[str]:
    with own_database(postgresql, migrated=False) as url:
        yield url


def of_the_version_before(url: str, partitions: int | None) -> None:
    """Make the tables as the version before has them, with a record."""
    (last,) = (one for one in migrations.load("postgresql") if one.name == "unknown")
    whole = migrations.script("postgresql", partitions=partitions)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(whole[: whole.index(f"-- {last.version:04d}")].encode() + b"COMMIT;")
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET statement_timeout = '200ms'".encode())
        connection.execute(
            "INSERT INTO retrysafe_records SELECT sha256('x'), '', '', '', '', 'completed', '', 1, 1, 'keyed', "
            "0, 0, 0, 0, 0, 0"
        )


def indexes(url: str) -> dict[str, bool]:
    with psycopg.connect(url, autocommit=True) as connection:
        return dict(
            connection.execute(
                "SELECT c.relname, i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            ).fetchall()
        )


@pytest.mark.slow
@each_row(
    "partitions, scheme",
    [(None, "postgresql"), (4, "postgresql"), (4, "postgresql+asyncpg")],
)
def test_an_index_is_made_beside_a_transaction(postgresql: str, partitions: int | None, scheme: str) -> None:
    with own_database(postgresql, migrated=False) as url:
        of_the_version_before(url, partitions)
        backend = connect(url.replace("postgresql", scheme, 1), migrate=False)

        async def amigrate() -> list[Migration]:
            try:
                return await backend.amigrate()
            finally:
                await backend.aclose()

        with psycopg.connect(url) as busy:
            busy.execute("UPDATE retrysafe_records SET updated = 1")
            ended = asyncio.run(_beside(url, busy, amigrate if "asyncpg" in scheme else backend.migrate))
        assert [one.name for one in ended] == ["unknown", "steps", "loads"]
        assert indexes(url)[LAST]
        assert [one.id for one in diagnose(stores=[url], within=20) if one.id == "postgresql-indexes"] == []
        backend.close()


async def _beside(url: str, busy: psycopg.Connection[object], migrate: object) -> list[Migration]:
    """Migrate while a transaction is open, claim meanwhile, then end the transaction."""
    ending = asyncio.create_task(
        migrate() if asyncio.iscoroutinefunction(migrate) else asyncio.to_thread(migrate)  # type: ignore[operator, arg-type]
    )
    with psycopg.connect(url, autocommit=True) as watching:
        while not watching.execute(
            "SELECT 1 FROM pg_stat_progress_create_index "
            "WHERE datname = current_database() AND command LIKE '%CONCURRENTLY'"
        ).fetchone():
            assert not ending.done(), ending.result()
            await asyncio.sleep(0)
    boundary = Boundary("orders", store=url)
    with boundary.claim("A-1") as claim:
        claim.result = 1
    boundary.close()
    await asyncio.to_thread(busy.rollback)
    return await ending


@pytest.mark.slow
def test_a_migration_that_is_kept_out_names_the_session(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_the_version_before(empty, None)
    monkeypatch.setattr(schema, "PATIENCE", 0.0)
    with (
        psycopg.connect(empty, application_name="nightly-report") as other,
        closing(connect(empty, migrate=False)) as ours,
    ):
        other.execute("LOCK TABLE retrysafe_inbox_dead IN ROW EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"In the way: process \d+ \(user \w+, nightly-report"):
            ours.migrate()
        other.rollback()
        assert [one.name for one in ours.migrate()] == ["unknown", "steps", "loads"]


@each_row("partitions", [None, 4])
def test_a_repair_makes_lost_and_invalid_indexes(postgresql: str, partitions: int | None) -> None:
    with own_database(postgresql, partitions=partitions) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP INDEX {LAST}".encode())
            table = "retrysafe_records_p0001" if partitions else "retrysafe_records"
            name = f"{table}_unknown"
            connection.execute(f"CREATE INDEX {name} ON {table} (updated)".encode())
            connection.execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass".encode())
        (found,) = diagnose(stores=[url], within=20)
        assert found.id == "postgresql-indexes"
        with closing(connect(url)) as backend:
            backend.tables.perform(found.repair)
        assert diagnose(stores=[url], within=20) == []
        assert indexes(url)[name]


@pytest.mark.slow
def test_a_migration_of_mysql_that_is_kept_out_names_the_session(mysql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the session in the way when it gives up, and comes through once that has ended."""
    at = urlsplit(mysql)
    login: dict[str, Any] = {"host": at.hostname, "port": at.port, "user": at.username, "password": at.password or ""}
    name, whole = unique("migrating"), migrations.load
    with closing(pymysql.connect(**login, autocommit=True)) as admin:
        admin.cursor().execute(f"CREATE DATABASE {name}")
        url = at._replace(path=f"/{name}").geturl()
        try:
            with pytest.MonkeyPatch.context() as before:
                before.setattr(migrations, "load", lambda dialect: whole(dialect)[:6])
                with closing(connect(url, migrate=False)) as older:
                    older.migrate()
            monkeypatch.setattr(schema, "PATIENCE", 0.0)
            with (
                closing(connect(url, migrate=False)) as ours,
                closing(pymysql.connect(**login, database=name)) as other,
            ):
                other.cursor().execute("SELECT * FROM retrysafe_inbox_dead")
                with pytest.raises(StoreUnavailable, match="In the way: "):
                    ours.migrate()
                with closing(pymysql.connect(**login, database=name, autocommit=True)) as third:
                    third.cursor().execute("SELECT COUNT(*) FROM retrysafe_inbox_dead")
                other.rollback()
                assert [one.name for one in ours.migrate()] == ["unknown", "steps", "loads"]
            boundary = Boundary("orders", store=url)
            with closing(boundary), boundary.claim("A-1") as claim:
                claim.result = 1
        finally:
            admin.cursor().execute(f"DROP DATABASE {name}")
