"""PyMySQL: connections of our own, and the caller's connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    arguments,
    fail,
    in_turn,
    not_connected,
    refuse_encoding,
    this_process,
)
from retrysafe.backends.sql.drivers.deadline import PATIENCE, timely
from retrysafe.backends.sql.drivers.own import Lent, Own, Size, is_quiet
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Query, Rows

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_Failures = (pymysql.MySQLError, OSError)


class OwnConnection(Connection):  # type: ignore[misc]
    """A connection of ours."""

    def fileno(self) -> int:
        """The number of its socket."""
        number: int = vars(self)["_sock"].fileno()
        return number

    def hang_up(self) -> None:
        """Close without a goodbye, which a server that is gone would keep waiting."""
        connection: Any = self
        connection._force_close()


def perform(connection: Any, query: Query) -> Rows:
    """Perform one statement; a server that does not answer is given up at the deadline."""
    sql, args = arguments(query, "%s")
    with (
        timely(connection, PATIENCE if query.patient else DEADLINE),
        connection.cursor(Cursor) as cursor,
    ):  # not the cursors of the user's connection
        cursor.execute(sql, tuple(args))
        rows = list(cursor.fetchall()) if cursor.description else []
        return Rows(rows, cursor.rowcount)


class InTransaction:
    """An executor on one connection, inside a transaction."""

    def __init__(self, connection: Any, lent: Lent[Any] | None = None) -> None:
        self.handle = connection
        self.execute = self
        self._lent = lent

    def __call__(self, request: Query, /) -> Rows:
        try:
            return in_turn(request, lambda query: perform(self.handle, query))
        except _Failures as error:
            fail(error, passes=self._lent is not None and self._lent.passes_by_another(error))


def join(connection: Any) -> InTransaction:
    """An executor on the caller's connection."""
    if connection.get_autocommit() and not is_in_transaction(connection):
        raise ConfigurationError(AUTOCOMMIT)
    refuse_encoding(connection)
    return InTransaction(connection)


def is_in_transaction(connection: Any) -> bool:
    """Tell whether the server's last answer said that a transaction is open."""
    return bool((connection.server_status or 0) & SERVER_STATUS_IN_TRANS)


class PymysqlClient:
    """Connections of our own, in autocommit mode while no transaction is lent."""

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        self._source = Own(Connecting(options), size)

    def __call__(self, request: Query, /) -> Rows:
        lent = self._source.lent()
        with lent as connection:
            try:
                return in_turn(request, lambda query: perform(connection, query))
            except _Failures as error:
                fail(error, alone=True, passes=lent.passes_by_another(error))

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction."""
        here = this_process()
        lent = self._source.lent()
        with lent as connection:
            try:
                yield InTransaction(connection, lent)
            finally:
                if here():
                    _end(connection)

    def close(self) -> None:
        """Close the connections."""
        self._source.close()


class Connecting:
    """Opens and closes our own connections for their keeper."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def connect(self) -> OwnConnection:
        try:
            connection = OwnConnection(**self._options, autocommit=True, defer_connect=True)
            with timely(connection, DEADLINE):
                connection.connect()
        except _Failures as error:
            raise not_connected(error) from error
        return connection

    def is_idle(self, connection: OwnConnection) -> bool:
        return bool(connection.open and connection.get_autocommit() and not is_in_transaction(connection))

    def is_usable(self, connection: OwnConnection) -> bool:
        return is_quiet(connection.fileno())

    def close(self, connection: OwnConnection) -> None:
        """Hang up."""
        connection.hang_up()


def _end(connection: OwnConnection) -> None:
    """Roll back what is left open."""
    try:
        with timely(connection, DEADLINE):
            if connection.open and is_in_transaction(connection):
                connection.rollback()
    except _Failures:
        connection.hang_up()
