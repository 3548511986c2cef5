"""Letting time pass for a record: its instants are moved back, behind the store's back.

Tests do so hundreds of times, and opening a connection is what takes longest: one is kept for every server.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from retrysafe.core.quotas import holder as holder_of
from retrysafe.executors.memory import wall_clock
from retrysafe.stores.redis import name_of

INSTANTS = ("lease_until", "created", "updated", "expires", "forget")
_SHIFT = ", ".join(f"{name} = {name} - {{micros}}" for name in INSTANTS)

Age = Callable[[bytes, int], None]
"""Lets so many microseconds pass for a key."""


class Kept:
    """A connection of this process's own, opened when it is needed, and anew when the server has hung up on it."""

    def __init__(self, opens: Callable[[], Any], gone: type[Exception]) -> None:
        self._opens, self._gone = opens, gone
        self._connection: Any = None

    def execute(self, sql: str, *args: Any) -> None:
        """Execute one statement, that commits by itself."""
        try:
            self._opened().execute(sql, args)
        except self._gone:
            self.close()
            self._opened().execute(sql, args)

    def _opened(self) -> Any:
        if self._connection is None:
            self._connection = self._opens()
        return self._connection.cursor()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(self._gone):
                self._connection.close()
            self._connection = None


_kept: dict[str, Kept] = {}


def close_kept() -> None:
    """Close what was kept."""
    while _kept:
        _kept.popitem()[1].close()


def age_sqlite(path: str) -> Age:
    def age(key: bytes, micros: int) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                f"UPDATE retrysafe_records SET {_SHIFT.format(micros=micros)} WHERE key_hash = ?", (key,)
            )

    return age


def age_postgresql(url: str) -> Age:
    import psycopg

    kept = _kept.setdefault(url, Kept(lambda: psycopg.connect(url, autocommit=True), psycopg.OperationalError))
    sql = f"UPDATE retrysafe_records SET {_SHIFT} WHERE key_hash = %s"
    return lambda key, micros: kept.execute(sql.format(micros=micros), key)


def age_mysql(url: str) -> Age:
    import pymysql

    kept = _kept.setdefault(url, Kept(lambda: mysql_connection(url, autocommit=True), pymysql.MySQLError))
    sql = f"UPDATE retrysafe_records SET {_SHIFT} WHERE key_hash = UNHEX(%s)"
    return lambda key, micros: kept.execute(sql.format(micros=micros), key.hex())


def mysql_connection(url: str, **options: Any) -> Any:
    """A PyMySQL connection of a test's own."""
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        database=parts.path[1:],
        charset="utf8mb4",
        ssl_disabled=True,  # or every connection would read all certificates of the system
        **options,
    )


_AGE_SCRIPT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
for _, name in ipairs({'lease_until', 'created', 'updated', 'expires', 'forget'}) do
  redis.call('HINCRBY', KEYS[1], name, string.format('%.0f', 0 - ARGV[1]))
end
if redis.call('PEXPIRETIME', KEYS[1]) > 0 then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', redis.call('HGET', KEYS[1], 'forget') / 1000))
end"""


@cache
def redis_masters(url: str) -> Any:
    """What leads to the master that has a key; the test's own."""
    from retrysafe.executors import redis_url

    return redis_url.sync(redis_url.parse(url))


def _age_counted(url: str, key: bytes, holder: bytes, micros: int) -> None:
    """Move what is counted of a key for the quota of its scope."""
    for counted in (b"made", b"kept"):
        name = b"retrysafe:quota:{" + holder.hex().encode() + b"}:" + counted
        node = redis_masters(url).of_key(name)
        if node.zscore(name, key) is not None:
            node.zincrby(name, -micros, key)


def age_redis(url: str) -> Age:
    def age(key: bytes, micros: int) -> None:
        name = name_of(key)
        node = redis_masters(url).of_key(name)
        named = [part.decode() for part in node.hmget(name, "boundary", "scope") if part is not None]
        node.eval(_AGE_SCRIPT, 1, name, micros)
        if named:
            _age_counted(url, key, holder_of(*named), micros)

    return age


@cache
def dynamodb_client(endpoint: str) -> Any:
    """A client of the tests' own, one in every process: making one takes a tenth of a second."""
    import boto3

    return boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")


def age_dynamodb(table: str, endpoint: str, instants: Sequence[str] = INSTANTS) -> Age:
    def age(key: bytes, micros: int) -> None:
        client = dynamodb_client(endpoint)
        where: dict[str, Any] = {"TableName": table, "Key": {"key_hash": {"B": key}}}
        item = client.get_item(**where, ConsistentRead=True).get("Item")
        if item is None:
            return
        updated = client.update_item(
            **where,
            UpdateExpression="SET " + ", ".join(f"#{name} = #{name} - :by" for name in instants),
            ExpressionAttributeNames={f"#{name}": name for name in instants},
            ExpressionAttributeValues={":by": {"N": str(micros)}},
            ReturnValues="ALL_NEW",
        )["Attributes"]
        if "ttl" in item and int(updated["forget"]["N"]) <= wall_clock():  # as the service does, some day
            client.delete_item(**where)

    return age
