"""mssql-python, Microsoft's driver: connections of our own, and the caller's connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mssql_python

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers.base import arguments
from retrysafe.backends.sql.drivers.pool import Size
from retrysafe.backends.sql.drivers.sqlserver import SqlserverDriver, rows_of
from retrysafe.protocol.requests import Query, Rows


class MssqlPythonDriver(SqlserverDriver):
    """mssql-python, for sync code."""

    failures = (mssql_python.Error, mssql_python.ConnectionStringParseError, OSError, RuntimeError)

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        super().__init__(size)
        # its own pool would lend connections of the parent to a forked child
        mssql_python.pooling(enabled=False)
        named = {
            "Server": f"{options['host']},{options['port']}",
            "Database": options["database"],
            "UID": options["user"],
            "PWD": options["password"],
            "Encrypt": options["encrypt"],
            "TrustServerCertificate": options["trust_server_certificate"],
        }
        self._text = ";".join(f"{name}={_quote(value)}" for name, value in named.items() if value is not None)

    def open(self) -> Any:
        return mssql_python.connect(self._text, autocommit=True, timeout=int(deadline.DEADLINE))

    def is_idle(self, connection: Any, /) -> bool:
        return not connection.closed and bool(connection.autocommit)

    @staticmethod
    def perform(connection: Any, query: Query, /) -> Rows:
        sql, args = arguments(query, "?")
        before, connection.timeout = connection.timeout, int(deadline.of(query))  # a cursor has it from its connection
        try:
            cursor = connection.cursor()
        finally:
            connection.timeout = before
        with cursor:
            cursor.execute(sql, tuple(args))
            return rows_of(cursor)

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return bool(connection.autocommit) and not MssqlPythonDriver.ask(connection, "SELECT @@TRANCOUNT")[0]

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        of = connection.getinfo
        return "mssql", of(mssql_python.SQL_SERVER_NAME), of(mssql_python.SQL_DATABASE_NAME)


def _quote(value: Any) -> str:
    return "{" + str(value).replace("}", "}}") + "}"
