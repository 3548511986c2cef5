"""SQLAlchemy's engines and session factories: a pool of our own beside the user's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, Pool, QueuePool, event, exc
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from retrysafe import runtime
from retrysafe.backends.spec import library
from retrysafe.backends.sql.drivers import sqlalchemy_tenants as tenants
from retrysafe.backends.sql.drivers.base import fail, not_connected, this_process
from retrysafe.backends.sql.drivers.pool import CHECKOUT, LONGEST_LIFE, size_of
from retrysafe.backends.sql.drivers.sqlalchemy import (
    ORIGIN,
    AsyncInTransaction,
    InTransaction,
    commit_alone,
    failures,
    leads_directly,
)
from retrysafe.backends.sql.drivers.sqlite_pool import file_identity
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

if TYPE_CHECKING:  # importing it needs greenlet, which SQLAlchemy 2.1 does not install for sync code
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker


def declares_autocommit(engine: Engine | AsyncEngine) -> bool:
    """Tell whether an engine says that its connections commit by themselves; opens none."""
    level = engine.get_execution_options().get("isolation_level")
    return (level or getattr(engine.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _file_of(engine: Engine) -> str | None:
    path = engine.url.database if engine.dialect.name == "sqlite" else None
    return None if path in ("", ":memory:") or (path or "").startswith("file:") else path


class _Beside(OptionEngine):
    """An engine of the user's, with its options and listeners, on a pool of ours that is made as the user's is.

    A request that holds a connection of the user's pool would wait for a second one, perhaps of others that wait too.
    A pool without a bound, or on one connection, is used itself: nothing waits for it, or it cannot be had twice.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, {})
        # before 2.0.38, SQLAlchemy takes no listeners two engines away from the first
        setattr(self, "dispatch", engine.dispatch)  # noqa: B010
        self._pid = runtime.pid
        path = _file_of(engine)
        self._path = path and os.path.abspath(path)  # noqa: PTH100 - of this moment, wherever the process goes
        self._file: tuple[int, int] | None = None
        self._ours = self._copy(engine)
        self._root = tenants.root_of(engine)
        event.listen(self._root, "engine_disposed", self._dispose_too)

    def _copy(self, engine: Engine) -> Pool | None:
        if not isinstance(engine.pool, QueuePool):
            return None
        pool: Any = engine.pool.recreate()
        pool._timeout = min(pool._timeout, CHECKOUT)
        if pool._recycle < 0:
            pool._recycle = LONGEST_LIFE
        pool.dispatch = engine.pool.dispatch  # listeners that come and go later, too
        setattr(pool, ORIGIN, engine.pool)
        copied: Pool = pool
        return copied

    @property
    def pool(self) -> Pool:  # type: ignore[override]
        return self._proxied.pool if self._ours is None else self._ours

    def _dispose_too(self, engine: Engine) -> None:
        """Follow the user's engine to a new pool, as it is told to after a fork: a child closes no connection then."""
        before, self._ours, self._file = self._ours, self._copy(self._proxied), None
        if before is not None and self._pid == runtime.pid:
            before.dispose()

    def refuse_another_file(self) -> None:
        """Raise `StoreUnavailable` if the path of SQLite leads to another file than when it was first used, or to none.

        What is written to the open one, no other process would find.
        """
        if self._ours is None or self._path is None:
            return
        found = file_identity(self._path)
        if self._file is None:
            self._file = found
        elif found != self._file:
            happened = "deleted" if found is None else "replaced"
            raise StoreUnavailable(
                f"{self._path} was {happened} while this process used it: restart it, or dispose of the engine.",
                unsent=True,
            )

    def let_go(self) -> None:
        if event.contains(self._root, "engine_disposed", self._dispose_too):
            event.remove(self._root, "engine_disposed", self._dispose_too)

    def close(self) -> None:
        self.let_go()
        if self._ours is not None:
            self._ours.dispose()


def _bind_to(ours: Any, sessions: Any, engine: Any) -> dict[str, Any]:
    """The arguments by which a factory's sessions use another engine in the place of its own."""
    bound = {kind: ours if bind is engine else bind for kind, bind in (sessions.kw.get("binds") or {}).items()}
    return {"bind": ours, **({"binds": bound} if bound else {})}


