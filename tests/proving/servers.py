"""The versions of the servers and their client libraries in a run."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tests.versions import OTHER_VERSIONS, variable_of

LIBRARIES = (
    "psycopg",
    "asyncpg",
    "pymysql",
    "asyncmy",
    "sqlalchemy",
    "redis",
    "confluent-kafka",
    "boto3",
    "aiobotocore",
    "django",
)
_MAIN = ("postgresql", "mysql", "redis")
SERVICES = {
    "PostgreSQL": "postgresql",
    "MariaDB": "mysql",
    "MySQL": "mysql",
    "Redis": "redis",
    "Valkey": "redis",
    **{one: one for one in OTHER_VERSIONS},
}
"""The names that a run tells, and the service of each."""


def server_versions() -> dict[str, str]:
    """By name; what is not there has none."""
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    for service in (*_MAIN, *OTHER_VERSIONS):
        kind, url = OTHER_VERSIONS.get(service, service), os.environ.get(variable_of(service))
        if url and kind in _ASKED:
            product, number = _ASKED[kind](url)
            found[product if service in _MAIN else service] = number
    return found


def _of_postgresql(url: str) -> tuple[str, str]:
    import psycopg

    with psycopg.connect(url) as connection:
        return "PostgreSQL", connection.info.parameter_status("server_version") or ""


def _of_mysql(url: str) -> tuple[str, str]:
    from tests.stores.ageing import mysql_connection

    with closing(mysql_connection(url)) as connection:
        number = str(connection.get_server_info()).removeprefix("5.5.5-")  # said to old replicas
        return "MariaDB" if "MariaDB" in number else "MySQL", number


def _of_redis(url: str) -> tuple[str, str]:
    import redis

    with closing(redis.Redis.from_url(url)) as client:
        told: Any = client.info("server")
        valkey = told.get("valkey_version")
        return ("Redis", str(told["redis_version"])) if valkey is None else ("Valkey", str(valkey))


_ASKED = {"postgresql": _of_postgresql, "mysql": _of_mysql, "redis": _of_redis}
