"""SQL stores: statements built from the transition table; a dialect overrides what its database needs.

Instants are BIGINT microseconds since the Unix epoch on the database's clock, so there is no time
zone anywhere. Every statement reads that clock once, as ``t.now``.
"""

from typing import Any

from retrysafe.backends.spec import BackendSpec
from retrysafe.errors import ConfigurationError

BACKEND = BackendSpec(
    package=__name__,
    title="SQLite, PostgreSQL, MySQL, MariaDB, SQL Server",
    stores=("sqlite:SqliteStore", "postgresql:PostgresqlStore", "mysql:MysqlStore", "sqlserver:SqlserverStore"),
    time_travel={"store:SqlStore": "time_travel:age"},
    schemes={
        "sqlite": "urls:sqlite",
        "postgresql": "urls:postgresql",
        "postgres": "urls:postgresql",
        "postgresql+psycopg": "urls:postgresql",
        "postgresql+asyncpg": "urls:asyncpg",
        "mysql": "urls:mysql",
        "mysql+pymysql": "urls:mysql",
        "mysql+asyncmy": "urls:mysql",
        "mariadb": "urls:mysql",
        "mariadb+pymysql": "urls:mysql",
        "mariadb+asyncmy": "urls:mysql",
        "mssql": "urls:sqlserver",
        "mssql+mssqlpython": "urls:sqlserver",
        "mssql+pymssql": "urls:sqlserver",
    },
    absolute="urls:anchor",
    alias="urls:django",
    accepts="a SQLAlchemy engine or sessionmaker, a pool of psycopg, asyncpg or asyncmy, a Django alias or connection",
    objects={
        "sqlalchemy:Engine": "objects:of_engine",
        "sqlalchemy.ext.asyncio:AsyncEngine": "objects:of_async_engine",
        "sqlalchemy.orm:sessionmaker": "objects:of_sessionmaker",
        "sqlalchemy.ext.asyncio:async_sessionmaker": "objects:of_sessionmaker",
        "psycopg_pool:ConnectionPool": "drivers.psycopg:PsycopgDriver.of_pool",
        "psycopg_pool:AsyncConnectionPool": "drivers.psycopg:AsyncPsycopgDriver.of_pool",
        "asyncpg:Pool": "drivers.asyncpg:AsyncpgDriver.of_pool",
        "asyncmy:Pool": "drivers.asyncmy:AsyncmyDriver.of_pool",
    },
    transactions={
        "builtins:str": "drivers.django:join",
        "django.db.backends.base.base:BaseDatabaseWrapper": "drivers.django:join",
        "django.utils.connection:ConnectionProxy": "drivers.django:join",
        "sqlite3:Connection": "drivers.sqlite:join",
        "psycopg:Connection": "drivers.psycopg:PsycopgDriver.join",
        "psycopg:AsyncConnection": "drivers.psycopg:AsyncPsycopgDriver.join",
        "asyncpg:Connection": "drivers.asyncpg:AsyncpgDriver.join",
        "asyncpg.pool:PoolConnectionProxy": "drivers.asyncpg:AsyncpgDriver.join",
        "pymysql.connections:Connection": "drivers.pymysql:PymysqlDriver.join",
        "asyncmy.connection:Connection": "drivers.asyncmy:AsyncmyDriver.join",
        "mssql_python.connection:Connection": "drivers.mssql_python:MssqlPythonDriver.join",
        "pymssql._pymssql:Connection": "drivers.pymssql:PymssqlDriver.join",
        "sqlalchemy:Connection": "drivers.sqlalchemy:join",
        "sqlalchemy.orm:Session": "drivers.sqlalchemy:join",
        "sqlalchemy.orm:scoped_session": "drivers.sqlalchemy:join_scoped",
        "sqlalchemy.ext.asyncio:AsyncConnection": "drivers.sqlalchemy:ajoin",
        "sqlalchemy.ext.asyncio:AsyncSession": "drivers.sqlalchemy:ajoin",
        "sqlalchemy.ext.asyncio:async_scoped_session": "drivers.sqlalchemy:join_scoped",
    },
    footprints={
        "sqlite": "footprint:sqlite",
        "postgresql": "footprint:postgresql",
        "mysql": "footprint:mysql",
    },
    checks={
        **{kind: f"checks.{kind}:EXAMINATION" for kind in ("sqlite", "postgresql", "mysql")},
        "mssql": "checks.sqlserver:EXAMINATION",
    },
    steps=dict.fromkeys(("sqlite", "postgresql", "mysql"), "steps:step_store"),
)

_DIALECTS = {
    "sqlite": "sqlite:SqliteStore",
    "postgresql": "postgresql:PostgresqlStore",
    "mysql": "mysql:MysqlStore",
    "mariadb": "mysql:MysqlStore",
    "mssql": "sqlserver:SqlserverStore",
}


def store_of(dialect: str) -> Any:
    """A store of a dialect. Raises `ConfigurationError` for one that has none."""
    if dialect not in _DIALECTS:
        raise ConfigurationError(
            f"store=: a {dialect!r} database is not supported; supported are {', '.join(_DIALECTS)}."
        )
    return BACKEND.load(_DIALECTS[dialect])()
