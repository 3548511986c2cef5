"""pymssql: connections of our own, and the caller's connection.

Its time-out is one for all connections of the process, those of others too, so it is left alone: a server that is gone
without a word is noticed by the operating system. A lock is waited for as long as for every store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymssql

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers.base import arguments
from retrysafe.backends.sql.drivers.pool import Size
from retrysafe.backends.sql.drivers.sqlserver import SqlserverDriver, rows_of
from retrysafe.protocol.requests import Query, Rows

_ENCRYPTION = {"yes": "require", "no": "off", "strict": "strict"}


class PymssqlDriver(SqlserverDriver):
    """pymssql, for sync code."""

    failures = (pymssql.Error, OSError)

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        super().__init__(size)
        given = {name: options[name] for name in ("user", "password", "database", "port")}
        self._options = {**given, "server": options["host"], "encryption": _ENCRYPTION.get(options["encrypt"])}

    def open(self) -> Any:
        connection = pymssql.connect(**self._options, autocommit=True, login_timeout=int(deadline.DEADLINE))
        self.perform(connection, Query(f"SET LOCK_TIMEOUT {int(deadline.DEADLINE * 1000)}", {}))
        return connection

    def is_idle(self, connection: Any, /) -> bool:
        return bool(connection._conn.connected and connection.autocommit_state)

    def is_usable(self, connection: Any, /) -> bool:
        return bool(connection._conn.connected)

    @staticmethod
    def perform(connection: Any, query: Query, /) -> Rows:
        sql, args = arguments(query, "%s")
        with connection.cursor(as_dict=False) as cursor:
            cursor.execute(sql, tuple(args))
            return rows_of(cursor)

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return bool(connection.autocommit_state) and not PymssqlDriver.ask(connection, "SELECT @@TRANCOUNT")[0]

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        """Ask the server, since the library does not tell where it is connected to."""
        return "mssql", *PymssqlDriver.ask(connection, "SELECT CAST(@@SERVERNAME AS nvarchar(256)), DB_NAME()")
