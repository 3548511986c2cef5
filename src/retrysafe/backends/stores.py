"""The types of ``store=`` and ``tx=``, for type checkers, and of the transactions that a store lends.

What is said of a library's objects is said by protocols where it can be, so that it holds whichever of the libraries
are installed beside the checker; a class that is named, of a library that is not, counts as any type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Protocol

    import redis
    import redis.asyncio
    import redis.asyncio.cluster
    import redis.cluster
    from typing_extensions import TypeVar as TypeVarWithDefault

    from retrysafe.backends.backend import Backend
    from retrysafe.protocol.records import Layered, Sharded

    Tx = TypeVarWithDefault("Tx", covariant=True, default=Any)
    """The connection or session that a handler works with in the transaction of its claim."""

    class SqlalchemyEngine(Protocol[Tx]):
        """An engine of SQLAlchemy, sync or async."""

        @property
        def dialect(self) -> Any: ...

        def connect(self) -> Tx: ...

    class Sessionmaker(Protocol[Tx]):
        """A sessionmaker or async_sessionmaker of SQLAlchemy."""

        def configure(self, **new_kw: Any) -> None: ...

        def __call__(self, **local_kw: Any) -> Tx: ...

    class PsycopgPool(Protocol[Tx]):
        """A ConnectionPool of psycopg_pool."""

        def connection(self) -> AbstractContextManager[Tx]: ...

    class AsyncPsycopgPool(Protocol[Tx]):
        """An AsyncConnectionPool of psycopg_pool."""

        def connection(self) -> AbstractAsyncContextManager[Tx]: ...

    class _Acquired(Protocol[Tx]):
        async def __aenter__(self) -> Tx: ...

    class AsyncPool(Protocol[Tx]):
        """A pool of asyncpg or asyncmy."""

        def acquire(self) -> _Acquired[Tx]: ...

        def release(self, connection: Any, /) -> Any: ...

    class PymongoClient(Protocol[Tx]):
        """A MongoClient or AsyncMongoClient of PyMongo."""

        @property
        def nodes(self) -> Any: ...

        def start_session(self) -> Tx: ...

    class OfAws(Protocol):
        """A client of boto3 or aiobotocore, or a Table of boto3."""

        @property
        def meta(self) -> Any: ...

    class DjangoConnection(Protocol):
        """A connection of Django's."""

        @property
        def alias(self) -> Any: ...

        @property
        def settings_dict(self) -> Any: ...

    Lending: TypeAlias = (
        SqlalchemyEngine[Tx]
        | Sessionmaker[Tx]
        | PsycopgPool[Tx]
        | AsyncPsycopgPool[Tx]
        | AsyncPool[Tx]
        | PymongoClient[Tx]
    )
    """A store whose transactions have a type that is known."""

    Store: TypeAlias = (
        str
        | Layered
        | Sharded
        | Backend
        | Lending[Any]
        | redis.Redis
        | redis.cluster.RedisCluster
        | redis.asyncio.Redis
        | redis.asyncio.cluster.RedisCluster
        | OfAws
        | DjangoConnection
    )

    class Closable(Protocol):
        """A connection or session that is given as ``tx=``."""

        def close(self) -> Any: ...

    class _Registry(Protocol[Tx]):
        def __call__(self) -> Tx: ...

    class ScopedSession(Protocol[Tx]):
        """A scoped_session or async_scoped_session of SQLAlchemy: it stands for the session of the current scope."""

        @property
        def registry(self) -> _Registry[Tx]: ...
else:
    Tx = TypeVar("Tx")
    Store: TypeAlias = Any
