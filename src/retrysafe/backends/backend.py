"""A store with its clients and its schema, for one process, its forks and its event loops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from retrysafe import lazy, runtime
from retrysafe.backends.commands import Commands, naming, of_alias
from retrysafe.backends.database import WITH_SCHEMA, StoreDatabase
from retrysafe.backends.driver import arun, run
from retrysafe.backends.wakeups import Wakeups
from retrysafe.cancellation import close_completely
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.client import Hearing
from retrysafe.protocol.procedures import examine
from retrysafe.protocol.requests import Program
from retrysafe.runtime import PerLoop, PerProcess

if TYPE_CHECKING:
    from retrysafe.backends.cache import ReadThroughCache
    from retrysafe.backends.identity import Place
    from retrysafe.backends.schema import Tables
    from retrysafe.backends.spec import StoreAccess
    from retrysafe.protocol.client import AsyncClient, AsyncExecutor, Client, Executor
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


class Backend:
    """A store with its clients: one per process for sync code, one per process and loop for async code."""

    def __init__(self, store: OperableStore, access: StoreAccess) -> None:
        self.store = store
        self.access = access
        self.cache: ReadThroughCache | None = None
        """A cache of settled records in front of the store."""
        self.kind = store.capabilities.name
        self.address = access.address
        self.migrates_itself = access.migrates_itself
        """True if it is still to be brought up to date when it is connected to."""
        self.serves_sync = access.sync is not None
        self.serves_async = access.asynchronous is not None
        self.database = StoreDatabase(self)
        self.wakeups = Wakeups()
        listening, alistening = access.listening, access.alistening
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
        self._tables: Tables | None = None
        self._checked_in = 0
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

    is_sharded = False
    """True if the store of a transaction depends on the key of its claim."""

    def of(self, key: bytes) -> Backend:
        """The backend of a claim with a transaction. Raises `ConfigurationError` for a key that moves."""
        return self

    @property
    def commands(self) -> Commands:
        return naming(self.address) if self.access.alias is None else of_alias(self.access.alias)

    @property
    def tables(self) -> Tables:
        if self._tables is None:
            from retrysafe.backends.schema import Tables

            self._tables = Tables(self)
        return self._tables

    # ------------------------------------------------------------ clients

    def ready_client(self) -> Client:
        """The sync client of this process, to a store that has been found fit for use; see `check`."""
        if self._checked_in != runtime.pid:
            self.check(self.client())
        return self.client()

    async def ready_aclient(self) -> AsyncClient:
        if self._checked_in != runtime.pid:
            await self.acheck(self.aclient())
        return self.aclient()

    async def check_in_loop(self) -> None:
        """Find the store fit for use from an event loop, also where it serves sync code only; see `ready_client`."""
        if self.serves_async:
            await self.ready_aclient()
        else:
            await lazy.asyncio.to_thread(self.ready_client)

    def run(self, program: Program[R]) -> R:
        """Drive a program, outside a transaction, on a store that has been found fit for use; see `ready_client`."""
        return run(program, self.ready_client())

    async def arun(self, program: Program[R]) -> R:
        return await arun(program, await self.ready_aclient())

    def _open(self) -> Client:  # the crash kit wraps these two, not the clients of heartbeats and other companions
        return self.new_client()

    def _aopen(self) -> AsyncClient:
        return self.new_aclient()

    def new_client(self) -> Client:
        """A new client: its connections are its own where the store is given as a URL."""
        return self._make(self.access.sync)

    def new_aclient(self) -> AsyncClient:
        return self._amake(self.access.asynchronous)

    def heartbeat_client(self) -> Client:
        """A new client for the heartbeat: its connections are its own where the store is given as a URL."""
        return self._make(self.access.heartbeat or self.access.sync)

    def heartbeat_aclient(self) -> AsyncClient:
        return self._amake(self.access.aheartbeat or self.access.asynchronous)

    def _make(self, make: Callable[[], Client] | None) -> Client:
        if make is None:
            raise ConfigurationError(
                f"store= ({self.address}) serves async code only: use 'async with' or a coroutine."
            )
        return self._heed(make())

    def _amake(self, make: Callable[[], AsyncClient] | None) -> AsyncClient:
        if make is None:
            raise ConfigurationError(f"store= ({self.address}) serves sync code only: {self.access.async_with}.")
        return self._heed(make())

    def _heed(self, client: C) -> C:
        """The client, which now adds what it hears from its server to the warnings."""
        if self.refusal:
            raise ConfigurationError(self.refusal)
        if isinstance(client, Hearing):
            client.heard = self.warnings.append
        return client

    # ------------------------------------------------------------ waiting

    def wait(self, key: bytes, seconds: float) -> None:
        """Wait until the attempt at ``key`` may have ended, at most ``seconds``."""
        self.wakeups.wait(key, seconds, None if self._listener is None else self._listener())

    async def await_(self, key: bytes, seconds: float) -> None:
        await self.wakeups.await_(key, seconds, None if self._alistener is None else self._alistener())

    def restarts(self, error: BaseException) -> bool:
        """Tell whether ``error`` means that the database wants the whole transaction again."""
        return self.access.wants_restart(error)

    # ------------------------------------------------------------ fit for use

    def check(self, execute: Executor, place: Place | None = None) -> None:
        """Refuse to work on a missing or old schema, or on a server that is set up wrongly; asked once per process.

        ``place`` is where ``execute`` leads if it is a transaction of the caller's: it is refused if that is another
        database, which is asked once for each place.
        """
        if place is not None:
            self.database.check(execute, place)
        if self._checked_in != runtime.pid:
            self.database.find_own_schema(execute, joined=place is not None)
            self._judge(run(self.examination(), execute))

    async def acheck(self, execute: AsyncExecutor, place: Place | None = None) -> None:
        if place is not None:
            await self.database.acheck(execute, place)
        if self._checked_in != runtime.pid:
            await self.database.afind_own_schema(execute, joined=place is not None)
            self._judge(await arun(self.examination(), execute))

    def migrate(self, partitions: int | None = None) -> list[Migration]:
        """Apply the missing migrations, with the records in so many ``partitions``; return them."""
        return self.tables.migrate(partitions)

    async def amigrate(self, partitions: int | None = None) -> list[Migration]:
        return await self.tables.amigrate(partitions)

    def examination(self) -> Program[list[Finding]]:
        """Look at the schema and at the server's settings. Raises `SchemaOutdated`."""
        if self.kind in WITH_SCHEMA:
            yield from self.tables.require()
        return (yield from examine(self.store))

    def _judge(self, findings: list[Finding]) -> None:
        refusals = [finding.text for finding in findings if finding.level == "refuse"]
        if refusals:
            raise ConfigurationError(f"store= ({self.address}) cannot be used: {' '.join(refusals)}")
        if self._checked_in == runtime.pid:
            return  # others looked at the same time, and have told
        self.warnings += [finding for finding in findings if finding.level == "warn"]
        self._checked_in = runtime.pid

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Close this process's sync client, listener and heartbeat, and hang up for event loops that have ended."""
        for of_loops in (self._alistener, self.acompanions, self.aclient):
            if of_loops is not None:
                of_loops.abandon_closed()
        listener = None if self._listener is None else self._listener.pop()
        for closing in (listener, *(self.companions.pop() or {}).values(), self.client.pop(), self.cache):
            if closing is not None:
                closing.close()

    async def aclose(self) -> None:
        """Close the running loop's async client, listener and heartbeat, and the sync ones.

        To the end of that, although the caller is cancelled meanwhile.
        """
        await close_completely(self._aclose())

    async def _aclose(self) -> None:
        listener = None if self._alistener is None else self._alistener.pop()
        for closing in (listener, *(self.acompanions.pop() or {}).values(), self.aclient.pop(), self.cache):
            if closing is not None:
                await closing.aclose()
        self.close()
