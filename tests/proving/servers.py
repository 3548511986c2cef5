"""The versions of the servers and their client libraries in a run."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version

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


def server_versions() -> dict[str, str]:
    """By name; what is not there has none."""
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if url := os.environ.get("RETRYSAFE_TEST_POSTGRESQL"):
        import psycopg

        with psycopg.connect(url) as connection:
            found["PostgreSQL"] = connection.info.parameter_status("server_version") or ""
    if url := os.environ.get("RETRYSAFE_TEST_MYSQL"):
        from tests.stores.ageing import mysql_connection

        with closing(mysql_connection(url)) as connection:
            found["MariaDB"] = connection.get_server_info().removeprefix("5.5.5-")  # said to old replicas
    if url := os.environ.get("RETRYSAFE_TEST_REDIS"):
        import redis

        with closing(redis.Redis.from_url(url)) as client:
            found["Redis"] = client.info("server")["redis_version"]
    return found
