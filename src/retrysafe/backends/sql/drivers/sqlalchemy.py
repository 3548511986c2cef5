"""SQLAlchemy 2: engines, connections and sessions, sync and async.

Statements go through ``exec_driver_sql`` with positional parameters: ``text()`` would read casts as
parameters. Async objects run the sync code with ``run_sync``, so there is one copy of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Pool, QueuePool, event, exc
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from retrysafe import runtime
from retrysafe.backends import identity
from retrysafe.backends.spec import Joining, library, refuse_kind
from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    ENGINE_AUTOCOMMIT,
    NO_SAVEPOINT,
    arguments,
    fail,
    in_turn,
    is_of_connection,
    lacks_pooler,
    not_connected,
    other_schema_error,
    pooler_query,
    refuse_encoding,
    this_process,
)
from retrysafe.backends.sql.drivers.pool import CHECKOUT, LONGEST_LIFE, size_of
from retrysafe.backends.sql.drivers.sqlite_pool import refuse_asked
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows, TransactionEnded

if TYPE_CHECKING:  # importing it needs greenlet, which SQLAlchemy 2.1 does not install for sync code
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

_STYLES = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors that SQLAlchemy raises or passes through: asyncpg's, and MySQL's of an isolation level."""
    asyncpg = sys.modules.get("asyncpg")
    raw = () if asyncpg is None else (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    mysql = [sys.modules[name].Error for name in _DRIVERS if name in sys.modules]
    return (exc.DBAPIError, exc.TimeoutError, OSError, *raw, *mysql)


_DRIVERS = ("pymysql", "asyncmy.errors", "MySQLdb", "mssql_python", "pymssql")
"""Drivers that set an isolation level by a statement, whose errors SQLAlchemy passes on as they are."""


def perform(connection: Connection, query: Query) -> Rows:
    if connection.dialect.name == "postgresql":
        _leads_directly(connection)
    sql, args = arguments(query, _style(connection.dialect))
    cursor = connection.exec_driver_sql(sql, tuple(args))
    if not cursor.returns_rows:
        return Rows([], cursor.rowcount)
    rows = [tuple(row) for row in cursor.fetchall()]
    return Rows(rows, len(rows))


def _style(dialect: Any) -> str:
    """The placeholder of parameters by place; mssql-python calls its style pyformat, where that is by name."""
    return "?" if dialect.driver == "mssqlpython" else _STYLES[dialect.paramstyle]


_LOST = "8s2b"
"""SQLAlchemy's code of an error by which the connection is gone, and not a flush that failed."""
_DIRECT = "retrysafe_direct"


def _leads_directly(connection: Connection) -> bool:
    """Tell whether it is PostgreSQL itself; a pooler may change sessions between two messages to asyncpg's.

    Behind a pooler it prepares nothing by name any more, or is refused.
    """
    known: dict[Any, Any] = connection.info  # kept as long as the driver's connection
    if _DIRECT not in known:
        known[_DIRECT] = _ask(connection, _dbapi(connection))
    return bool(known[_DIRECT])


def _ask(connection: Connection, driver: Any) -> bool:
    if hasattr(driver, "get_server_pid"):
        return lacks_pooler(connection.exec_driver_sql(pooler_query(driver.get_server_pid())).one())
    if getattr(driver, "prepare_threshold", None) is None:
        return True  # it prepares nothing by name, wherever it leads
    direct = lacks_pooler(connection.exec_driver_sql(pooler_query(driver.info.backend_pid)).one())
    if not direct:
        driver.prepare_threshold = None
    return direct


def _alone(connection: Connection, request: Query, level: str) -> Rows:
    """Perform a request that commits by itself, also where a listener of the engine has begun a transaction for it."""
    try:
        if connection.dialect.name == "postgresql" and _is_open(_dbapi(connection)):
            # the transaction of a listener, whose settings would be undone with it
            (connection if connection.in_transaction() else connection.connection).commit()
        _set_level(connection, level)
        _refuse_beside_parent(connection)
        rows = in_turn(request, lambda query: perform(connection, query))
        if _is_open(_dbapi(connection)):
            connection.commit()
    except _failures() as error:
        if is_of_connection(error) and _passes_by_another(connection, error, _was_used(connection)):
            fail(error, alone=True, passes=True)
        raise
    connection.info[_USED] = True
    return rows


def _set_level(connection: Connection, level: str) -> None:
    """Set the isolation level, which takes a statement on MySQL: SQLAlchemy would keep a pool of dead connections."""
    try:
        connection.execution_options(isolation_level=level)
    except connection.dialect.loaded_dbapi.Error as error:
        connection._handle_dbapi_exception(error, None, None, None, None)


_USED = "retrysafe_used"


def _was_used(connection: Connection) -> bool:
    return _USED in connection.info


def _passes_by_another(connection: Connection, error: Exception, used: bool) -> bool:
    """Let our pool replace its connections, whose error it is; whether a new one may do better."""
    pool = connection.engine.pool
    if not hasattr(pool, _ORIGIN):
        return False
    pool._invalidate(connection.connection, error, False)
    return used


def _is_open(driver: Any) -> bool:
    """Tell whether a driver's connection is in a transaction, as far as it can be told without asking the server."""
    if hasattr(driver, "in_transaction"):
        return bool(driver.in_transaction)  # sqlite3, aiosqlite
    if hasattr(driver, "is_in_transaction"):
        return bool(driver.is_in_transaction())  # asyncpg
    if hasattr(driver, "get_autocommit"):  # an answer with rows says nothing of a transaction that it has begun
        return not driver.get_autocommit() or _mysql_in_transaction(driver)
    return bool(getattr(getattr(driver, "info", None), "transaction_status", True))  # psycopg; others do not tell


def _mysql_in_transaction(driver: Any) -> bool:
    if hasattr(driver, "get_transaction_status"):
        return bool(driver.get_transaction_status())  # asyncmy
    return bool((getattr(driver, "server_status", None) or 0) & _IN_TRANSACTION)  # PyMySQL


_IN_TRANSACTION = 1
"""MySQL's SERVER_STATUS_IN_TRANS."""


class InTransaction:
    """An executor on a connection or session; transaction control goes through its methods."""

    def __init__(self, handle: Connection | Session) -> None:
        self.handle = handle
        self.execute = self
        self._savepoint: Any = None
        self._used = False
        self._undone = False
        """True if nothing of the work is left to be committed."""
        self._chosen: list[str] | None = None

    def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Copy):
            raise ConfigurationError("A SQLAlchemy engine cannot rotate partitions: give the store as a URL.")
        try:
            if request.control is not None:
                return self._control(request)
            self._end_savepoint_before(request)
            connection = self._connection()
            if request.params.get("own_schema") is not None and (
                _latest or connection.get_execution_options().get(_TRANSLATES)
            ):
                self._refuse_other_schema(connection, request)
            if request.writes and _has_ended(connection):
                return Rows([], 0)  # the handler ended the transaction: the write must not commit alone
            return in_turn(request, lambda query: perform(connection, query))
        except (exc.PendingRollbackError, exc.ResourceClosedError) as error:
            if error.code == _LOST:
                raise StoreUnavailable(str(error)) from error
            raise TransactionEnded from error
        except _failures() as error:
            fail(error, passes=is_of_connection(error) and _passes_by_another(self._connection(), error, self._used))

    def _refuse_other_schema(self, connection: Connection, request: Query) -> None:
        """Raise `ConfigurationError` under the schema of a tenant, or if the work has been there since the claim."""
        ended = "lease" not in request.params
        if connection.get_execution_options().get(_TRANSLATES):
            raise other_schema_error(f"{_TRANSLATES} of SQLAlchemy", ended=ended)
        chosen = connection.info.get(_CHOSEN)
        if ended and chosen is not None and chosen is not self._chosen:
            raise other_schema_error(chosen[0], ended=True)
        self._chosen = chosen

    def _end_savepoint_before(self, request: Query) -> None:
        """A store's own savepoint takes ours along when it is released: SQLAlchemy must know that ours has ended."""
        if NO_SAVEPOINT in request.refusals:
            self._release()

    def _release(self) -> None:
        if self._savepoint is not None and self._savepoint.is_active:
            with _mute_commit_hooks(self.handle):
                self._savepoint.commit()

    def _connection(self) -> Connection:
        return self.handle if isinstance(self.handle, Connection) else Session.connection(self.handle)

    def _control(self, request: Query) -> Rows:
        match request.control:
            case "begin":
                connection = self._connection()
                _begin(connection, request.sql)
                _refuse_autocommit(connection, ENGINE_AUTOCOMMIT)
                self._used, connection.info[_USED] = _was_used(connection), True
            case "savepoint":
                self._savepoint = self.handle.begin_nested()
                if isinstance(self.handle, Session):
                    _refuse_late_options(self.handle)
            case "rollback_to_savepoint":
                self._undone = True
                if self._savepoint.is_active or isinstance(self.handle, Session):
                    self._savepoint.rollback()
            case "commit":
                if isinstance(self.handle, Session):
                    self._release()
                with _mute_commit_hooks(self.handle) if self._undone else nullcontext():
                    self.handle.commit()
            case _:
                self.handle.rollback()
        return Rows([], 0)


