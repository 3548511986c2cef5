"""Common parts of the SQL executors: parameter styles, the chain of a query, and the meaning of errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, NoReturn

from retrysafe import runtime
from retrysafe.backends.sql.drivers import refusals, sqlserver_errors
from retrysafe.errors import (
    ConfigurationError,
    RetryTransaction,
    SchemaOutdated,
    StoreMisconfigured,
    StoreUnavailable,
)
from retrysafe.protocol.exception_groups import leaves
from retrysafe.protocol.records import Finding
from retrysafe.protocol.requests import Query, Rows, TransactionEnded

PREPARED = (
    "The connection leads through a pooler such as PgBouncer, and its driver prepares statements by name: in "
    "transaction pooling the next session does not know them, or knows another statement by that name. Switch it off: "
    "statement_cache_size=0 for asyncpg (with SQLAlchemy in connect_args, with prepared_statement_cache_size=0 and "
    "prepared_statement_name_func=lambda: ''), or prepare_threshold=None for psycopg; or connect to PostgreSQL "
    "directly; or set max_prepared_statements in PgBouncer 1.21 or newer."
)
_COUNTED_NAMES = "__asyncpg_"
"""Names that every process of a driver counts from the beginning: those of one client are those of another."""


def pooler_query(pid: int) -> str:
    """Ask whether the session is the one that the client was told of, and by which name this query was prepared."""
    mine = f"pg_backend_pid() = {pid}"
    return f"SELECT {mine}, (SELECT max(name) FROM pg_prepared_statements WHERE position('{mine}' IN statement) > 0)"


def lacks_pooler(answer: Any) -> bool:
    """Judge the row; raise `ConfigurationError` if there is a pooler that does not follow the names of the driver."""
    direct, name = answer
    if not direct and str(name).startswith(_COUNTED_NAMES):
        raise ConfigurationError(f"{PREPARED} Nothing of this claim was run.")
    return bool(direct)


def status_query(pid: int) -> str:
    """`pooler_query` for a protocol without rows: the status is "SELECT 1" in the same session, else "SELECT 0"."""
    return f"SELECT 1 WHERE pg_backend_pid() = {pid}"


DIRECT_STATUS = "SELECT 1"


def not_connected(error: BaseException, path: str | None = None) -> StoreUnavailable | ConfigurationError:
    """Translate the failure to connect; ``path`` is the file of a SQLite database."""
    text = _text(error)
    if "unsupported startup parameter" in text:
        return ConfigurationError(
            f"{text}. A pooler takes no such setting when a client connects: leave it out of store= and set it in the "
            "database (ALTER ROLE … SET), or connect to PostgreSQL directly."
        )
    return _find_misconfigured(error, text, path) or StoreUnavailable(text, unsent=True)


_POSTGRESQL = "utf8", "psycopg.connect(…, client_encoding='utf8'), or SET client_encoding TO 'UTF8'"
_MYSQL = "utf8mb4", "charset='utf8mb4' where you connect, with Django in OPTIONS"


def refuse_encoding(driver: Any) -> None:
    """Refuse a driver's connection on which characters would be lost; the driver knows, no server is asked."""
    found = _encoding_of(driver)
    if found is None:
        return
    encoding, (needed, how) = found
    if encoding.lower().strip("'").replace("-", "") != needed:  # PgBouncer says what its client has written
        raise ConfigurationError(
            f"tx= is a connection with the encoding {encoding}, in which not every character can be sent and read. "
            f"Nothing of this claim was run. It has to be {needed}: {how}."
        )


def _encoding_of(driver: Any) -> tuple[str, tuple[str, str]] | None:
    """Return the encoding of the connection, the required one, and the way to set it; None: there is no choice."""
    if hasattr(driver, "character_set_name"):  # PyMySQL, asyncmy, mysqlclient
        return driver.character_set_name(), _MYSQL
    if hasattr(driver, "get_settings"):  # asyncpg
        return driver.get_settings().client_encoding, _POSTGRESQL
    if hasattr(driver, "info"):  # psycopg
        return driver.info.parameter_status("client_encoding"), _POSTGRESQL
    return None


SEARCH_PATH = "search_path is set to another schema than that of store=, or was in a session that a pooler lent to it"