def _sessions_on(ours: Engine, sessions: sessionmaker[Session], engine: Engine) -> Callable[[], Session]:
    """Sessions of a factory on our engine in the place of its own, also where their class chooses one by itself."""
    make = partial(sessions, **_bind_to(ours, sessions, engine))
    if sessions.class_.get_bind is Session.get_bind:
        return make

    def lead() -> Session:
        session = make()
        choose = session.get_bind

        def get_bind(*args: Any, **options: Any) -> Any:
            found = choose(*args, **options)
            return ours if found is engine else found

        session.__dict__["get_bind"] = get_bind
        return session

    return lead


@contextmanager
def _translating(engine: Engine, *, alone: bool) -> Iterator[None]:
    """Raise the errors of ours for those of a leased request that is ``alone``, or of connecting."""
    try:
        yield
    except exc.TimeoutError as error:
        pool: Any = engine.pool
        most = pool.size() + max(pool._max_overflow, 0) if isinstance(pool, QueuePool) else 1
        raise size_of("pool_size= and max_overflow= of create_engine", most).pool_exhausted() from error
    except failures() as error:
        if alone:
            fail(error, alone=True, path=_file_of(engine))
        raise not_connected(error, _file_of(engine)) from error


def _as_connected(engine: Engine, request: Query) -> Rows:
    made: Any = engine.pool._create_connection()
    try:
        cursor = made.dbapi_connection.cursor()
        cursor.execute(request.sql)
        rows = [tuple(row) for row in cursor.fetchall()]
        cursor.close()
    except failures() as error:
        fail(error, alone=True)
    finally:
        made.close()
    return Rows(rows, len(rows))


class EngineClient:
    """A pool of our own beside the engine of the user's; leased work in autocommit mode, transactions on its own terms.

    With ``sessions``, a transaction is a session of that factory.
    """

    def __init__(self, engine: Engine, sessions: sessionmaker[Session] | None = None) -> None:
        self._root = tenants.watch(engine)
        self._engine = _Beside(engine)
        self._sessions = sessions and _sessions_on(self._engine, sessions, engine)

    def __call__(self, request: Query, /) -> Rows:
        tenants.refuse_other_schema(self._root, request)
        self._engine.refuse_another_file()
        with _translating(self._engine, alone=True), self._engine.connect() as connection:
            return commit_alone(connection, request, "AUTOCOMMIT")

    def as_connected(self, request: Query, /) -> Rows:
        """Perform one statement on a new connection of which only listeners to "connect" know."""
        return _as_connected(self._engine, request)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        self._engine.refuse_another_file()
        with _translating(self._engine, alone=False):
            handle = self._engine.connect() if self._sessions is None else self._sessions()
        here = this_process()
        try:
            yield InTransaction(handle)
        finally:
            if here():
                handle.close()

    def close(self) -> None:
        self._engine.close()


class AsyncEngineClient:
    """`EngineClient` for async engines; it belongs to one event loop."""

    def __init__(self, engine: AsyncEngine, sessions: async_sessionmaker[AsyncSession] | None = None) -> None:
        self._root = tenants.watch(engine.sync_engine)
        self._beside = _Beside(engine.sync_engine)
        self._engine: AsyncEngine = library("sqlalchemy.ext.asyncio", "sqlalchemy").AsyncEngine(self._beside)
        self._sessions = sessions and partial(sessions, **_bind_to(self._engine, sessions, engine))
        self._level = ""

    async def __call__(self, request: Query, /) -> Rows:
        tenants.refuse_other_schema(self._root, request)
        self._beside.refuse_another_file()
        with _translating(self._beside, alone=True):
            self._level = self._level or await self._level_for_leased()
            async with self._engine.connect() as connection:
                return await connection.run_sync(commit_alone, request, self._level)

    async def as_connected(self, request: Query, /) -> Rows:
        return await greenlet_spawn(_as_connected, self._beside, request)

    async def _level_for_leased(self) -> str:
        """Autocommit mode, but with asyncpg behind a pooler: SQLAlchemy prepares and performs in two messages.

        Only a transaction keeps both in one session.
        """
        if self._engine.dialect.driver == "asyncpg":
            async with self._engine.connect() as connection:
                if not await connection.run_sync(leads_directly):
                    return "READ COMMITTED"
        return "AUTOCOMMIT"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        handle: AsyncConnection | AsyncSession
        self._beside.refuse_another_file()
        with _translating(self._beside, alone=False):
            handle = await self._engine.connect() if self._sessions is None else self._sessions()
        try:
            yield AsyncInTransaction(handle)
        finally:
            await handle.close()

    async def aclose(self) -> None:
        await greenlet_spawn(self._beside.close)

    def abandon(self) -> None:
        """Let go of the connections, whose loop is closed; the collector closes them."""
        self._beside.let_go()