def _refuse_late_options(session: Session) -> None:
    """Let the work ask for no isolation level or schemas, which SQLAlchemy ignores in a transaction that has begun."""

    def connection(
        bind_arguments: dict[str, Any] | None = None, execution_options: Mapping[str, Any] | None = None
    ) -> Connection:
        late = {"isolation_level", _TRANSLATES}.intersection(execution_options or ())
        if late and session.get_bind(**(bind_arguments or {})) is session.get_bind():
            raise ConfigurationError(
                f"session.connection(execution_options=…) asks for {' and '.join(sorted(late))}, and the claim has "
                "begun the transaction already: SQLAlchemy would ignore that. Nothing was run with it. Give it to the "
                "engine: sessionmaker(engine.execution_options(…)) as the store= of a boundary of its own."
            )
        return Session.connection(session, bind_arguments, execution_options)

    session.__dict__["connection"] = connection


class _MutedEvents:
    """The events of a session, but for those of a commit."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return (lambda session: None) if name in ("before_commit", "after_commit") else getattr(self._told, name)


@contextmanager
def _mute_commit_hooks(handle: Connection | Session) -> Iterator[None]:
    """Keep a session's hooks from commits that are not of the user's work: SQLAlchemy tells of savepoints too."""
    told = handle.dispatch
    handle.__dict__["dispatch"] = _MutedEvents(told)
    try:
        yield
    finally:
        handle.__dict__["dispatch"] = told


def _begin(connection: Connection, sql: str) -> None:
    """SQLite must be told to begin for writing, unless a listener of the engine does so; others begin by themselves."""
    _let_listeners_begin(connection)
    _refuse_beside_parent(connection)
    if connection.dialect.name == "sqlite" and not _dbapi(connection).in_transaction:
        connection.exec_driver_sql(sql)


def _refuse_beside_parent(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        refuse_asked(lambda sql: connection.exec_driver_sql(sql).all())


def _let_listeners_begin(connection: Connection) -> None:
    """Begin for SQLAlchemy: its listeners may begin for the database, or put the connection into autocommit mode."""
    if not connection.in_transaction():
        connection.begin()


def _has_ended(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite" and not _dbapi(connection).in_transaction


def _dbapi(connection: Connection) -> Any:
    """The driver's own connection, below SQLAlchemy's adapters."""
    return connection.connection.driver_connection


def declares_autocommit(engine: Engine | AsyncEngine) -> bool:
    """Tell whether an engine says that its connections commit by themselves; opens none."""
    level = engine.get_execution_options().get("isolation_level")
    return (level or getattr(engine.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def _refuse_autocommit(connection: Connection, said: str = AUTOCOMMIT) -> None:
    driver = _dbapi(connection)
    if connection.dialect.name == "sqlite":
        autocommit = driver.isolation_level is None and not driver.in_transaction
    else:
        adapted = connection.connection.dbapi_connection
        autocommit = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT" or (
            driver.get_autocommit()
            if hasattr(driver, "get_autocommit")
            else getattr(adapted, "autocommit_state", getattr(adapted, "autocommit", False)) is True
        )
    if autocommit:
        raise ConfigurationError(said)


class Joined:
    """An executor on the caller's connection or session, which must be in a transaction or begin one."""

    def __init__(self, handle: Connection | Session) -> None:
        self._inner = InTransaction(handle)
        self._started = False

    def __call__(self, request: Query, /) -> Rows:
        self._start()
        return self._inner(request)

    def flush(self) -> None:
        """Send the changes of a session, whether or not it does so by itself; what the user's data causes is raised."""
        session = self._inner.handle
        if isinstance(session, Session) and not session._flushing:
            self._start()
            session.flush()

    def _start(self) -> None:
        if self._started:
            return
        connection = self._inner._connection()
        if not hasattr(connection.engine, _WATCHED):
            watch(connection.engine)
        try:
            _let_listeners_begin(connection)
            _refuse_autocommit(connection)
            refuse_encoding(_dbapi(connection))
            _begin(connection, "BEGIN IMMEDIATE")
        except _failures() as error:
            fail(error)
        self._started = True


