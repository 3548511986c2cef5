"""A store with its clients and its schema, for one process, its forks and its event loops."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from retrysafe import migrations
from retrysafe.errors import ConfigurationError, SchemaOutdated
from retrysafe.ports import AsyncClient, AsyncExecutor, Client, Executor, OperableStore, Steps
from retrysafe.programs import migrating
from retrysafe.programs.drivers import arun, run
from retrysafe.programs.migrating import Migration
from retrysafe.programs.operating import examine
from retrysafe.types import Finding

if TYPE_CHECKING:
    import asyncio

_MIGRATED = ("sqlite", "postgresql")


class Closable(Protocol):
    """A companion of a backend that ends with it."""

    def close(self) -> None: ...


class AsyncClosable(Protocol):
    """The same on an event loop."""

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


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
        migrates_itself: bool = False,
        immediate: bool = False,
    ) -> None:
        self.store = store
        self.kind = store.capabilities.name
        self.address = address
        self.migrates_itself = migrates_itself
        self.immediate = immediate
        """Whether a request never waits: then async code performs it like sync code, and cannot be cancelled there."""
        self._sync = sync
        self._asynchronous = asynchronous
        self._pulse = pulse or sync
        self._apulse = apulse or asynchronous
        self._clients: dict[int, Client] = {}
        self._aclients: dict[asyncio.AbstractEventLoop, tuple[int, AsyncClient]] = {}
        self._lock = threading.Lock()
        self._checked: set[int] = set()
        self.warnings: list[Finding] = []
        """What the check found and nobody has been told yet."""
        self.heartbeats: dict[int, Closable] = {}
        self.aheartbeats: dict[asyncio.AbstractEventLoop, AsyncClosable] = {}
        self.users = 0

    # ------------------------------------------------------------ clients

    def client(self) -> Client:
        """The sync client of this process."""
        pid = os.getpid()
        found = self._clients.get(pid)
        if found is None:
            with self._lock:
                found = self._clients.get(pid)
                if found is None:
                    found = self._clients[pid] = self._made(self._sync)
        return found

    def aclient(self) -> AsyncClient:
        """The async client of this process and the running loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        pid, found = self._aclients.get(loop, (0, None))
        if found is None or pid != os.getpid():
            self._abandon_closed_loops()
            found = self._amade(self._asynchronous)
            self._aclients[loop] = (os.getpid(), found)
        return found

    def _abandon_closed_loops(self) -> None:
        """Let go of what a loop has left behind that ended without `aclose`, as `asyncio.run` does."""
        for loop in [loop for loop in (*self._aclients, *self.aheartbeats) if loop.is_closed()]:
            heartbeat = self.aheartbeats.pop(loop, None)
            if heartbeat is not None:
                heartbeat.abandon()
            pid, client = self._aclients.pop(loop, (0, None))
            if client is not None and pid == os.getpid():
                client.abandon()

    def pulse(self) -> Client:
        """A new client for the heartbeat: its connections are its own where the store is given as a URL."""
        return self._made(self._pulse)

    def apulse(self) -> AsyncClient:
        """The same for the running loop."""
        return self._amade(self._apulse)

    def _made(self, make: Callable[[], Client] | None) -> Client:
        if make is None:
            raise ConfigurationError(
                f"store= ({self.address}) serves async code only: use 'async with' or a coroutine."
            )
        return make()

    def _amade(self, make: Callable[[], AsyncClient] | None) -> AsyncClient:
        if make is None:
            raise ConfigurationError(
                f"store= ({self.address}) serves sync code only: give a URL or an async engine or client."
            )
        return make()

    def restarts(self, error: BaseException) -> bool:
        """Whether ``error`` means that the database wants the whole transaction again."""
        from retrysafe.executors.sql import wants_restart

        return wants_restart(error)

    # ------------------------------------------------------------ schema

    def check(self, execute: Executor) -> None:
        """Refuse to work on a missing or old schema, or on a server that is set up wrongly; asked once per process."""
        if self._needs_check():
            self._judge(run(self._checking(), execute))

    async def acheck(self, execute: AsyncExecutor) -> None:
        """The same for async code."""
        if self._needs_check():
            self._judge(await arun(self._checking(), execute))

    def _needs_check(self) -> bool:
        return os.getpid() not in self._checked

    def _checking(self) -> Steps[list[Finding]]:
        if self.kind in _MIGRATED:
            version = yield from migrating.schema_version(self._sql())
            latest = migrations.load(self.kind)[-1].version
            if version < latest:
                found = f"schema version {version}, this retrysafe needs {latest}" if version else "no retrysafe tables"
                raise SchemaOutdated(f"The store has {found}. Run:  retrysafe migrate --store {self.address}")
        return (yield from examine(self.store))

    def _judge(self, findings: list[Finding]) -> None:
        refusals = [finding.text for finding in findings if finding.level == "refuse"]
        if refusals:
            raise ConfigurationError(f"store= ({self.address}) cannot be used: {' '.join(refusals)}")
        self.warnings += [finding for finding in findings if finding.level == "warn"]
        self._checked.add(os.getpid())

    def migrate(self, partitions: int | None = None) -> list[Migration]:
        """Apply the missing migrations, with the records in so many ``partitions``; return them."""
        chosen = migrations.choose(self.kind, partitions) if self._sql() else ()
        if run(self._is_up_to_date(partitions), self.client()):
            return []
        with self.client().transaction() as opened:
            return run(self._migration(chosen), opened.execute)

    async def amigrate(self, partitions: int | None = None) -> list[Migration]:
        """The same through the async client."""
        chosen = migrations.choose(self.kind, partitions) if self._sql() else ()
        if await arun(self._is_up_to_date(partitions), self.aclient()):
            return []
        async with self.aclient().transaction() as opened:
            return await arun(self._migration(chosen), opened.execute)

    def _is_up_to_date(self, partitions: int | None) -> Steps[bool]:
        version = yield from migrating.schema_version(self._sql())
        if version and partitions is not None:
            yield from migrating.check_partitions(self._sql(), partitions)
        return version >= migrations.load(self.kind)[-1].version

    def _migration(self, chosen: Sequence[Migration]) -> Steps[list[Migration]]:
        store = self._sql()
        return migrating.migrate(store, chosen, store.migration_lock())

    def _sql(self) -> Any:
        if self.kind not in _MIGRATED:
            raise ConfigurationError(f"store= ({self.address}) has no schema to migrate.")
        return self.store

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Close this process's sync client and heartbeat."""
        for companion in (self.heartbeats.pop(os.getpid(), None), self._clients.pop(os.getpid(), None)):
            if companion is not None:
                companion.close()

    async def aclose(self) -> None:
        """Close the running loop's async client and heartbeat, and the sync ones."""
        import asyncio

        loop = asyncio.get_running_loop()
        heartbeat = self.aheartbeats.pop(loop, None)
        if heartbeat is not None:
            await heartbeat.aclose()
        pid, client = self._aclients.pop(loop, (0, None))
        if client is not None and pid == os.getpid():
            await client.aclose()
        self.close()
