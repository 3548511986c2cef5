"""The schema of a backend's store: which version it has, and what brings it up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends import migrations
from retrysafe.backends.driver import arun, run
from retrysafe.backends.migrations import on_demand as tables
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol import migrating
from retrysafe.protocol.migrating import CreatedStore, Migration
from retrysafe.protocol.requests import Steps

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.protocol.client import Client


class Schema(NamedTuple):
    """The version of a store's schema, 0 when there is none, and the one that this retrysafe needs."""

    version: int
    needed: int


class SchemaOfStore:
    """What `Backend` knows and does of its schema; loaded when it is first asked."""

    def __init__(self, backend: Backend, on_demand: Callable[[], Client] | None, migrate_with: str | None) -> None:
        self._backend = backend
        self._on_demand = on_demand
        self._migrate_with = migrate_with
        self._provided: set[str] = set()

    def version(self) -> Steps[Schema]:
        """The schema's version and the one that is needed."""
        version = yield from migrating.schema_version(self._sql())
        return Schema(version, self._needed())

    def require(self) -> Steps[None]:
        """Raise `SchemaOutdated` unless the schema is new enough."""
        yield from migrating.require(self._sql(), self._needed(), self._migrating())

    def _migrating(self) -> str:
        """The command that applies the migrations."""
        return self._migrate_with or self._backend.commands.line("migrate")

    def _needed(self) -> int:
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
        if self._on_demand is None or feature in self._provided:
            return []
        made: list[Migration] = []
        with closing(self._on_demand()) as client:
            present = run(tables.is_present(feature), client)
            if not present:
                made = self._made_tables(feature, client)
        if present or made:
            self._provided.add(feature)
        return made

    def _made_tables(self, feature: str, client: Client) -> list[Migration]:
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
        if partitions is None and isinstance(self._backend.store, CreatedStore):
            return run(self._backend.store.create(), self._backend.client())
        chosen = self._chosen(partitions)
        if self._on_demand is not None:
            return self._migrate_file()
        if run(self._is_up_to_date(partitions), self._backend.client()):
            return []
        with self._backend.client().transaction() as opened:
            return run(self._migration(chosen), opened.execute)

    async def amigrate(self, partitions: int | None = None) -> list[Migration]:
        """`migrate` through the async client."""
        if partitions is None and isinstance(self._backend.store, CreatedStore):
            return await arun(self._backend.store.create(), self._backend.aclient())
        chosen = self._chosen(partitions)
        if self._on_demand is not None:
            return self._migrate_file()
        if await arun(self._is_up_to_date(partitions), self._backend.aclient()):
            return []
        async with self._backend.aclient().transaction() as opened:
            return await arun(self._migration(chosen), opened.execute)

    def _migrate_file(self) -> list[Migration]:
        """Make all tables of a file, also of features that were never asked for."""
        return self._prepare(whole=True) + [made for feature in tables.FEATURES for made in self.provide(feature)]

    def _chosen(self, partitions: int | None) -> tuple[Migration, ...]:
        if partitions is None:
            self._sql()
        return migrations.choose(self._backend.kind, partitions)

    def _is_up_to_date(self, partitions: int | None) -> Steps[bool]:
        version = yield from migrating.schema_version(self._sql())
        if version and partitions is not None:
            yield from migrating.check_partitions(self._sql(), partitions)
        return version >= self._needed()

    def _migration(self, chosen: Sequence[Migration]) -> Steps[list[Migration]]:
        store = self._sql()
        return migrating.migrate(store, chosen, store.migration_lock(), store.migration_unlock())

    def _sql(self) -> Any:
        if not self._backend.has_schema:
            raise ConfigurationError(f"store= ({self._backend.address}) has no schema to migrate.")
        return self._backend.store
