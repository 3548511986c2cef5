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
SERVICES = {"PostgreSQL": "postgresql", "MariaDB": "mysql", "Redis": "redis"} | {one: one for one in OTHER_VERSIONS}
"""The servers by the names that a run tells."""


def server_versions() -> dict[str, str]:
    """By name; what is not there has none."""
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    for name, service in SERVICES.items():
        kind, url = OTHER_VERSIONS.get(service, service), os.environ.get(variable_of(service))
        if url and kind in _ASKED:
            found[name] = _ASKED[kind](url)
    return found


def _of_postgresql(url: str) -> str:
    import psycopg

    with psycopg.connect(url) as connection:
        return connection.info.parameter_status("server_version") or ""


def _of_mysql(url: str) -> str:
    from tests.stores.ageing import mysql_connection

    with closing(mysql_connection(url)) as connection:
        return str(connection.get_server_info()).removeprefix("5.5.5-")  # said to old replicas


def _of_redis(url: str) -> str:
    import redis

    with closing(redis.Redis.from_url(url)) as client:
        told: Any = client.info("server")
        return str(told.get("valkey_version", told["redis_version"]))


_ASKED = {"postgresql": _of_postgresql, "mysql": _of_mysql, "redis": _of_redis}