def other_schema_error(reason: str, *, ended: bool = False) -> ConfigurationError:
    """The refusal of a claim without a tenant where each tenant has a schema, for the ``reason`` that says so.

    ``ended``: its work has run, in a transaction that the refusal undoes.
    """
    done = "The transaction of the work is undone" if ended else "Nothing was run"
    return ConfigurationError(
        f"The claim is made under the schema of one tenant ({reason}), and names no tenant: with the same key, another "
        f"tenant would get its answer. {done}. Give Boundary(…, scope=…) what names the tenant, such as a "
        "function that returns the schema, or name it in claim(key, scope=…)."
    )


_PARAMETER = re.compile(r"(?<!:):([a-z_]+\d*)")
RESTART_ALL = "40001"
RESTART = frozenset({RESTART_ALL, "40P01"})
_ABORTED = "25P02"
_STORE_CLASSES = frozenset({"08", "25", "53", "54", "55", "57", "58", "XX"})
"""Classes of SQLSTATE that speak of the server, the connection or its locks, not of a caller's data."""
_NO_SCHEMA = frozenset({"42P01", "42703"})
_NAME_UNKNOWN = frozenset({"26000", "42P05"})
"""The session does not know a prepared statement, or knows another by its name: a pooler has changed the session."""
LOCKED = "55P03"
_PROTOCOL = "08P01"
_SERVER_AWAY = frozenset({"25006", "53300", "57P01", "57P02", "57P03"})
"""States of a server that is read-only, full, shut down or starting: no statement is to blame for them."""
_READ_ONLY, _UNSUPPORTED = "25006", "0A000"
_OF_CONNECTION = _NO_SCHEMA | _NAME_UNKNOWN | {_READ_ONLY, _UNSUPPORTED, "42501"}
"""States of a statement that may succeed on a new connection, after a failover or a change of settings, role or tables.

Of our statements none is unsupported but one whose prepared plan a changed table has invalidated.
"""
_POOL_EXHAUSTED = "3o7r"
"""SQLAlchemy's code for a pool whose connections are all lent."""
_LOST_CONNECTIONS = frozenset({"psycopg.OperationalError", "psycopg2.OperationalError", "asyncpg.InternalClientError"})
"""Errors that drivers raise without a SQLSTATE if there is no connection, or none any more."""
NO_SAVEPOINT = "3B001"
_ENDED = frozenset({NO_SAVEPOINT, "25P01"})
NO_CONSTRAINT = "42P10"
_MYSQL_STATES = {
    **dict.fromkeys((1020, 1213, 3101), RESTART_ALL),
    **dict.fromkeys((1205, 3572), LOCKED),
    1305: NO_SAVEPOINT,
    1242: "21000",
    1146: "42P01",
    1054: "42703",
    **dict.fromkeys((1290, 1792, 1836, 3100), "25006"),  # read-only: a replica, or a primary that was demoted
    **dict.fromkeys((1021, 1041, 1114), "53100"),
    **dict.fromkeys((1040, 1203, 1226), "53300"),
    **dict.fromkeys((1153, 1301, 2020), "54000"),  # larger than max_allowed_packet
    **dict.fromkeys((1053, 1079, 1927), "57P01"),
    **dict.fromkeys((1317, 1907, 1969, 3024), "57014"),
    **dict.fromkeys((0, 1158, 1159, 1160, 1161, 1184, 1429, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 4031), "08S01"),
    **dict.fromkeys((1042, 1043, 1044, 1045, 1047, 1049, 1129, 1130, 1698), "08004"),
    **dict.fromkeys((1028, 1030, 1180, 1181, 1187, 1194), "XX000"),
}
"""Errors of MySQL and MariaDB, and of their drivers, as the SQLSTATE that means the same elsewhere."""
_SQLITE_BUSY = 5
_SQLITE_ERROR = 1
"""The code of a statement that SQLite does not take, by its names or its syntax: ours are right."""
MIGRATE = "Run:  retrysafe migrate --store URL"

ABORTED = (
    "An earlier error in the transaction has aborted it, so nothing in it can be committed: roll it back. "
    "To go on after a statement that may fail, put a savepoint around it."
)
AUTOCOMMIT = (
    "tx= is a connection in autocommit mode, so the claim and the work could not commit together. "
    "Begin a transaction first, and pass the connection inside it."
)

ENGINE_AUTOCOMMIT = (
    "store= is an engine in AUTOCOMMIT mode, so what is done in a transaction of the boundary's own would not be "
    "rolled back with it. Nothing was run. Give an engine that begins transactions: create_engine(…) without "
    "isolation_level='AUTOCOMMIT' and without autocommit in connect_args=, or this one with "
    "engine.execution_options(isolation_level='READ COMMITTED')."
)


