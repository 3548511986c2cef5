"""The schema of a backend's store: which version it has, and what brings it up to date."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from retrysafe.backends import migrations
from retrysafe.backends.database import WITH_SCHEMA
from retrysafe.backends.driver import AsyncPerformer, Performer, arun, rest, run, transact
from retrysafe.backends.migrations import on_demand as tables
from retrysafe.backends.sql.checks import indexes
from retrysafe.backends.sql.drivers.base import LOCKED, sqlstate
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol import migrating
from retrysafe.protocol.migrating import CreatedStore, Migration
from retrysafe.protocol.requests import Ask, Program, Query, ask, nothing

if TYPE_CHECKING:
    from retrysafe.backends.database import Served
    from retrysafe.protocol.client import Client


PATIENCE = 60.0
"""Seconds for which a migration tries to get the locks that it needs."""
_CONCURRENT = " CONCURRENTLY "
_INDEX = re.compile(r"CREATE INDEX IF NOT EXISTS (\w+) ON (\w+)")
_TABLES = (
    "SELECT CAST(c.relname AS text) FROM pg_class AS c WHERE c.relkind IN ('r', 'p') "
    "AND starts_with(CAST(c.relname AS text), 'retrysafe_') AND pg_table_is_visible(c.oid)"
)
R = TypeVar("R")


class Schema(NamedTuple):
    """The version of a store's schema, 0 when there is none, and the one that this retrysafe needs."""

    version: int
    needed: int


