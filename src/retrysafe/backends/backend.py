"""A store with its clients and its schema, for one process, its forks and its event loops."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from retrysafe import runtime
from retrysafe.backends.commands import Commands, naming, of_alias
from retrysafe.backends.driver import arun, run
from retrysafe.backends.wakeups import Wakeups
from retrysafe.cancellation import close_completely
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.procedures import examine
from retrysafe.protocol.requests import Steps, ask
from retrysafe.runtime import PerLoop, PerProcess

if TYPE_CHECKING:
    from retrysafe.backends.cache import ReadThroughCache
    from retrysafe.backends.schema import Schema, SchemaOfStore
    from retrysafe.protocol.client import AsyncClient, AsyncExecutor, AsyncListener, Client, Executor, Listener
    from retrysafe.protocol.migrating import Migration
    from retrysafe.protocol.records import Finding
    from retrysafe.protocol.store import OperableStore

C = TypeVar("C")
R = TypeVar("R")


class Closable(Protocol):
    """A companion of a backend that ends with it."""

    def close(self) -> None: ...


class AsyncClosable(Protocol):
    """`Closable` for async code."""

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


def _abandon(companions: dict[type, AsyncClosable]) -> None:
    for companion in companions.values():
        companion.abandon()


def hang_up(transport: Any) -> None:
    """Close the socket of a transport whose event loop is closed, and cannot do it any more."""
    with suppress(RuntimeError, AttributeError):
        transport.abort()
    with suppress(RuntimeError, AttributeError):
        transport._call_connection_lost(None)


Place = tuple[Hashable, ...]
"""The database that a store or transaction leads to, as far as it shows: see `retrysafe.backends.identity`."""


class Backend:
    """A store with its clients: one per process for sync code, one per process and loop for async code."""

    def __init__(
        self,
        store: OperableStore,
        *,
        sync: Callable[[], Client] | None,
        asynchronous: Callable[[], AsyncClient] | None,
        address: str,
        pulse: Callable[[], Client] | None = None,
        apulse: Callable[[], AsyncClient] | None = None,
        listening: Callable[[Callable[[bytes], None]], Listener] | None = None,
        alistening: Callable[[Callable[[bytes], None]], AsyncListener] | None = None,
        migrates_itself: bool = False,
        on_demand: Callable[[], Client] | None = None,
        immediate: bool = False,
        alias: str | None = None,
        migrate_with: str | None = None,
        async_with: str = "give a URL or an async engine or client",
        missing: Callable[[], bool] = lambda: False,
        places: Callable[[], set[Place]] = set,
        no_transactions: str = "",
        own_connections: bool = False,
    ) -> None:
        self.store = store
        self.near: ReadThroughCache | None = None
        """A cache of settled records in front of the store."""
        self.kind = store.capabilities.name
        self.has_schema = self.kind in ("sqlite", "postgresql", "mysql")
        """True if the store has tables of a version, which `migrate` brings up to date."""
        self.address = address
        self.migrates_itself = migrates_itself
        self.missing = missing
        """True if the store is not there, and would be made by using it: an operator's typing error, say."""
        self.no_transactions = no_transactions
        """Why transactions of the boundary's own cannot be kept on these connections; empty where they can."""
        self.own_connections = own_connections
        """True if every client has connections that nothing else uses."""
        self.serves_sync = sync is not None
        self.serves_async = asynchronous is not None
        self.alias = alias
        """The framework's name for the store, if it owns the transactions: one connection in each thread."""
        self.immediate = immediate
        """True if a request never waits: then async code performs it like sync code, and cannot be cancelled there."""
        self._places = places
        self._found: set[Place] = set()
        """Places that have turned out to be the same database."""
        self._others: WeakKeyDictionary[Backend, bool] = WeakKeyDictionary()
        """Other backends, and whether they have turned out to be the same database."""
        self._migrate_with = migrate_with
        self._async_with = async_with
        self._on_demand = on_demand
        """Makes a sync client for tables that are made when they are first asked for; None: `migrate` makes all."""
        self._of_schema: SchemaOfStore | None = None
        self._sync = sync
        self._asynchronous = asynchronous
        self._pulse = pulse or sync
        self._apulse = apulse or asynchronous
        self.wakeups = Wakeups()
        self._listener = None if listening is None else PerProcess(lambda: listening(self.wakeups.wake))
        self._alistener = (
            None
            if alistening is None
            else PerLoop(lambda: alistening(self.wakeups.wake), lambda listener: listener.abandon())
        )
        self.client: PerProcess[Client] = PerProcess(lambda: self._open())
        """Gives the sync client of this process."""
        self.aclient: PerLoop[AsyncClient] = PerLoop(lambda: self._aopen(), lambda client: client.abandon())
        """Gives the async client of this process and the running loop."""
        self._checked = 0
        """The process in which the store was found fit for use."""
        self.refusal = ""
        """Why it cannot be connected to, if that is known; empty where it can."""
        self.warnings: list[Finding] = []
        """Findings of the check, and notices from the server, that were not reported yet."""
        self.companions: PerProcess[dict[type, Closable]] = PerProcess(dict)
        """Companions that end with this process's client, such as its heartbeat, by class."""
        self.acompanions: PerLoop[dict[type, AsyncClosable]] = PerLoop(dict, _abandon)
        """`companions` of an event loop."""
        self.users = 0
        self.boundaries: set[str] = set()
        """The names of the boundaries that were built on it."""

    @property
    def commands(self) -> Commands:
        """The commands that are shown for this store."""
        return of_alias(self.alias) if self.alias is not None else naming(self.address)

    # ------------------------------------------------------------ clients

    def ready(self) -> Client:
        """The sync client of this process, to a store that has been found fit for use; see `check`."""
        if self._checked != runtime.pid:
            self.check(self.client())
        return self.client()

    async def aready(self) -> AsyncClient:
        """`ready` for async code."""
        if self._checked != runtime.pid:
            await self.acheck(self.aclient())
        return self.aclient()

    async def ready_in_loop(self) -> None:
        """Find the store fit for use from an event loop, also where it serves sync code only; see `ready`."""
        import asyncio

        if self.serves_async:
            await self.aready()
        else:
            await asyncio.to_thread(self.ready)

    def run(self, steps: Steps[R]) -> R:
        """Drive a program, outside a transaction, on a store that has been found fit for use; see `ready`."""
        return run(steps, self.ready())

    async def arun(self, steps: Steps[R]) -> R:
        """`run` for async code."""
        return await arun(steps, await self.aready())

    def _open(self) -> Client:
        return self._made(self._sync)

    def _aopen(self) -> AsyncClient:
        return self._amade(self._asynchronous)

    def another(self) -> Client:
        """A new client: its connections are its own where the store is given as a URL."""
        return self._made(self._sync)

    def aanother(self) -> AsyncClient:
        """`another` for the running loop."""
        return self._amade(self._asynchronous)

    def pulse(self) -> Client:
        """A new client for the heartbeat: its connections are its own where the store is given as a URL."""
        return self._made(self._pulse)

    def apulse(self) -> AsyncClient:
        """`pulse` for the running loop."""
        return self._amade(self._apulse)

    def _made(self, make: Callable[[], Client] | None) -> Client:
        if make is None:
            raise ConfigurationError(
                f"store= ({self.address}) serves async code only: use 'async with' or a coroutine."
            )
        return self._heeded(make())

    def _amade(self, make: Callable[[], AsyncClient] | None) -> AsyncClient:
        if make is None:
            raise ConfigurationError(f"store= ({self.address}) serves sync code only: {self._async_with}.")
        return self._heeded(make())

    def _heeded(self, client: C) -> C:
        """The client, which now adds what it hears from its server to the warnings."""
        if self.refusal:
            raise ConfigurationError(self.refusal)
        from retrysafe.protocol.client import Hearing

        if isinstance(client, Hearing):
            client.heard = self.warnings.append
        return client

    # ------------------------------------------------------------ waiting

    def wait(self, key: bytes, seconds: float) -> None:
        """Wait until the attempt at ``key`` may have ended, at most ``seconds``."""
        self.wakeups.wait(key, seconds, None if self._listener is None else self._listener())

    async def await_(self, key: bytes, seconds: float) -> None:
        """`wait` for async code."""
        await self.wakeups.await_(key, seconds, None if self._alistener is None else self._alistener())

    def restarts(self, error: BaseException) -> bool:
        """Tell whether ``error`` means that the database wants the whole transaction again."""
        from retrysafe.backends.sql.drivers.base import wants_restart

        return wants_restart(error)

    # ------------------------------------------------------------ schema

    def check(self, execute: Executor, place: Place | None = None) -> None:
        """Refuse to work on a missing or old schema, or on a server that is set up wrongly; asked once per process.

        ``place`` is where ``execute`` leads if it is a transaction of the caller's: it is refused if that is another
        database, which is asked once for each place.
        """
        if place is not None and not self._leads_to(place):
            theirs = run(_whereabouts(self), execute)
            mine = theirs if theirs in self._places() else self._asked()
            self._judge_place(place, theirs, mine)
        if self._needs_check():
            if self._home_is_unknown():
                schema, as_connected = run(_schema(self), execute)
                if not as_connected and self.serves_sync:
                    client = self.client()
                    schema, _ = run(_schema(self), getattr(client, "as_connected", client))
                self._has_home(schema)
            self._judge(run(self._checking(), execute))

    async def acheck(self, execute: AsyncExecutor, place: Place | None = None) -> None:
        """`check` for async code."""
        if place is not None and not self._leads_to(place):
            theirs = await arun(_whereabouts(self), execute)
            mine = theirs if theirs in self._places() else await self._aasked()
            self._judge_place(place, theirs, mine)
        if self._needs_check():
            if self._home_is_unknown():
                schema, as_connected = await arun(_schema(self), execute)
                if not as_connected and self.serves_async:
                    client = self.aclient()
                    schema, _ = await arun(_schema(self), getattr(client, "as_connected", client))
                self._has_home(schema)
            self._judge(await arun(self._checking(), execute))

    def _home_is_unknown(self) -> bool:
        return getattr(self.store, "home", "") is None

    def _has_home(self, schema: str) -> None:
        store: Any = self.store
        store.home = schema

    def _asked(self) -> object:
        """Ask our own database for its identity; only its event loop can ask through a pool or engine of async code."""
        if not self.serves_sync:
            raise ConfigurationError(
                f"tx= belongs to sync code, and store= ({self.address}) serves async code only, so retrysafe cannot "
                "check that they are one database. Nothing was written. Give store= as a postgresql:// or mysql:// "
                "URL, which serves both, or as the engine or pool that tx= is from."
            )
        return run(_whereabouts(self), self.client())

    async def _aasked(self) -> object:
        """`_asked` for async code."""
        import asyncio

        if self.serves_async:
            return await arun(_whereabouts(self), self.aclient())
        return await asyncio.to_thread(self._asked)

    def _leads_to(self, place: Place) -> bool:
        if place not in self._found:
            if place not in self._places():
                return False
            self._found.add(place)
        return True

    def _judge_place(self, place: Place, theirs: object, mine: object) -> None:
        if theirs is None or theirs != mine:
            raise ConfigurationError(
                f"tx= is on another database than store= ({self.address}), so retries would not find the record. "
                "Nothing was written. Give a transaction on the database of the store, or that database as "
                "store=."
            )
        self._found.add(place)

    # ------------------------------------------------------------ the same database under two names

    def is_same(self, other: Backend) -> bool | None:
        """Tell whether another backend leads to the same database; None: only the database can, see `compare`.

        Opens no connection. What is not known to be one database may still be one.
        """
        if other is self or not self._places().isdisjoint(other._places()):
            return True
        return False if self.kind != other.kind or self._cannot_tell(other) else self._others.get(other)

    def _cannot_tell(self, other: Backend) -> bool:
        """Tell whether the database cannot be asked: it has no SQL, or it is a file, which its path identifies."""
        return self.kind not in ("postgresql", "mysql") or not (
            (self.serves_sync and other.serves_sync) or (self.serves_async and other.serves_async)
        )

    def compare(self, other: Backend) -> None:
        """Ask both databases whether they are one."""
        if self.serves_sync and other.serves_sync:
            mine = run(_whereabouts(self), self.client())
            self._compared(other, mine == run(_whereabouts(other), other.client()))

    async def acompare(self, other: Backend) -> None:
        """`compare` for async code."""
        if self.serves_async and other.serves_async:
            mine = await arun(_whereabouts(self), self.aclient())
            self._compared(other, mine == await arun(_whereabouts(other), other.aclient()))

    def _compared(self, other: Backend, same: bool) -> None:
        self._others[other] = other._others[self] = same

    def _needs_check(self) -> bool:
        return self._checked != runtime.pid

    @property
    def _tables(self) -> SchemaOfStore:
        if self._of_schema is None:
            from retrysafe.backends.schema import SchemaOfStore

            self._of_schema = SchemaOfStore(self, self._on_demand, self._migrate_with)
        return self._of_schema

    def schema(self) -> Steps[Schema | None]:
        """The schema's version and the one that is needed; None for a store without a schema."""
        return (yield from self._tables.version()) if self.has_schema else None

    def require_schema(self) -> Steps[None]:
        """Raise `SchemaOutdated` unless the schema is new enough."""
        if self.has_schema:
            yield from self._tables.require()

    def prepare(self) -> None:
        """Bring a store up to date that migrates itself; features have their tables when they are asked for."""
        self._tables.prepare()

    def provide(self, feature: str) -> list[Migration]:
        """Make the tables of a feature, "outbox" or "inbox", where that is left to its first use; return what was done.

        Without effect on a store whose tables are made by `migrate` alone.
        """
        return self._tables.provide(feature)

    def providing(self, feature: str) -> Steps[None]:
        """`provide` in a transaction of the caller's, which may hold the lock that a connection of its own needs."""
        if self._on_demand is not None:
            yield from self._tables.providing(feature)

    def migrate(self, partitions: int | None = None) -> list[Migration]:
        """Apply the missing migrations, with the records in so many ``partitions``; return them."""
        return self._tables.migrate(partitions)

    def perform_on_schema(self, statements: Sequence[str]) -> None:
        """Perform statements that mend the schema, each by itself, with patience for locks that are taken."""
        self._tables.perform(statements)

    async def aperform_on_schema(self, statements: Sequence[str]) -> None:
        """`perform_on_schema` through the async client."""
        await self._tables.aperform(statements)

    async def amigrate(self, partitions: int | None = None) -> list[Migration]:
        """`migrate` through the async client."""
        return await self._tables.amigrate(partitions)

    def _checking(self) -> Steps[list[Finding]]:
        yield from self.require_schema()
        return (yield from examine(self.store))

    def _judge(self, findings: list[Finding]) -> None:
        refusals = [finding.text for finding in findings if finding.level == "refuse"]
        if refusals:
            raise ConfigurationError(f"store= ({self.address}) cannot be used: {' '.join(refusals)}")
        if self._checked == runtime.pid:
            return  # others looked at the same time, and have told
        self.warnings += [finding for finding in findings if finding.level == "warn"]
        self._checked = runtime.pid

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Close this process's sync client, listener and heartbeat, and hang up for event loops that have ended."""
        for of_loops in (self._alistener, self.acompanions, self.aclient):
            if of_loops is not None:
                of_loops.abandon_closed()
        listener = None if self._listener is None else self._listener.pop()
        for closing in (listener, *(self.companions.pop() or {}).values(), self.client.pop(), self.near):
            if closing is not None:
                closing.close()

    async def aclose(self) -> None:
        """Close the running loop's async client, listener and heartbeat, and the sync ones.

        To the end of that, although the caller is cancelled meanwhile.
        """
        await close_completely(self._aclose())

    async def _aclose(self) -> None:
        listener = None if self._alistener is None else self._alistener.pop()
        for closing in (listener, *(self.acompanions.pop() or {}).values(), self.aclient.pop(), self.near):
            if closing is not None:
                await closing.aclose()
        self.close()


def _schema(backend: Backend) -> Steps[tuple[str, bool]]:
    """The schema of a connection, and whether it is the one that it was connected with; see `SqlStore.home`."""
    store: Any = backend.store
    found: tuple[str, bool] = yield from ask(store.schema())
    return found


def _whereabouts(backend: Backend) -> Steps[object]:
    """Ask the database for an identity that no other has; None: it has none to compare, as a store in memory."""
    store: Any = backend.store
    return (yield from ask(store.whereabouts()))