@lru_cache(maxsize=512)
def positional(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Render ``:name`` parameters in a positional style ("?", "%s" or "$"), with the names in order."""
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if style == "$":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return style

    return _PARAMETER.sub(replace, sql.replace("%", "%%") if style == "%s" else sql), tuple(names)


def arguments(query: Query, style: str) -> tuple[str, list[Any]]:
    sql, names = positional(query.sql, style)
    return sql, [query.params[name] for name in names]


def in_turn(query: Query, perform: Callable[[Query], Rows]) -> Rows:
    """Perform a query, and what it names to follow as long as there is no row."""
    while True:
        try:
            rows = perform(query)
            following = query.written if query.written and rows.affected else query.otherwise
        except Exception as error:  # noqa: BLE001 - only what the query names is an answer
            rows, following = NO_ROWS, follow_refusal(query, error)
        if rows.rows or following is None:
            return rows
        query = following


async def ain_turn(query: Query, perform: Callable[[Query], Awaitable[Rows]]) -> Rows:
    while True:
        try:
            rows = await perform(query)
            following = query.written if query.written and rows.affected else query.otherwise
        except Exception as error:  # noqa: BLE001 - only what the query names is an answer
            rows, following = NO_ROWS, follow_refusal(query, error)
        if rows.rows or following is None:
            return rows
        query = following


NO_ROWS = Rows([], 0)


def follow_refusal(query: Query, error: Exception) -> Query | None:
    """Return the query that follows an error which is an answer; raise any other error."""
    state = sqlstate(error) if query.refusals else None
    if state is None or state not in query.refusals:
        raise error
    return query.refusals[state]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also when SQLAlchemy or Django has wrapped it."""
    for candidate in (error, _drivers(error), _drivers(error).__cause__):
        ours = sqlserver_errors.state_of(candidate) or _mysql_state(candidate) or _sqlite_state(candidate)
        state = ours or _state(candidate)
        if isinstance(state, str):
            return state
    return None


def _state(error: BaseException | None) -> object:
    """As psycopg and asyncpg name it, psycopg2, or pg8000."""
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if found is None and error is not None and error.args and isinstance(error.args[0], dict):
        return error.args[0].get("C")
    return found


def _drivers(error: BaseException) -> BaseException:
    """The driver's error inside the one that SQLAlchemy or Django made of it."""
    wrapped = error.__cause__ if type(error).__module__ == "django.db.utils" else getattr(error, "orig", None)
    return wrapped or error


def _mysql_state(error: BaseException | None) -> str | None:
    """The SQLSTATE by the number of a MySQL error, which says more than the one that its server sends."""
    if not any(kind.__name__ == "MySQLError" for kind in type(error).__mro__):
        return None
    number = error.args[0] if error is not None and error.args else None
    return _MYSQL_STATES.get(number, "HY000") if isinstance(number, int) else "08S01"


def wants_restart(error: BaseException) -> bool:
    """Tell whether the database asked for the whole transaction again: serialization failure or deadlock.

    Of a group, one error is enough, for nothing of the transaction is left; but not if the work was interrupted too.
    """
    found = leaves(error)
    asked = any(isinstance(leaf, RetryTransaction) or sqlstate(leaf) in RESTART for leaf in found)
    return asked and all(isinstance(leaf, Exception) for leaf in found)


_SQLITE_STATES = {"no such savepoint": NO_SAVEPOINT, "ON CONFLICT clause does not match": NO_CONSTRAINT}


def _sqlite_state(error: BaseException | None) -> str | None:
    """The SQLSTATE of the errors of SQLite's that are answers; they have no numbers of their own."""
    if type(error).__module__ != "sqlite3":
        return None
    return next((state for text, state in _SQLITE_STATES.items() if str(error).startswith(text)), None)


_USERS_OWN = frozenset(
    {"IntegrityError", "DataError", "IntegrityConstraintViolationError", "TriggeredDataChangeViolationError"}
)
"""Class names, in every driver, of errors that the user's data caused: they surface at a flush or commit."""


def fail(error: Exception, *, alone: bool = False, path: str | None = None, passes: bool = False) -> NoReturn:
    """Raise the error of ours that a driver's error amounts to; what the user's data caused stays as it is.

    ``alone``: the statement was in a transaction of its own, which can simply be put again. ``path`` is the file of a
    SQLite database, where that is known. ``passes``: nothing was done, and a new connection may do better.
    """
    mine = translate(error, alone=alone, path=path)
    if passes:
        mine = StoreUnavailable(_text(error), transient=True) if alone else RetryTransaction(_text(error))
    if mine is error:
        raise error
    raise mine from error


def translate(error: Exception, *, alone: bool = False, path: str | None = None) -> Exception:
    if not _USERS_OWN.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return error
    state = sqlstate(error)
    text = _text(error)
    if "retrysafe_" in text and (state in _NO_SCHEMA or "no such" in text):
        first = text.splitlines()[0]
        return SchemaOutdated(
            f"{first}. {MIGRATE}. If this came from tx=, it may be on another database than store=, or have a "
            "search_path without the schema of retrysafe's tables."
        )
    if state is None and getattr(_drivers(error), "sqlite_errorcode", None) == _SQLITE_ERROR:
        return error
    if getattr(error, "code", None) == _POOL_EXHAUSTED:
        more = larger("pool_size= and max_overflow= of create_engine")
        return StoreUnavailable(f"{text}. To have more, {more}.", unsent=True, more_connections=more)
    misconfigured = _find_misconfigured(error, text, path)
    if misconfigured is not None:
        return misconfigured
    if state in _NAME_UNKNOWN:
        return StoreUnavailable(f"{text}. {PREPARED}")
    if state is not None and not alone:
        if state in RESTART:
            return RetryTransaction(text)
        if state == _ABORTED:
            return TransactionEnded(ABORTED)
        if state in _ENDED:
            return TransactionEnded()
        if state[:2] not in _STORE_CLASSES:
            return error
    if _was_busy(error):
        told = "Another transaction holds the file: if it is an open one of yours, give it as tx=, or end it before"
        return StoreUnavailable(f"{text}. {told}", unsent=True)
    return StoreUnavailable(text, transient=alone and state in RESTART)


def larger(pool: str) -> str:
    """Advice for more connections than the pool of the caller's has, beside which ours are."""
    return f"make the pool that was given as store= larger ({pool}): ours has its size"


def _text(error: BaseException) -> str:
    return str(_drivers(error)).strip() or type(error).__name__


def _find_misconfigured(error: BaseException, text: str, path: str | None) -> StoreMisconfigured | None:
    """The error for what a person has to mend, with what to do; None for any other."""
    driver = _drivers(error)
    kinds = {kind.__name__ for kind in type(driver).__mro__}
    code = getattr(driver, "sqlite_errorcode", None)
    if code is not None:
        remedy = refusals.of_sqlite(code, path)
    elif "MySQLError" in kinds:
        remedy = refusals.of_mysql(driver.args[0] if driver.args else None)
    elif sqlserver_errors.is_ours(driver):
        remedy = sqlserver_errors.find_remedy(driver)
    else:
        remedy = refusals.of_postgresql(sqlstate(error), text)
    if remedy is None:
        return None
    return StoreMisconfigured(f"{'' if path is None else f'{path}: '}{text.rstrip('.')}. {remedy}", unsent=True)


def find_unreplicated(source: str | None, text: str | None) -> Finding | None:
    """Turn a notice of PostgreSQL into a finding if it reports a commit whose wait for a synchronous replica was ended.

    ``source`` is the function of the server that said it; the text may be in any language.
    """
    if source != "SyncRepWaitForLSN":
        return None
    return Finding(
        "warn",
        "synchronous_replication",
        f"A commit is on this server, and perhaps on no replica: a failover may lose it. The server says: {text}",
    )


def ignore_notice(finding: Finding) -> None:
    """Ignore a notice that arrives while the connection is idle."""


def is_unreachable(error: BaseException) -> bool:
    """Tell whether a driver's error says that its server cannot be reached, is full, or takes no writes for now."""
    state = sqlstate(error)
    if state is not None:
        return (state.startswith("08") and state != _PROTOCOL) or state in _SERVER_AWAY
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(_drivers(error)).__mro__}
    return not _LOST_CONNECTIONS.isdisjoint(names)


def is_of_connection(error: BaseException) -> bool:
    """Tell whether an error says that this connection, not the statement on it, is to blame. Nothing was done then."""
    return sqlstate(error) in _OF_CONNECTION


def _was_busy(error: Exception) -> bool:
    """Tell whether SQLite refused because of another writer: then nothing was done, and we have waited already."""
    code = getattr(_drivers(error), "sqlite_errorcode", 0)
    return code & 0xFF == _SQLITE_BUSY


def this_process() -> Callable[[], bool]:
    """A test that is true until a fork: what a child inherits, it must not end."""
    pid = runtime.pid
    return lambda: runtime.pid == pid
