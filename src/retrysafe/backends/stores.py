"""The types of ``store=``, for type checkers: a library that is not installed there counts as any type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from retrysafe.backends.backend import Backend
from retrysafe.protocol.records import Layered


class _Pool(Protocol):
    """A pool of asyncpg or asyncmy, which ship no types."""

    def acquire(self) -> Any: ...

    def release(self, connection: Any, /) -> Any: ...


class _OfAws(Protocol):
    """A client of boto3 or aiobotocore, or a Table of boto3."""

    @property
    def meta(self) -> Any: ...


class _DjangoConnection(Protocol):
    """A connection of Django's."""

    @property
    def alias(self) -> Any: ...

    @property
    def settings_dict(self) -> Any: ...


if TYPE_CHECKING:
    import redis
    import redis.asyncio
    import redis.asyncio.cluster
    import redis.cluster
    from psycopg_pool import AsyncConnectionPool, ConnectionPool
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    Store: TypeAlias = (
        str
        | Layered
        | Backend
        | Engine
        | AsyncEngine
        | sessionmaker[Any]
        | async_sessionmaker[Any]
        | ConnectionPool[Any]
        | AsyncConnectionPool[Any]
        | _Pool
        | redis.Redis
        | redis.cluster.RedisCluster
        | redis.asyncio.Redis
        | redis.asyncio.cluster.RedisCluster
        | _OfAws
        | _DjangoConnection
    )
else:
    Store: TypeAlias = Any
