"""The database that a backend leads to: whether a transaction, or another backend, leads to the same one.

What shows without asking are places (`retrysafe.backends.identity`). Where they differ, the database is asked, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from retrysafe import lazy
from retrysafe.backends.driver import arun, run
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Program, ask

if TYPE_CHECKING:
    from retrysafe.backends.commands import Commands
    from retrysafe.backends.identity import Place
    from retrysafe.backends.spec import StoreAccess
    from retrysafe.protocol.client import AsyncClient, AsyncExecutor, Client, Executor


WITH_SCHEMA = frozenset({"sqlite", "postgresql", "mysql", "mssql"})
"""Kinds of stores that have tables of a version, which `migrate` brings up to date."""


_UNKNOWN_SCHEMA = "(unknown)"
"""No schema has this name: a claim without a tenant is refused in each."""


class Served(Protocol):
    """A backend, as far as its tables and its database are concerned."""

    store: Any
    kind: str
    access: StoreAccess

    @property
    def client(self) -> Callable[[], Client]: ...

    @property
    def aclient(self) -> Callable[[], AsyncClient]: ...

    @property
    def commands(self) -> Commands: ...


class StoreDatabase:
    """The database of a backend."""

    def __init__(self, backend: Served) -> None:
        self._backend = backend
        self._sync = backend.access.sync is not None
        self._async = backend.access.asynchronous is not None
        self._found: set[Place] = set()
        """Places that have turned out to be this database."""
        self._others: WeakKeyDictionary[StoreDatabase, bool] = WeakKeyDictionary()
        """Databases of other backends, and whether they have turned out to be this one."""

    # ------------------------------------------------------------ transactions

    def check(self, execute: Executor, place: Place) -> None:
        """Refuse a transaction of the caller's, at a ``place``, on another database."""
        if not self._leads_to(place):
            theirs = run(self._whereabouts(), execute)
            mine = theirs if theirs in self._backend.access.places() else self._ask()
            self._judge(place, theirs, mine)

    async def acheck(self, execute: AsyncExecutor, place: Place) -> None:
        if not self._leads_to(place):
            theirs = await arun(self._whereabouts(), execute)
            mine = theirs if theirs in self._backend.access.places() else await self._aask()
            self._judge(place, theirs, mine)

    def _ask(self) -> object:
        """Ask our own database for its identity; only its event loop can ask through a pool or engine of async code."""
        if not self._sync:
            raise ConfigurationError(
                f"tx= belongs to sync code, and store= ({self._backend.access.address}) serves async code only, so "
                "retrysafe cannot check that they are one database. Nothing was written. Give store= as a "
                "postgresql:// or mysql:// URL, which serves both, or as the engine or pool that tx= is from."
            )
        return run(self._whereabouts(), self._backend.client())

    async def _aask(self) -> object:
        if self._async:
            return await arun(self._whereabouts(), self._backend.aclient())
        return await lazy.asyncio.to_thread(self._ask)

    def _leads_to(self, place: Place) -> bool:
        if place not in self._found:
            if place not in self._backend.access.places():
                return False
            self._found.add(place)
        return True

    def _judge(self, place: Place, theirs: object, mine: object) -> None:
        if theirs is None or theirs != mine:
            raise ConfigurationError(
                f"tx= is on another database than store= ({self._backend.access.address}), so retries would not find "
                "the record. Nothing was written. Give a transaction on the database of the store, or that database "
                "as store=."
            )
        self._found.add(place)

    def _whereabouts(self) -> Program[object]:
        """Ask the database for an identity that no other has; None: it has none to compare, as a store in memory."""
        return (yield from ask(self._backend.store.whereabouts()))

    # ------------------------------------------------------------ the schema of our own connections

    def find_own_schema(self, execute: Executor, *, joined: bool) -> None:
        """Note the schema of a connection of ours as it was connected; see `SqlStore.own_schema`.

        ``joined``: of the caller's transaction, whose login may have the schema of a tenant.
        """
        if getattr(self._backend.store, "own_schema", "") is None:
            schema, as_connected = ("", False) if joined and self._sync else run(self._schema(), execute)
            self._backend.store.own_schema = schema if as_connected or not self._sync else self._ask_own_schema()

    async def afind_own_schema(self, execute: AsyncExecutor, *, joined: bool) -> None:
        if getattr(self._backend.store, "own_schema", "") is None:
            schema, as_connected = ("", False) if joined else await arun(self._schema(), execute)
            self._backend.store.own_schema = schema if as_connected else await self._aask_own_schema()

    def _ask_own_schema(self) -> str:
        client = self._backend.client()
        return self._judge_schema(*run(self._schema(), getattr(client, "as_connected", client)))

    async def _aask_own_schema(self) -> str:
        if not self._async:
            return await lazy.asyncio.to_thread(self._ask_own_schema)
        client = self._backend.aclient()
        return self._judge_schema(*(await arun(self._schema(), getattr(client, "as_connected", client))))

    def _judge_schema(self, schema: str, as_connected: bool) -> str:
        """A schema that nothing of ours has set is that of another client, whose session a pooler has lent us."""
        return schema if as_connected or not self._backend.access.own_connections else _UNKNOWN_SCHEMA

    def _schema(self) -> Program[tuple[str, bool]]:
        """The schema of a connection, and whether it is the one that it was connected with."""
        found: tuple[str, bool] = yield from ask(self._backend.store.schema())
        return found

    # ------------------------------------------------------------ other backends

    def is_same(self, other: StoreDatabase) -> bool | None:
        """Tell whether another backend leads to the same database; None: only the database can, see `compare`.

        Opens no connection. What is not known to be one database may still be one.
        """
        if other is self or not self._backend.access.places().isdisjoint(other._backend.access.places()):
            return True
        same_kind = self._backend.kind == other._backend.kind
        return self._others.get(other) if same_kind and self._can_tell(other) else False

    def _can_tell(self, other: StoreDatabase) -> bool:
        """Tell whether the database can be asked: a file is identified by its path, and has nothing more to say."""
        return self._backend.kind in ("postgresql", "mysql", "mssql") and (
            (self._sync and other._sync) or (self._async and other._async)
        )

    def compare(self, other: StoreDatabase) -> None:
        """Ask both databases whether they are one."""
        if self._sync and other._sync:
            mine = run(self._whereabouts(), self._backend.client())
            self._note(other, mine == run(other._whereabouts(), other._backend.client()))

    async def acompare(self, other: StoreDatabase) -> None:
        if self._async and other._async:
            mine = await arun(self._whereabouts(), self._backend.aclient())
            self._note(other, mine == await arun(other._whereabouts(), other._backend.aclient()))

    def _note(self, other: StoreDatabase, same: bool) -> None:
        self._others[other] = other._others[self] = same
