"""SQL stores: statements built from the transition table; a dialect overrides what its database needs.

Instants are BIGINT microseconds since the Unix epoch on the database's clock, so there is no time
zone anywhere. Every statement reads that clock once, as ``t.now``.
"""

from retrysafe.backends.spec import BackendSpec

BACKEND = BackendSpec(
    package=__name__,
    stores=("sqlite:SqliteStore", "postgresql:PostgresqlStore", "mysql:MysqlStore"),
    time_travel={"store:SqlStore": "time_travel:age", "mysql:MysqlStore": "time_travel:age_mysql"},
    schemes={
        "sqlite": "urls:sqlite",
        "postgresql": "urls:postgresql",
        "postgres": "urls:postgresql",
        "postgresql+psycopg": "urls:postgresql",
        "postgresql+asyncpg": "urls:asyncpg",
        "mysql": "urls:mysql",
        "mysql+pymysql": "urls:pymysql",
        "mysql+asyncmy": "urls:asyncmy",
        "mariadb": "urls:mysql",
        "mariadb+pymysql": "urls:pymysql",
        "mariadb+asyncmy": "urls:asyncmy",
    },
    absolute="urls:anchored",
    alias="urls:django",
    accepts="a SQLAlchemy engine or sessionmaker, a pool of psycopg, asyncpg or asyncmy, a Django alias or connection",
    objects={
        "sqlalchemy:Engine": "objects:of_engine",
        "sqlalchemy.ext.asyncio:AsyncEngine": "objects:of_async_engine",
        "sqlalchemy.orm:sessionmaker": "objects:of_sessionmaker",
        "sqlalchemy.ext.asyncio:async_sessionmaker": "objects:of_async_sessionmaker",
        "psycopg_pool:ConnectionPool": "objects:of_psycopg_pool",
        "psycopg_pool:AsyncConnectionPool": "objects:of_async_psycopg_pool",
        "asyncpg:Pool": "objects:of_asyncpg_pool",
        "asyncmy:Pool": "objects:of_asyncmy_pool",
    },
    footprints={
        "sqlite": "footprint:sqlite",
        "postgresql": "footprint:postgresql",
        "mysql": "footprint:mysql",
    },
    checks={kind: f"checks.{kind}:EXAMINATION" for kind in ("sqlite", "postgresql", "mysql")},
)
