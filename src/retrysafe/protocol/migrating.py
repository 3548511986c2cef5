"""Bringing a schema up to date, and finding out whether it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from retrysafe.errors import ConfigurationError, SchemaOutdated, StoreUnavailable
from retrysafe.protocol.requests import Ask, Program, Query, Rows, ask, nothing
from retrysafe.protocol.store import RotatingStore, TransactionalStore


class Migration(NamedTuple):
    """One versioned step of a schema."""

    version: int
    name: str
    statements: tuple[str, ...]


Postponed = Callable[[str], Program[bool]]
"""Asks whether a statement is left for later, when it can be done beside the traffic."""


@runtime_checkable
class CreatedStore(Protocol):
    """A store that knows by itself how it is created, without SQL."""

    def create(self) -> Program[list[Migration]]:
        """Create what is missing; return what was done."""
        ...


def schema_version(store: TransactionalStore) -> Program[int]:
    """Return the schema's version, 0 when there is none."""
    version: int | None = None
    for request in store.schema_version():
        version = yield from ask(request)
        if version is None:
            return 0
    return version or 0


def require(store: TransactionalStore, needed: int, migrate_with: str) -> Program[None]:
    """Raise `SchemaOutdated`, naming the command that helps, unless the schema is new enough."""
    version = yield from schema_version(store)
    if version < needed:
        old = f"schema version {version}, this retrysafe needs {needed}"
        found = old if version else "no retrysafe tables"
        raise SchemaOutdated(f"The store has {found}. Run:  {migrate_with}")


def check_partitions(store: RotatingStore, wanted: int) -> Program[None]:
    """Refuse to change how the records of an existing table are spread."""
    found = len((yield from ask(store.partitions())))
    if found != wanted:
        has = f"has {found} partitions" if found else "is one plain table"
        raise ConfigurationError(
            f"retrysafe_records {has} already, and --partitions only creates it. To convert it, see "
            '"Partitions" in the guide to sweeping.'
        )


def migrate(
    store: TransactionalStore,
    migrations: Sequence[Migration],
    lock: Query | None,
    unlock: Query | None = None,
    *,
    bounds: Query | None = None,
    postponed: Postponed | None = None,
) -> Program[list[Migration]]:
    """Apply the migrations that are missing, all in one transaction where the database can; return them.

    ``lock`` keeps two migrating processes apart where opening a transaction does not; ``unlock`` gives it
    back where the end of the transaction does not. ``bounds`` limits how long the transaction waits for locks, behind
    which claims wait. Statements that are ``postponed`` are left out.
    """
    yield from ask(store.begin())
    if bounds is not None:
        yield from ask(Ask(bounds, nothing))
    if lock is not None:
        yield from ask(Ask(lock, _lock))
    try:
        missing = yield from apply(store, migrations, postponed)
    except Exception:
        if unlock is not None:
            yield from ask(Ask(unlock, nothing))
        raise
    yield from ask(store.commit())
    if unlock is not None:
        yield from ask(Ask(unlock, nothing))
    return missing


def apply(
    store: TransactionalStore, migrations: Sequence[Migration], postponed: Postponed | None = None
) -> Program[list[Migration]]:
    """Apply the migrations that are missing, in the transaction that is open; return them."""
    version = yield from schema_version(store)
    missing = [migration for migration in migrations if migration.version > version]
    for migration in missing:
        for statement in migration.statements:
            if postponed is None or not (yield from postponed(statement)):
                yield from ask(Ask(Query(statement, {}, patient=True), nothing))
        yield from note(migration)
    return missing


def note(migration: Migration) -> Program[None]:
    """Write into the schema's own table that a migration is applied."""
    statement = "INSERT INTO retrysafe_schema (version, name) VALUES (:version, :name)"
    yield from ask(Ask(Query(statement, {"version": migration.version, "name": migration.name}), nothing))


def _lock(answer: Rows) -> None:
    """A lock that is the result of a function: 0 means that another session kept it too long."""
    if answer.rows and answer.rows[0][0] == 0:
        raise StoreUnavailable("Another process is migrating, and did not end in time. Nothing was changed.")
