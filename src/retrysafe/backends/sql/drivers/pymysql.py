"""PyMySQL: connections of our own, and the caller's connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers.base import arguments
from retrysafe.backends.sql.drivers.deadline import timely
from retrysafe.backends.sql.drivers.pool import Size, is_quiet
from retrysafe.backends.sql.drivers.pooled import PooledDriver
from retrysafe.protocol.requests import Query, Rows


class PymysqlDriver(PooledDriver[Any]):
    """PyMySQL, for sync code."""

    kind = "mysql"
    failures = (pymysql.MySQLError, OSError)

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        super().__init__(size)
        self._options = options

    def open(self) -> Any:
        connection: Any = Connection(**self._options, autocommit=True, defer_connect=True)
        with timely(connection, deadline.DEADLINE):
            connection.connect()
        return connection

    def is_idle(self, connection: Any, /) -> bool:
        return bool(connection.open) and not _is_in_transaction(connection) and bool(connection.get_autocommit())

    def is_usable(self, connection: Any, /) -> bool:
        return is_quiet(connection._sock.fileno())

    def hang_up(self, connection: Any, /) -> None:
        """Close without a goodbye, which a server that is gone would keep waiting."""
        connection._force_close()

    @staticmethod
    def perform(connection: Any, query: Query, /) -> Rows:
        sql, args = arguments(query, "%s")
        with (
            timely(connection, deadline.of(query)),
            connection.cursor(Cursor) as cursor,
        ):  # not the cursors of the user's connection
            cursor.execute(sql, tuple(args))
            rows = list(cursor.fetchall()) if cursor.description else []
            return Rows(rows, cursor.rowcount)

    def end(self, connection: Any, /) -> None:
        with timely(connection, deadline.DEADLINE):
            if connection.open and _is_in_transaction(connection):
                connection.rollback()

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return bool(connection.get_autocommit()) and not _is_in_transaction(connection)

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        of = connection
        return identity.of_connection("mysql", of.host, of.port, of.db, of.user, getattr(of, "unix_socket", None))


def _is_in_transaction(connection: Any) -> bool:
    """Tell whether the server's last answer said that a transaction is open."""
    return bool((connection.server_status or 0) & SERVER_STATUS_IN_TRANS)
