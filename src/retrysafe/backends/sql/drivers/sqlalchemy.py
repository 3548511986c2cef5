"""SQLAlchemy 2: work on connections and sessions, sync and async.

Statements go through ``exec_driver_sql`` with positional parameters: ``text()`` would read casts as
parameters. Async objects run the sync code with ``run_sync``, so there is one copy of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, exc
from sqlalchemy.orm import Session

from retrysafe.backends import identity
from retrysafe.backends.spec import Joining, refuse_kind
from retrysafe.backends.sql.drivers import sqlalchemy_tenants as tenants
from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    ENGINE_AUTOCOMMIT,
    NO_SAVEPOINT,
    arguments,
    fail,
    in_turn,
    is_of_connection,
    lacks_pooler,
    pooler_query,
    refuse_encoding,
)
from retrysafe.backends.sql.drivers.sqlite_pool import refuse_asked
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows, TransactionEnded

if TYPE_CHECKING:  # importing it needs greenlet, which SQLAlchemy 2.1 does not install for sync code
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_STYLES = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that SQLAlchemy raises or passes through: asyncpg's, and MySQL's of an isolation level."""
    asyncpg = sys.modules.get("asyncpg")
    raw = () if asyncpg is None else (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    mysql = [sys.modules[name].Error for name in _DRIVERS if name in sys.modules]
    return (exc.DBAPIError, exc.TimeoutError, OSError, *raw, *mysql)


_DRIVERS = ("pymysql", "asyncmy.errors", "MySQLdb", "mssql_python", "pymssql")
"""Drivers that set an isolation level by a statement, whose errors SQLAlchemy passes on as they are."""


def perform(connection: Connection, query: Query) -> Rows:
    if connection.dialect.name == "postgresql":
        leads_directly(connection)
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


def leads_directly(connection: Connection) -> bool:
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


def commit_alone(connection: Connection, request: Query, level: str) -> Rows:
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
    except failures() as error:
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


ORIGIN = "retrysafe_origin"
"""The attribute of a pool of ours for the user's, which leads where ours does."""
_USED = "retrysafe_used"


def _was_used(connection: Connection) -> bool:
    return _USED in connection.info


def _passes_by_another(connection: Connection, error: Exception, used: bool) -> bool:
    """Let our pool replace its connections, whose error it is; whether a new one may do better."""
    pool = connection.engine.pool
    if not hasattr(pool, ORIGIN):
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
        self._used, self._begins = False, True
        self._undone = False
        """True if nothing of the work is left to be committed."""
        self._choice: list[str] | None = None
        """The tenant's schema that the connection had chosen at the latest request."""

    def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Copy):
            raise ConfigurationError("A SQLAlchemy engine cannot rotate partitions: give the store as a URL.")
        try:
            if request.control is not None:
                return self._control(request)
            self._end_savepoint_before(request)
            connection = self._connection()
            if request.params.get("own_schema") is not None:
                self._choice = tenants.check_schema(connection, self._choice, ended="lease" not in request.params)
            if request.writes and _has_ended(connection):
                return Rows([], 0)  # the handler ended the transaction: the write must not commit alone
            rows = in_turn(request, lambda query: perform(connection, query))
        except (exc.PendingRollbackError, exc.ResourceClosedError) as error:
            if error.code == _LOST:
                raise StoreUnavailable(str(error)) from error
            raise TransactionEnded from error
        except failures() as error:
            fail(error, passes=self._passes_by_another(error))
        self._begins = False
        return rows

    def _passes_by_another(self, error: Exception) -> bool:
        """Tell whether a new connection may do better; SQLAlchemy replaces those that a failover has cut by itself."""
        if getattr(error, "connection_invalidated", False):
            return self._used and self._begins
        return is_of_connection(error) and _passes_by_another(self._connection(), error, self._used)

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
        late = {"isolation_level", tenants.TRANSLATES}.intersection(execution_options or ())
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
        if not tenants.are_watched(connection.engine):
            tenants.watch(connection.engine)
        try:
            _let_listeners_begin(connection)
            _refuse_autocommit(connection)
            refuse_encoding(_dbapi(connection))
            _begin(connection, "BEGIN IMMEDIATE")
        except failures() as error:
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
    return identity.pool(getattr(lent_by, ORIGIN, lent_by)), found


def refuse_driver(dialect: Any, argument: str) -> None:
    """Raise `ConfigurationError` for a driver of SQL Server whose errors and parameters we do not know."""
    if dialect.name == "mssql" and dialect.driver not in ("mssqlpython", "pymssql"):
        raise ConfigurationError(
            f"{argument} is of an engine on mssql+{dialect.driver}; for SQL Server it is mssql+mssqlpython (SQLAlchemy "
            "2.1) or mssql+pymssql."
        )
