"""Django: the aliases of DATABASES, and the atomic blocks of this thread.

Leased requests go over connections of our own, made from the alias's settings, because the thread's
connection may be in an atomic block of the user's. Transactions are atomic blocks on the thread's
connection, so that the ORM works inside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import django.db
from django.core import mail
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionDoesNotExist, ConnectionProxy

from retrysafe.backends.spec import Joining, refuse_kind
from retrysafe.backends.sql.drivers.base import (
    arguments,
    fail,
    in_turn,
    not_connected,
    other_schema_error,
    refuse_encoding,
    this_process,
)
from retrysafe.backends.sql.drivers.pool import LONGEST_LIFE, Pool, Size
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool, refuse_connection
from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Query, Rows

_DEADLINES: dict[str, dict[str, Any]] = {
    "postgresql": {
        "connect_timeout": 10,
        "tcp_user_timeout": 10_000,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    },
    "mysql": {"connect_timeout": 10, "read_timeout": 10, "write_timeout": 10},
}
"""Vendor → options of our own connections, under those that DATABASES gives: a silent server counts as gone."""

_IMPATIENT: dict[str, dict[str, Any]] = {"sqlite": {"timeout": 0.15}}
"""Vendor → options of the heartbeat's connections: a renewal is tried again long before the lease lapses."""

_SIZE = Size(more="give store= as a URL with another number (?pool=20)")

MARKED = (
    "An earlier error in the atomic block has marked it for rollback, so nothing in it can be committed. "
    "Let the error leave the block; to go on after a statement that may fail, put transaction.atomic() around it."
)
ON_A_LOOP = (
    "Django's connections are sync, and an event loop is running in this thread: put the whole guarded function "
    "into asgiref.sync.sync_to_async, or use a boundary on a URL. For an async class-based view, guard its async def "
    "post, or as_view(), not dispatch."
)


# ---------------------------------------------------------------- aliases


def names(alias: str) -> bool:
    try:
        return alias in connections
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(
            f"store={without_password(alias)!r} looks like an alias of Django's DATABASES, but Django is not "
            f"configured: set DJANGO_SETTINGS_MODULE first. {error}"
        ) from error


def known() -> str:
    return ", ".join(repr(alias) for alias in connections)


def vendor(alias: str) -> str:
    """The kind of database behind an alias; opens no connection."""
    try:
        wrapper: Any = connections[alias]
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"store={alias!r}: {error}") from error
    if wrapper.vendor == "postgresql" and wrapper.Database.__name__ != "psycopg":
        raise ConfigurationError(
            f"store={alias!r}: Django uses psycopg2; retrysafe needs psycopg 3 (pip install psycopg)."
        )
    return str(wrapper.vendor)


def address(alias: str) -> str:
    return f"Django alias {alias!r}"


def file_name(alias: str) -> str | None:
    """The file of an alias, if its database is SQLite."""
    connection = connections[alias]
    return str(connection.settings_dict["NAME"]) if connection.vendor == "sqlite" else None


def connection_of(tx: str | BaseDatabaseWrapper | ConnectionProxy) -> BaseDatabaseWrapper:
    """The connection of this thread that ``tx=`` names or stands for."""
    if isinstance(tx, BaseDatabaseWrapper):
        return tx
    alias = tx if isinstance(tx, str) else tx.alias
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        raise ConfigurationError(f"tx={alias!r} is no alias of Django's DATABASES, which has {known()}.") from error
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"tx={alias!r} is a string, so it must be an alias in DATABASES: {error}") from error


# ---------------------------------------------------------------- performing


def perform(connection: BaseDatabaseWrapper, query: Query) -> Rows:
    sql, args = arguments(query, "%s")
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            _detect_pooler(connection.connection)
        cursor.execute(sql, args)
        if cursor.description is None:
            return Rows([], cursor.rowcount)
        rows = [tuple(row) for row in cursor.fetchall()]
    return Rows(rows, len(rows))


def _detect_pooler(driver: Any) -> None:
    """Django prepares nothing by name, unless OPTIONS says so (prepare_threshold and server_side_binding)."""
    if driver.prepare_threshold is not None:
        from retrysafe.backends.sql.drivers.psycopg import detect_pooler

        detect_pooler(driver)