class AsyncInTransaction:
    """An executor on an async connection or session of ours."""

    _makes: type[InTransaction | Joined] = InTransaction

    def __init__(self, handle: AsyncConnection | AsyncSession) -> None:
        self.handle = handle
        self.execute = self
        self._inner: Any = None

    async def __call__(self, request: Query, /) -> Rows:
        rows: Rows = await self.handle.run_sync(lambda sync: self._on(sync)(request))
        return rows

    def _on(self, sync: Any) -> Any:
        if self._inner is None:
            self._inner = self._makes(sync)
        return self._inner


class AsyncJoined(AsyncInTransaction):
    """`Joined` for async connections and sessions."""

    _makes = Joined

    async def aflush(self) -> None:
        await self.handle.run_sync(lambda sync: self._on(sync).flush())


def join(tx: Connection | Session, kind: str, _address: str) -> Joining:
    return Joining(Joined(tx), None, None, *_place_of(tx, kind))


def ajoin(tx: AsyncConnection | AsyncSession, kind: str, _address: str) -> Joining:
    return Joining(None, AsyncJoined(tx), None, *_place_of(tx, kind))


def join_scoped(tx: Any, kind: str, address: str) -> Joining:
    """A registry of sessions stands for the session of the current scope."""
    session = tx.registry()
    return join(session, kind, address) if isinstance(session, Session) else ajoin(session, kind, address)


