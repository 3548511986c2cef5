"""The schema has a Django migration and a way back for every version, and one shape everywhere."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.backends import migrations
from retrysafe.backends.migrations.alembic import TABLES
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.table import COLUMNS
from tests.django.aliases import add_alias, remove_alias, set_up

set_up()

from django.apps import apps  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import OperationalError, connections  # noqa: E402
from django.db.models import BinaryField, Field  # noqa: E402

import retrysafe.django.migrations as ours  # noqa: E402
from retrysafe.django.models import Record  # noqa: E402
from retrysafe.django.operations import Schema  # noqa: E402
from tests.conftest import require  # noqa: E402
from tests.faults.helpers import own_database  # noqa: E402
from tests.tables import each_row  # noqa: E402


def schema_operations(operations: Any) -> Iterator[Schema]:
    for operation in operations:
        if isinstance(operation, Schema):
            yield operation
        yield from schema_operations(getattr(operation, "database_operations", ()))


def test_every_version_has_a_migration() -> None:
    found: list[tuple[str, int]] = []
    for module in sorted(found.name for found in pkgutil.iter_modules(ours.__path__)):
        migration = importlib.import_module(f"{ours.__name__}.{module}").Migration
        found += [(module, operation.version) for operation in schema_operations(migration.operations)]
    for dialect in migrations.dialects():
        assert found == [(f"{m.version:04d}_{m.name}", m.version) for m in migrations.load(dialect)]


@each_row("dialect", migrations.dialects())
def test_every_version_has_a_way_back(dialect: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        if dialect == "sqlite":
            for migration in migrations.load(dialect):
                for statement in migrations.forward(dialect, migration.version):
                    database.execute(statement)
        for migration in reversed(migrations.load(dialect)):
            statements = migrations.backward(dialect, migration.version)
            assert statements
            if dialect == "sqlite":
                for statement in statements:
                    database.execute(statement)
        ours = "SELECT * FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        assert database.execute(ours).fetchall() == []


def test_later_versions_are_forgotten_by_their_row() -> None:
    assert migrations.forward("sqlite", 2)[-1] == "INSERT INTO retrysafe_schema (version, name) VALUES (2, 'quotas')"
    assert migrations.backward("sqlite", 2)[0] == "DELETE FROM retrysafe_schema WHERE version = 2"
    assert not any("retrysafe_schema WHERE" in statement for statement in migrations.backward("sqlite", 1))


def test_model_has_the_columns_of_a_record() -> None:
    fields: list[Field[Any, Any]] = list(Record._meta.concrete_fields)
    assert tuple(field.column for field in fields) == (*COLUMNS, "quota")
    binary = {field.column for field in fields if isinstance(field, BinaryField)}
    assert binary == {"key_hash", "fingerprint", "result", "quota"}


def test_models_have_the_columns_of_the_outbox(alias: str) -> None:
    migrate(alias)
    for model in apps.get_app_config("retrysafe").get_models():
        with connections[alias].cursor() as cursor:
            described = connections[alias].introspection.get_table_description(cursor, model._meta.db_table)
        there = {column.name: bool(column.null_ok) for column in described if not column.pk}
        known = {field.column: field.null for field in model._meta.concrete_fields if not field.primary_key}
        assert known == there, model


def test_an_emptied_database_relays_again(alias: str) -> None:
    """As TransactionTestCase empties it; the buckets are not Django's to empty, and come back if others do."""
    from django.db import transaction

    from retrysafe.messaging import Outbox
    from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
    from retrysafe.messaging.relay.relay import Relay

    migrate(alias)
    outbox, publisher = Outbox(alias, source="/shop"), MemoryPublisher()
    for statement in ("", "DELETE FROM retrysafe_outbox_buckets"):
        call_command("flush", database=alias, interactive=False, verbosity=0, stdout=io.StringIO())
        with transaction.atomic(using=alias):
            envelope = outbox.add(alias, "orders", {}, key="A")
            if statement:
                connections[alias].cursor().execute(statement)
        assert Relay(alias, publisher, observers=()).run_once().published == 1
        assert publisher.published[-1] == envelope


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    name = add_alias("sqlite", NAME=str(tmp_path / "a.db"))
    yield name
    remove_alias(name)


def tables(alias: str) -> set[str]:
    return {name for name in connections[alias].introspection.table_names() if name.startswith("retrysafe")}


def migrate(alias: str, *target: str) -> None:
    call_command("migrate", "retrysafe", *target, database=alias, verbosity=0, stdout=io.StringIO())


def test_records_can_be_looked_at(alias: str) -> None:
    from retrysafe import Boundary

    migrate(alias)
    boundary = Boundary("looked at", store=alias)
    with boundary.claim("k") as claim:
        claim.result = 1
    record = Record.objects.using(alias).get()
    assert str(record).startswith("looked at/looked at ")
    assert str(record).endswith(" completed")
    boundary.close()


def test_there_and_back(alias: str) -> None:
    migrate(alias)
    assert connect(alias).migrate() == []
    assert tables(alias) == TABLES
    migrate(alias, "zero")
    assert tables(alias) == set()


def test_schema_that_is_there_already_is_left_alone(alias: str) -> None:
    connect(alias).migrate()
    migrate(alias)
    assert tables(alias) == TABLES


def test_routers_decide(tmp_path: Path) -> None:
    connections.settings["without"] = connections.settings["default"] | {"NAME": str(tmp_path / "without.db")}
    migrate("without")
    assert tables("without") == set()
    migrate("without", "zero")
    remove_alias("without")


def test_database_that_we_do_not_know_is_passed_over(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "dialects", lambda: ())
    migrate(alias)
    assert tables(alias) == set()


@pytest.mark.slow
def test_a_migration_gives_up_behind_a_long_transaction() -> None:
    """Claims would wait behind it: a report that has read the records holds a lock until it ends."""
    require("postgresql")
    server = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
    with own_database(server, migrated=False) as url, closing(psycopg.connect(url)) as report:
        name = add_alias("postgresql", NAME=url.rpartition("/")[2])
        migrate(name, "0001")
        report.execute("SELECT count(*) FROM retrysafe_records")
        with pytest.raises(OperationalError, match="lock timeout") as refused:
            migrate(name, "0002")
        assert "Migrate again when that transaction has ended" in refused.value.__notes__[0]
        report.rollback()
        migrate(name)
        assert tables(name) == TABLES
        remove_alias(name)