@contextmanager
def _translating(alias: str, *, alone: bool = False) -> Iterator[None]:
    """Raise the errors of ours that Django's amount to."""
    try:
        yield
    except SynchronousOnlyOperation as error:
        raise ConfigurationError(ON_A_LOOP) from error
    except TransactionManagementError as error:
        raise ConfigurationError(MARKED) from error
    except django.db.Error as error:
        fail(error, alone=alone, path=file_name(alias))


class InAtomic:
    """An executor on a connection in an atomic block."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.handle: Any = connection
        self.execute = self

    def __call__(self, request: Query, /) -> Rows:
        # SQLite may be in no transaction although Django believes so; PostgreSQL's records tell it
        if request.writes and self.handle.vendor == "sqlite" and not self.handle.connection.in_transaction:
            return Rows([], 0)  # the handler ended the transaction by SQL: the write must not commit alone
        with _translating(self.handle.alias), transaction.mark_for_rollback_on_error(using=self.handle.alias):
            return in_turn(request, lambda query: perform(self.handle, query))


def join(tx: Any, kind: str, store: str) -> Joining:
    """An executor on the caller's atomic block, which must be on the alias that the store has, if it is one."""
    connection = connection_of(tx)
    refuse_kind(connection.vendor, kind)
    mine = address(connection.alias)
    if store.startswith(address("")[:-1]) and store != mine:
        raise ConfigurationError(f"tx= is on {mine}, but store= is {store}: they cannot commit together.")
    try:
        connection.validate_thread_sharing()
    except django.db.Error as error:
        raise ConfigurationError(f"tx= is a connection of another thread. Pass tx={connection.alias!r}.") from error
    if not connection.in_atomic_block:
        using = "" if connection.alias == django.db.DEFAULT_DB_ALIAS else repr(connection.alias)
        raise ConfigurationError(
            f"tx= is {mine}, which is in no atomic block of this thread: the claim and the work could not commit "
            f"together. Use `with transaction.atomic({using}):` around the claim."
        )
    driver: Any = connection.connection
    if connection.vendor == "sqlite":
        refuse_connection(driver)
    refuse_encoding(driver)
    return Joining(InAtomic(connection), None, connection, ("django", connection.alias), connection.vendor)


# ---------------------------------------------------------------- the boundary's own transactions


class _Undone(Exception):
    """Leaves an atomic block so that it rolls back."""


class OwnAtomic(InAtomic):
    """An atomic block that we open and end, with a savepoint inside that Django knows of: it drops hooks with it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        super().__init__(connection)
        self._block: Any = None
        self._savepoint: str | None = None
        self._hooks: list[Any] = []

    def __call__(self, request: Query, /) -> Rows:
        if request.control is None:
            return super().__call__(request)
        with _translating(self.handle.alias):
            match request.control:
                case "begin":
                    self._begin()
                case "savepoint":
                    self._savepoint = self.handle.savepoint()
                    self.handle.savepoint_ids.append(self._savepoint)
                case "rollback_to_savepoint":
                    self._back_to_savepoint()
                case "commit":
                    self._commit()
                case _:
                    self.roll_back()
        return Rows([], 0)

    def _begin(self) -> None:
        connection = self.handle
        if connection.in_atomic_block and not _is_tests_own(connection):
            raise ConfigurationError(
                "A transactional claim was made inside an atomic block (or ATOMIC_REQUESTS) on "
                f"{address(connection.alias)}, whose commit it could not wait for. Pass tx={connection.alias!r} "
                "to join it, or make the claim outside it (@transaction.non_atomic_requests)."
            )
        if not connection.in_atomic_block and not connection.get_autocommit():
            raise ConfigurationError(
                f"{address(connection.alias)} has AUTOCOMMIT switched off, so Django's atomic blocks do not commit. "
                "Switch it on, or manage the transaction yourself and pass tx=."
            )
        block: Any = transaction.atomic(using=connection.alias, durable=True)
        block.__enter__()
        self._block = block

    def _back_to_savepoint(self) -> None:
        savepoint = self._forget_savepoint()
        self.handle.needs_rollback = False
        self.handle.savepoint_rollback(savepoint)

    def _forget_savepoint(self) -> str | None:
        """Let go of it without a word to the database: it ends with the transaction."""
        savepoint, self._savepoint = self._savepoint, None
        if savepoint in self.handle.savepoint_ids:
            self.handle.savepoint_ids.remove(savepoint)
        return savepoint

    def _leave(self, error: Exception | None = None) -> None:
        self._forget_savepoint()
        block, self._block = self._block, None
        block.__exit__(None if error is None else type(error), error, None)

    def _commit(self) -> None:
        """Commit, and set aside the user's on_commit hooks: they must not run before all is recorded."""
        connection = self.handle
        if connection.needs_rollback:  # then Django would roll back without a word
            raise ConfigurationError(MARKED)
        self._hooks, connection.run_on_commit = connection.run_on_commit, []
        self._leave()  # if its reply is lost, the record tells whether it came to pass, and so whether the hooks run
        if connection.in_atomic_block:  # a test's, which is never committed
            connection.run_on_commit, self._hooks = self._hooks, []

    def after_commit(self) -> None:
        hooks, self._hooks = self._hooks, []
        if hooks:
            self.handle.run_on_commit = hooks
            self.handle.run_and_clear_commit_hooks()

    def roll_back(self) -> None:
        """Leave the block if it is still open, so that it rolls back."""
        if self._block is not None:
            self._leave(_Undone())