def _place_of(tx: Any, kind: str) -> tuple[identity.Place, str]:
    """The pool that it is from, and its kind of database; refuse another one than ``kind``."""
    bind = tx.get_bind() if hasattr(tx, "get_bind") else tx
    dialect = getattr(tx, "dialect", None) or bind.dialect
    refuse_driver(dialect, "tx=")
    found = "mysql" if dialect.name == "mariadb" else dialect.name
    refuse_kind(found, kind)
    lent_by = bind.engine.pool
    return identity.pool(getattr(lent_by, _ORIGIN, lent_by)), found


def refuse_driver(dialect: Any, argument: str) -> None:
    """Raise `ConfigurationError` for a driver of SQL Server whose errors and parameters we do not know."""
    if dialect.name == "mssql" and dialect.driver not in ("mssqlpython", "pymssql"):
        raise ConfigurationError(
            f"{argument} is of an engine on mssql+{dialect.driver}; for SQL Server it is mssql+mssqlpython (SQLAlchemy "
            "2.1) or mssql+pymssql."
        )


_TRANSLATES = "schema_translate_map"
_SETS = re.compile(r"(?i)\bset(_config)?\b")
_NAMES_SCHEMA = re.compile(
    r"(?i)\s*+(?:/\*(?:[^*]|\*(?!/))*+\*/\s*+)*+(?:use|set\s++(?:(?:local|session)\s++)?schema)\s"
)
_other_schemas: WeakKeyDictionary[Engine, str] = WeakKeyDictionary()
"""Of an engine that we were given, how work on it has chosen the schema of a tenant, in words; empty if none has."""
_latest: list[str] = []
"""The latest choice on any engine, in words; empty if there was none."""
_CHOSEN = "retrysafe_chosen"
"""The latest choice on a connection, in its ``info``: a new list each time."""
_WATCHED = "_retrysafe_watched"
"""The attribute of engines that are watched."""


def _root(engine: Engine) -> Engine:
    while isinstance(engine, OptionEngine):
        engine = engine._proxied
    return engine


def _chooses_schema(statement: str) -> bool:
    """Tell whether a statement may choose a schema, and with it a tenant."""
    if _NAMES_SCHEMA.match(statement) is not None:
        return True
    return "search_path" in statement.lower() and _SETS.search(statement) is not None


def watch(engine: Engine) -> Engine:
    """Note it when a tenant's schema is chosen on the engine that this one is derived from, which is returned.

    By a schema_translate_map, of a connection or a single statement, or by a statement. What sets a new connection up
    before SQLAlchemy has it chooses no tenant.
    """
    root = _root(engine)
    setattr(engine, _WATCHED, True)
    if root in _other_schemas:
        return root
    _other_schemas[root] = ""

    def note(_: object, options: dict[str, Any]) -> None:
        if options.get(_TRANSLATES):
            _other_schemas[root] = f"{_TRANSLATES} of SQLAlchemy"

    def read(connection: Connection, _: object, statement: str, __: object, context: Any, ___: object) -> None:
        if context.execution_options.get(_TRANSLATES):
            reason = f"{_TRANSLATES} of SQLAlchemy"
        elif _chooses_schema(statement):
            reason = f"by {statement[:80]!r}"
        else:
            return
        _other_schemas[root] = reason
        _latest[:] = [reason]
        connection.info[_CHOSEN] = [reason]

    note(root, engine.get_execution_options())
    event.listen(root, "set_engine_execution_options", note)
    event.listen(root, "set_connection_execution_options", note)
    event.listen(root, "before_cursor_execute", read)
    return root