class Tables:
    """The tables of a backend's store; loaded on first use."""

    def __init__(self, backend: Served) -> None:
        self._backend = backend
        self._on_demand = backend.access.on_demand
        self._provided: set[str] = set()

    def schema(self) -> Program[Schema | None]:
        """The schema's version and the one that is needed; None for a store without a schema."""
        if self._backend.kind not in WITH_SCHEMA:
            return None
        version = yield from migrating.schema_version(self._sql())
        return Schema(version, self._find_needed_version())

    def require(self) -> Program[None]:
        """Raise `SchemaOutdated` unless the schema, if there is one, is new enough."""
        if self._backend.kind in WITH_SCHEMA:
            yield from migrating.require(self._sql(), self._find_needed_version(), self._migrating())

    def _migrating(self) -> str:
        return self._backend.access.migrate_with or self._backend.commands.line("migrate")

    def _find_needed_version(self) -> int:
        return migrations.load(self._backend.kind)[-1].version

    def prepare(self) -> None:
        """Bring a store up to date that migrates itself; features have their tables when they are asked for."""
        if self._on_demand is None:
            self.migrate()
        else:
            self._prepare(whole=False)

    def _prepare(self, *, whole: bool) -> list[Migration]:
        assert self._on_demand is not None
        with closing(self._on_demand()) as client:
            if run(self._is_up_to_date(None), client):
                return []
            with client.transaction() as opened:
                return run(tables.prepare(self._sql(), whole=whole), opened.execute)

    def provide(self, feature: str) -> list[Migration]:
        """Make the tables of a feature, "outbox" or "inbox", where that is left to its first use; return what was done.

        Without effect on a store whose tables are made by `migrate` alone.
        """
        if self.are_provided(feature):
            return []
        assert self._on_demand is not None
        made: list[Migration] = []
        with closing(self._on_demand()) as client:
            present = run(tables.is_present(feature), client)
            if not present:
                made = self._make_tables(feature, client)
        if present or made:
            self._provided.add(feature)
        return made

    def are_provided(self, feature: str) -> bool:
        """Tell whether it is known that nothing is left to be made for a feature."""
        return self._on_demand is None or feature in self._provided

    def providing(self, feature: str) -> Program[None]:
        """`provide` in a transaction of the caller's, which may roll back: noted is only what others see, too."""
        if self.are_provided(feature):
            return
        assert self._on_demand is not None
        with closing(self._on_demand()) as client:
            if run(tables.is_present(feature), client):
                self._provided.add(feature)
                return
        yield from tables.join(feature)

    def _make_tables(self, feature: str, client: Client) -> list[Migration]:
        try:
            with client.transaction() as opened:
                return run(tables.provide(self._sql(), feature), opened.execute)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error.detail}. The tables of the {feature} are made when it is first used, on a connection of its "
                "own, and that waits for every transaction that writes to the file. Make the object before a "
                f"transaction begins, or make all tables when you deploy:  {self._migrating()}",
                unsent=error.unsent,
            ) from error

    def migrate(self, partitions: int | None = None) -> list[Migration]:
        """Apply the missing migrations, with the records in so many ``partitions``; return them."""
        if self._on_demand is not None:
            return self._migrate_file(partitions)
        return run(self._migrate(partitions), Performer(self._backend.client()))

    async def amigrate(self, partitions: int | None = None) -> list[Migration]:
        if self._on_demand is not None:
            return self._migrate_file(partitions)
        return await arun(self._migrate(partitions), AsyncPerformer(self._backend.aclient()))

    def perform(self, statements: Sequence[str]) -> None:
        run(self._perform(statements), Performer(self._backend.client()))

    async def aperform(self, statements: Sequence[str]) -> None:
        await arun(self._perform(statements), AsyncPerformer(self._backend.aclient()))

    def _migrate(self, partitions: int | None) -> Program[list[Migration]]:
        if partitions is None and isinstance(self._backend.store, CreatedStore):
            return (yield from self._backend.store.create())
        chosen, applied = self._choose(partitions), list[Migration]()
        if not (yield from self._is_up_to_date(partitions)):
            applied = yield from self._patiently(self._migration(chosen))
        if self._builds_apart:
            yield from self._perform((yield from self._find_lost_indexes()))
        return applied

    def _perform(self, statements: Sequence[str]) -> Program[None]:
        """Perform statements that mend the schema, outside a transaction."""
        if statements:
            yield from self._patiently(self._apart(statements))

    def _patiently(self, begin: Callable[[], Program[R]]) -> Program[R]:
        """Perform steps in one session; again, for a minute, while a lock that they need is taken.

        Claims wait behind a statement that waits for a lock: therefore each waits briefly, and leaves them a while
        before the next.
        """
        pauses = _pauses()
        while True:
            try:
                return (yield from transact(begin))
            except StoreUnavailable as error:
                if error.__cause__ is None or sqlstate(error.__cause__) != LOCKED:
                    raise
                pause = next(pauses, None)
                if pause is None:
                    raise _in_the_way((yield from self._blockers())) from error
            yield from rest(pause)

    def _migrate_file(self, partitions: int | None) -> list[Migration]:
        """Make all tables of a file, also of features that were never asked for."""
        self._choose(partitions)
        return self._prepare(whole=True) + [made for feature in tables.FEATURES for made in self.provide(feature)]

    def _choose(self, partitions: int | None) -> tuple[Migration, ...]:
        if partitions is None:
            self._sql()
        return migrations.choose(self._backend.kind, partitions)

    def _is_up_to_date(self, partitions: int | None) -> Program[bool]:
        version = yield from migrating.schema_version(self._sql())
        if version and partitions is not None:
            yield from migrating.check_partitions(self._sql(), partitions)
        return version >= self._find_needed_version()

    def _migration(self, chosen: Sequence[Migration]) -> Callable[[], Program[list[Migration]]]:
        store = self._sql()
        return lambda: migrating.migrate(
            store,
            chosen,
            store.MIGRATION_LOCK,
            store.MIGRATION_UNLOCK,
            bounds=store.MIGRATION_BOUNDS,
            postponed=_has_rows if self._builds_apart else None,
        )

    @property
    def _builds_apart(self) -> bool:
        """True if indexes of tables with rows are made after the migration, without a lock that claims wait for.

        Not on connections of the user's, which may begin a transaction by themselves.
        """
        return self._backend.kind == "postgresql" and self._backend.access.own_connections

    def _find_lost_indexes(self) -> Program[Sequence[str]]:
        present = [name for (name,) in (yield from ask(indexes.rows_of(_TABLES)))]
        return (yield from indexes.find_lost_on_postgresql(self._sql(), present)).statements

    def _apart(self, statements: Sequence[str]) -> Callable[[], Program[None]]:
        """One by one, each committed by itself.

        What is made CONCURRENTLY waits for transactions while no other waits behind it, so it may wait longer.
        """

        def steps() -> Program[None]:
            bounded = self._backend.kind == "postgresql"
            for statement in statements:
                if bounded:
                    yield from _do("SET statement_timeout = 0")
                    yield from _do(f"SET lock_timeout = '{f'{PATIENCE:g}s' if _CONCURRENT in statement else '1s'}'")
                yield from _do(statement)
            if bounded:
                yield from _do("RESET lock_timeout")
                yield from _do("RESET statement_timeout")

        return steps

    def _blockers(self) -> Program[list[str]]:
        found: list[str] = []
        try:
            for question in self._sql().blockers():
                found = yield from ask(question)
        except Exception:  # noqa: BLE001 - the role may not see other sessions; the error is told without their names
            return []
        return found

    def _sql(self) -> Any:
        if self._backend.kind not in WITH_SCHEMA:
            raise ConfigurationError(f"store= ({self._backend.access.address}) has no schema to migrate.")
        return self._backend.store


def _has_rows(statement: str) -> Program[bool]:
    """Tell whether a statement makes an index of `indexes.find_lost_on_postgresql`, of a table that is not empty."""
    index = _INDEX.match(statement)
    if index is None or index[1] not in {one.name for one in indexes.PARTIAL}:
        return False
    rows = Query(f"SELECT EXISTS (SELECT 1 FROM {index[2]})", {}, writes=False)
    found: bool = yield from ask(Ask(rows, lambda answer: bool(answer.rows[0][0])))
    return found


def _do(statement: str) -> Program[None]:
    yield from ask(Ask(Query(statement, {}, patient=True), nothing))


def _pauses() -> Iterator[float]:
    """Pauses between attempts, until the patience is at its end."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        yield random.uniform(1.0, 3.0)


def _in_the_way(sessions: list[str]) -> StoreUnavailable:
    named = f"In the way: {'; '.join(sessions)}" if sessions else "The role may not see which sessions are in the way"
    return StoreUnavailable(
        f"Another transaction kept the tables locked for {PATIENCE:g} s. {named}. What is not applied yet has changed "
        "nothing: migrate again when that transaction has ended"
    )