# ---------------------------------------------------------------- Django's tests


def _is_in_test(connection: Any) -> bool:
    """Tell whether a Django TestCase holds a transaction around everything, which it rolls back in the end."""
    return any(block._from_testcase for block in connection.atomic_blocks)


def _is_tests_own(connection: Any) -> bool:
    """Tell whether the innermost atomic block is a TestCase's, not the code's under test."""
    return bool(connection.atomic_blocks) and connection.atomic_blocks[-1]._from_testcase


def _is_test_run() -> bool:
    """Tell whether Django's test environment is set up: its databases are dropped, so nothing may stay connected."""
    return hasattr(mail, "outbox")


# ---------------------------------------------------------------- the client


class _Own(Pool[Any]):
    """Connections with the settings of an alias, which live as long as CONN_MAX_AGE says."""

    def __init__(self, alias: str, *, impatient: bool) -> None:
        super().__init__(_SIZE)
        self._alias = alias
        self._impatient = impatient

    def connect(self) -> Any:
        return _connect(_make(connections[self._alias], impatient=self._impatient))

    def is_idle(self, connection: Any, /) -> bool:
        broken = connection.errors_occurred
        with suppress(django.db.Error):
            connection.close_if_unusable_or_obsolete()
        if connection.connection is None:
            if broken:
                self.retire_all()  # the others were connected to the same server
            return False
        return not _is_test_run()

    def is_usable(self, connection: Any, /) -> bool:
        return _place(connection) == _place(connections[self._alias])  # a test run moves the alias to another database

    def hang_up(self, connection: Any, /) -> None:
        with suppress(django.db.Error):
            connection.close()


class DjangoClient:
    """Connections of our own, up to ten to a server, with the settings of an alias.

    In a TestCase, whose transaction no other connection can look into, and on a database in memory, requests go
    over the thread's connection.
    """

    def __init__(self, alias: str, *, impatient: bool = False) -> None:
        self._alias = alias
        self._impatient = impatient
        self._own = _Own(alias, impatient=impatient)
        self._file: SqlitePool[_OnFile] | None = None
        self._closed = False

    def __call__(self, request: Query, /) -> Rows:
        threads: Any = connections[self._alias]
        if own := request.params.get("own_schema"):
            _refuse_other_schema(threads, own)
        _refuse_waiting_for_itself(threads, request)
        if _is_in_test(threads) or _is_in_memory(threads):
            return self._perform(threads, request)
        if threads.vendor == "sqlite":
            with Borrowed(self._file_of(threads)) as lent:
                return self._perform(lent.wrapper, request)
        with self._own.borrow() as borrowed:
            return self._perform(_connect(borrowed.connection), request, borrowed.passes_by_another)

    def _perform(
        self, connection: Any, request: Query, passes_by_another: Callable[[Exception], bool] = lambda error: False
    ) -> Rows:
        with _translating(self._alias, alone=True):
            try:
                return in_turn(request, partial(perform, connection))
            except django.db.Error as error:
                if passes_by_another(error):
                    fail(error, alone=True, passes=True)
                raise

    @contextmanager
    def transaction(self) -> Iterator[OwnAtomic]:
        here = this_process()
        opened = OwnAtomic(connections[self._alias])
        try:
            yield opened
        finally:
            if here():
                with suppress(django.db.Error):
                    opened.roll_back()

    def close(self) -> None:
        self._closed = True
        self._own.close()
        if self._file is not None:
            self._file.close()

    def _file_of(self, like: Any) -> SqlitePool[_OnFile]:
        """Our connections to the file of a SQLite alias, of which a forked child inherits none."""
        name = str(like.settings_dict["NAME"])
        path = os.path.realpath(url2pathname(urlsplit(name).path) if name.startswith("file:") else name)
        file = self._file
        if file is None or file.path != path:
            if file is not None:
                file.close()  # a test run has moved the alias to another database
            self._file = file = SqlitePool(path, partial(_open, self._alias, impatient=self._impatient))
            if self._closed:
                file.close()
        return file


