"""The versions of the schema, as statements of each dialect."""

from __future__ import annotations

from functools import cache

from retrysafe.backends.migrations.dialects import DIALECTS
from retrysafe.backends.migrations.history import HISTORY
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.migrating import Migration

VERSION = "SELECT max(version) FROM retrysafe_schema"


@cache
def load(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect ("sqlite", "postgresql") in order of version."""
    statements = DIALECTS[dialect].up
    return tuple(Migration(number, name, tuple(statements(number))) for number, name in enumerate(HISTORY, 1))


MOST_PARTITIONS = 1024
_TABLE = "CREATE TABLE retrysafe_records ("


def choose(dialect: str, partitions: int | None = None) -> tuple[Migration, ...]:
    """The migrations of a dialect, with the records in so many partitions by key hash.

    A key's hash leads to exactly one partition, so the primary key is as unique as in one table.
    """
    if partitions is None:
        return load(dialect)
    if dialect != "postgresql":
        raise ConfigurationError(f"--partitions is for PostgreSQL; a {dialect} store has one table.")
    if not 2 <= partitions <= MOST_PARTITIONS or partitions & (partitions - 1):
        raise ConfigurationError(f"--partitions is a power of two from 2 to {MOST_PARTITIONS}, such as 16.")
    return tuple(_partition(migration, partitions) for migration in load(dialect))


def _partition(migration: Migration, count: int) -> Migration:
    statements: list[str] = []
    for statement in migration.statements:
        if not statement.startswith(_TABLE):
            statements.append(statement)
            continue
        statements.append(f"{statement} PARTITION BY HASH (key_hash)")
        statements += [
            f"CREATE TABLE retrysafe_records_p{number:04d} PARTITION OF retrysafe_records "
            f"FOR VALUES WITH (MODULUS {count}, REMAINDER {number})"
            for number in range(count)
        ]
    return migration._replace(statements=tuple(statements))


def dialects() -> tuple[str, ...]:
    return tuple(sorted(DIALECTS))


def forward(dialect: str, version: int) -> tuple[str, ...]:
    """Return the statements of one migration, and the one that records it."""
    return _record(_migration(dialect, version))


def _record(migration: Migration) -> tuple[str, ...]:
    record = f"INSERT INTO retrysafe_schema (version, name) VALUES ({migration.version}, '{migration.name}')"
    return (*migration.statements, record)


def backward(dialect: str, version: int) -> tuple[str, ...]:
    """Return the statements that undo one migration, and the one that forgets it; the first one takes all records."""
    undone = DIALECTS[dialect].down(version)
    return tuple(undone if version == 1 else (f"DELETE FROM retrysafe_schema WHERE version = {version}", *undone))


def _migration(dialect: str, version: int) -> Migration:
    for migration in load(dialect):
        if migration.version == version:
            return migration
    raise LookupError(f"retrysafe's {dialect} schema has no version {version}")


def script(dialect: str, after: int = 0, partitions: int | None = None) -> str:
    """Return the SQL of the migrations after a version, for those who apply it themselves."""
    parts = [f"{DIALECTS[dialect].begin};"]
    for migration in choose(dialect, partitions):
        if migration.version > after:
            parts += [f"-- {migration.version:04d} {migration.name}"]
            parts += [f"{statement};" for statement in _record(migration)]
    return "\n".join([*parts, "COMMIT;"]) + "\n"