def refuse_other_schema(request: Query, reason: str) -> None:
    if request.params.get("own_schema") is not None:
        raise other_schema_error(reason)


def _file_of(engine: Engine) -> str | None:
    return engine.url.database if engine.dialect.name == "sqlite" else None


_ORIGIN = "retrysafe_origin"
"""The attribute of a pool of ours for the user's, which leads where ours does."""


class _Beside(OptionEngine):
    """An engine of the user's, with its options and listeners, on a pool of ours that is made as the user's is.

    A pool without a bound, or on one connection, is used itself: nothing waits for it, or it cannot be had twice.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, {})
        # before 2.0.38, SQLAlchemy takes no listeners two engines away from the first
        setattr(self, "dispatch", engine.dispatch)  # noqa: B010
        self._pid = runtime.pid
        self._ours = self._copy(engine)
        self._root = _root(engine)
        event.listen(self._root, "engine_disposed", self._dispose_too)

    def _copy(self, engine: Engine) -> Pool | None:
        if not isinstance(engine.pool, QueuePool):
            return None
        pool: Any = engine.pool.recreate()
        pool._timeout = min(pool._timeout, CHECKOUT)
        if pool._recycle < 0:
            pool._recycle = LONGEST_LIFE
        pool.dispatch = engine.pool.dispatch  # listeners that come and go later, too
        setattr(pool, _ORIGIN, engine.pool)
        copied: Pool = pool
        return copied

    @property
    def pool(self) -> Pool:  # type: ignore[override]
        return self._proxied.pool if self._ours is None else self._ours

    def _dispose_too(self, engine: Engine) -> None:
        """Follow the user's engine to a new pool, as it is told to after a fork: a child closes no connection then."""
        before, self._ours = self._ours, self._copy(self._proxied)
        if before is not None and self._pid == runtime.pid:
            before.dispose()

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
    except _failures() as error:
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
    except _failures() as error:
        fail(error, alone=True)
    finally:
        made.close()
    return Rows(rows, len(rows))


class EngineClient:
    """A pool of our own beside the engine of the user's; leased work in autocommit mode, transactions on its own terms.

    With ``sessions``, a transaction is a session of that factory.
    """

    def __init__(self, engine: Engine, sessions: sessionmaker[Session] | None = None) -> None:
        self._root = watch(engine)
        self._engine = _Beside(engine)
        self._sessions = sessions and _sessions_on(self._engine, sessions, engine)

    def __call__(self, request: Query, /) -> Rows:
        if reason := _other_schemas[self._root]:
            refuse_other_schema(request, reason)
        with _translating(self._engine, alone=True), self._engine.connect() as connection:
            return _alone(connection, request, "AUTOCOMMIT")

    def as_connected(self, request: Query, /) -> Rows:
        """Perform one statement on a new connection of which only listeners to "connect" know."""
        return _as_connected(self._engine, request)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
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
        self._root = watch(engine.sync_engine)
        self._beside = _Beside(engine.sync_engine)
        self._engine: AsyncEngine = library("sqlalchemy.ext.asyncio", "sqlalchemy").AsyncEngine(self._beside)
        self._sessions = sessions and partial(sessions, **_bind_to(self._engine, sessions, engine))
        self._level = ""

    async def __call__(self, request: Query, /) -> Rows:
        if reason := _other_schemas[self._root]:
            refuse_other_schema(request, reason)
        with _translating(self._beside, alone=True):
            self._level = self._level or await self._level_for_leased()
            async with self._engine.connect() as connection:
                return await connection.run_sync(_alone, request, self._level)

    async def as_connected(self, request: Query, /) -> Rows:
        return await greenlet_spawn(_as_connected, self._beside, request)

    async def _level_for_leased(self) -> str:
        """Autocommit mode, but with asyncpg behind a pooler: SQLAlchemy prepares and performs in two messages.

        Only a transaction keeps both in one session.
        """
        if self._engine.dialect.driver == "asyncpg":
            async with self._engine.connect() as connection:
                if not await connection.run_sync(_leads_directly):
                    return "READ COMMITTED"
        return "AUTOCOMMIT"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        handle: AsyncConnection | AsyncSession
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