class _OnFile:
    """A connection of our own to a SQLite file."""

    file: tuple[int, int] | None = None

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._driver = wrapper.connection

    def reset(self) -> bool:
        """Make it ready to be lent again, and tell whether it may be: as long as CONN_MAX_AGE says."""
        with suppress(django.db.Error):
            self.wrapper.close_if_unusable_or_obsolete()
        return self.wrapper.connection is not None and not _is_test_run()

    def close(self) -> None:
        """Close it, also before a fork on an event loop, where Django refuses to."""
        self._driver.close()

    abandon = close


def _open(alias: str, *, impatient: bool) -> _OnFile:
    wrapper = _make(connections[alias], impatient=impatient)
    try:
        return _OnFile(_connect(wrapper))
    except BaseException:
        if wrapper.connection is not None:
            wrapper.connection.close()
        raise


def _make(like: Any, *, impatient: bool) -> Any:
    """A connection with the alias's settings as they are now, in autocommit mode, for one thread after another."""
    settings = dict(like.settings_dict)
    options = dict(settings["OPTIONS"])
    if options.pop("pool", None):  # a request that holds a connection of it must not wait for a second one
        settings["CONN_MAX_AGE"] = LONGEST_LIFE
    options = {**_DEADLINES.get(like.vendor, {}), **options}
    if impatient:
        options = {**options, **_IMPATIENT.get(like.vendor, {})}
    settings.update(AUTOCOMMIT=True, OPTIONS=options)
    connection = type(like)(settings, like.alias)
    connection.inc_thread_sharing()
    return connection


def _connect(connection: Any) -> Any:
    try:
        connection.ensure_connection()
    except SynchronousOnlyOperation as error:
        raise ConfigurationError(ON_A_LOOP) from error
    except ImproperlyConfigured as error:
        raise ConfigurationError(str(error)) from error
    except django.db.Error as error:
        raise not_connected(error, file_name(connection.alias)) from error
    return connection


def _place(connection: Any) -> tuple[Any, ...]:
    return tuple(connection.settings_dict[name] for name in ("NAME", "HOST", "PORT", "USER"))


def _is_in_memory(connection: Any) -> bool:
    if connection.vendor != "sqlite" or not connection.is_in_memory_db():
        return False
    if connection.settings_dict["NAME"] == ":memory:":
        raise ConfigurationError(
            f"{address(connection.alias)} is ':memory:', another database for every thread: give it a file, "
            "or 'file:name?mode=memory&cache=shared' as Django's tests do."
        )
    return True


def _refuse_other_schema(connection: Any, own: str) -> None:
    """Raise `ConfigurationError` where the request works in another schema than our own connections do.

    Asked past Django, whose log and counts of queries are the user's; what never connected has set nothing.
    """
    if connection.vendor != "postgresql" or connection.connection is None or connection.needs_rollback:
        return
    schema = getattr(connection, "schema_name", None)  # of django-tenants, which sets it with the next statement
    if schema is None:
        with suppress(connection.Database.Error), connection.connection.cursor() as cursor:
            cursor.execute("SELECT current_schema()")
            schema = cursor.fetchone()[0]
    if schema and schema != own:
        raise other_schema_error(f"search_path is set to {schema} on Django's connection")


def _refuse_waiting_for_itself(connection: Any, request: Query) -> None:
    """SQLite has one writer: another connection would wait for the atomic block that waits for it."""
    writes = request.writes or request.otherwise is not None
    if writes and connection.vendor == "sqlite" and connection.in_atomic_block and not _is_tests_own(connection):
        raise ConfigurationError(
            "A leased record was to be written inside an atomic block (or ATOMIC_REQUESTS) on "
            f"{address(connection.alias)}. SQLite has one writer, so it would wait for that block. Make the claim "
            "outside it (@transaction.non_atomic_requests), or use effects='transactional' with tx=."
        )
