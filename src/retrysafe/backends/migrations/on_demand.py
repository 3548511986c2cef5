"""Features of a SQLite file whose tables are made when they are first asked for.

A boundary creates the file that it is given, or adds to one of the user's: the schema and the records, and nothing
of features that are not in use. The migrations stay one sequence. Before those that are missing are applied, the tables
of absent features are made as they were at the file's version; afterwards they are dropped again, all in one
transaction, so that a process that is killed leaves the file as it was. ``retrysafe migrate``, Alembic and Django make
all tables.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from functools import cache

from retrysafe import lazy
from retrysafe.backends import migrations
from retrysafe.protocol.migrating import Migration, apply, note, schema_version
from retrysafe.protocol.requests import Ask, Program, Query, ask, nothing
from retrysafe.protocol.store import TransactionalStore

FEATURES = {
    "outbox": "retrysafe_outbox",
    "inbox": "retrysafe_inbox",
    "steps": "retrysafe_steps",
    "loads": "retrysafe_loads",
}
"""The prefix of each feature's tables; the feature is the name of the migration that first makes them."""
_ALWAYS = {**FEATURES, "inbox": "retrysafe_inbox_dead"}
"""A table that each feature has had in every version. A prefix tells nothing: users have tables, too."""
_RECORDS = ("retrysafe_schema", "retrysafe_records")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"


def prepare(store: TransactionalStore, *, whole: bool) -> Program[list[Migration]]:
    """Apply the missing migrations in one transaction; return them.

    Features whose tables were absent have none afterwards, unless the file is to be ``whole``.
    """
    yield from ask(store.begin())
    version = yield from schema_version(store)
    known = migrations.load("sqlite")
    if version == 0 and not whole:
        yield from _perform(creation(_RECORDS, known[-1].version))
        for migration in known:
            yield from note(migration)
        yield from ask(store.commit())
        return []
    before = yield from _tables()
    absent = _lacking(before)
    for feature in absent:
        yield from _perform(creation((FEATURES[feature],), version))
    applied = yield from apply(store, known)
    if not whole:
        made = (yield from _tables()) - before
        unused = tuple(FEATURES[feature] for feature in absent)
        yield from _perform([f"DROP TABLE {name}" for name in sorted(made) if name.startswith(unused)])
    yield from ask(store.commit())
    return applied


def provide(store: TransactionalStore, feature: str) -> Program[list[Migration]]:
    """Make a feature's tables if the file is up to date but for them; return the migration that is so made up for."""
    known = migrations.load("sqlite")
    made: list[Migration] = []
    yield from ask(store.begin())
    version = yield from schema_version(store)
    if version == known[-1].version and feature in _lacking((yield from _tables())):
        yield from _perform(creation((FEATURES[feature],), version))
        made = [migration for migration in known if migration.name == feature]
    yield from ask(store.commit())
    return made


def join(feature: str) -> Program[None]:
    """Make a feature's tables, if they are absent, in a transaction of the caller's, who holds the file's one lock."""
    if not (yield from is_present(feature)):
        yield from _perform(creation((FEATURES[feature],), migrations.load("sqlite")[-1].version))


def completing(found: Collection[str], version: int) -> list[str]:
    """The statements that make the tables of absent features at a version: for migrations by other tools.

    ``found`` are the tables of the file.
    """
    return [statement for feature in _lacking(found) for statement in creation((FEATURES[feature],), version)]


def is_present(feature: str) -> Program[bool]:
    return feature not in _lacking((yield from _tables()))


@cache
def creation(tables: tuple[str, ...], version: int) -> tuple[str, ...]:
    """The statements that make the tables whose names begin so, as the migrations leave them at a version."""
    # Not by sqlite3.connect, which the crash kit watches: it would take this for the state of the code under test.
    with closing(lazy.sqlite3.Connection(":memory:", isolation_level=None)) as database:
        for migration in migrations.load("sqlite"):
            if migration.version <= version:
                for statement in migration.statements:
                    database.execute(statement)
        statements = [statement.rstrip(";") for statement in database.iterdump()]
    return tuple(one for one in statements if "sqlite_sequence" not in one and any(name in one for name in tables))


def _tables() -> Program[set[str]]:
    return (
        yield from ask(Ask(Query(_TABLES, {}, writes=False), lambda answer: {str(name) for (name,) in answer.rows}))
    )


def _lacking(found: Collection[str]) -> list[str]:
    return [feature for feature, table in _ALWAYS.items() if table not in found]


def _perform(statements: tuple[str, ...] | list[str]) -> Program[None]:
    for statement in statements:
        yield from ask(Ask(Query(statement, {}), nothing))
