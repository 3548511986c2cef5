"""From what users call a store (a URL, an engine, a pool, a client) to a Store and its executors.

The only module that names concrete stores and executors; their libraries are imported when chosen.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from retrysafe.backend import Backend
from retrysafe.errors import ConfigurationError
from retrysafe.ports import AsyncClient, AsyncExecutor, Executor
from retrysafe.types import Layered


class Joining(NamedTuple):
    """Executors on a transaction that was handed to us; one of them is None where the colour is fixed.

    ``tx`` is what the handler works with, if that is not what was handed over.
    """

    execute: Executor | None
    aexecute: AsyncExecutor | None
    tx: Any = None


_shared: dict[object, tuple[Backend, object]] = {}
_sharing = threading.Lock()


def connect(store: object, *, migrate: bool = True) -> Backend:
    """Return the backend for ``store=``; the same URL or object gives the same backend.

    Opens no network connection. A SQLite file is migrated here, unless ``migrate`` is false.
    """
    if store == "memory://":
        return _memory("memory://")
    store = _anchored(store) if isinstance(store, str) else _aliased(store)
    identity = store if isinstance(store, str | Layered) else id(store)
    with _sharing:
        if identity not in _shared:
            made = _from_anything(store)
            _shared[identity] = (made, store)  # keeping the object keeps its id its own
        backend = _shared[identity][0]
    if backend.migrates_itself and migrate:
        backend.migrate()
        backend.migrates_itself = False
    return backend


def _anchored(url: str) -> str:
    """A SQLite URL with an absolute path: it must not follow the working directory to another file."""
    prefix, path = url[: len("sqlite:///")], url[len("sqlite:///") :]
    if prefix != "sqlite:///" or path.startswith(("/", ":memory:")) or not path:
        return url
    return prefix + os.path.abspath(path)  # noqa: PTH100 - pathlib would double the time to import


def _aliased(store: object) -> object:
    """A Django connection stands for its alias: every thread has its own."""
    for module, name in _ALIASED:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(store, getattr(loaded, name)):
            return getattr(store, "alias", store)
    return store


def join(backend: Backend, tx: Any) -> Joining:
    """Executors on the caller's transaction, chosen by its type."""
    if isinstance(tx, str) or _aliased(tx) is not tx:
        return _join_django(backend, tx)
    for module, name in _SCOPED:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tx, getattr(loaded, name)):
            return join(backend, tx.registry())
    for module, name, kind_of, make in _JOINABLE:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tx, getattr(loaded, name)):
            _refuse_other_kind(backend, kind_of(tx))
            return make(tx)
    raise ConfigurationError(
        f"tx= is a {type(tx).__module__}.{type(tx).__qualname__}; expected a connection or session of sqlite3, "
        "psycopg, asyncpg, PyMySQL, asyncmy or SQLAlchemy that is in a transaction, or a Django alias or connection."
    )


def _refuse_other_kind(backend: Backend, kind: str) -> None:
    if kind != backend.kind:
        raise ConfigurationError(
            f"tx= is a {kind} transaction, but store= is {backend.kind}: they cannot commit together."
        )


def leave(backend: Backend) -> bool:
    """Let one user of a backend go; whether it was the last, who closes it. The next connect makes a new one then."""
    backend.users -= 1
    if backend.users == 0:
        forget(backend)
    return backend.users == 0


def forget(backend: Backend) -> None:
    """Let the next connect make a new backend."""
    with _sharing:
        for identity in [identity for identity, (shared, _) in _shared.items() if shared is backend]:
            del _shared[identity]


def _from_anything(store: object) -> Backend:
    if isinstance(store, Layered):
        return _layered(store)
    return _from_url(store) if isinstance(store, str) else _from_object(store)


def _layered(layers: Layered) -> Backend:
    """The truth's backend with a cache in front of it, with clients of its own for both."""
    from retrysafe.nearby import Nearby
    from retrysafe.stores.redis_cache import RedisCache

    fast = _from_anything(layers.fast)
    if fast.kind != "redis":
        raise ConfigurationError(f"layered(): the fast store is Redis, not {fast.kind}.")
    if isinstance(layers.truth, Layered) or layers.truth == "memory://":
        raise ConfigurationError("layered(): the truth is a durable store of one layer.")
    truth = _from_anything(_anchored(layers.truth) if isinstance(layers.truth, str) else layers.truth)
    truth.near = Nearby(RedisCache(), layers.at_most, fast)
    return truth


# ---------------------------------------------------------------- from a URL


def _from_url(url: str) -> Backend:
    if "://" not in url:
        return _django(url)
    scheme = urlsplit(url).scheme
    make = _SCHEMES.get(scheme)
    if make is None:
        known = ", ".join(f"{name}://" for name in sorted(_SCHEMES))
        raise ConfigurationError(
            f"store={url!r}: unknown kind of URL; known are {known}. A file is sqlite:///its-path."
        )
    return make(url)


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(f"retrysafe.executors.{module}")
    except ImportError as error:
        raise ConfigurationError(
            f"store= needs a library that is missing ({error}). Run:  pip install 'retrysafe[{extra}]'"
        ) from error


def _memory(url: str) -> Backend:
    from retrysafe.executors.memory import AsyncMemoryClient, MemoryClient
    from retrysafe.stores.memory import MemoryStore

    client = MemoryClient()
    return Backend(
        MemoryStore(), sync=lambda: client, asynchronous=lambda: AsyncMemoryClient(client), address=url, immediate=True
    )


def _sqlite(url: str) -> Backend:
    from retrysafe.executors.sql import url_options
    from retrysafe.executors.sqlite import RENEWAL_BUSY, SqliteClient, SqliteFile
    from retrysafe.stores.sqlite import SqliteStore

    location, _, query = url.removeprefix("sqlite://").partition("?")
    options = dict(parse_qsl(query))
    url_options(options, ("synchronous",), "sqlite")
    path = location[1:]
    if not location.startswith("/") or path in ("", ":memory:"):
        raise ConfigurationError(
            f"store={url!r}: write sqlite:///relative.db or sqlite:////absolute.db; for memory, memory://."
        )
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL", "EXTRA"):
        raise ConfigurationError(f"store={url!r}: synchronous is FULL, NORMAL or EXTRA.")
    file = SqliteFile(path, synchronous)
    impatient = file._replace(busy=RENEWAL_BUSY)

    def asynchronous(file: SqliteFile = file) -> AsyncClient:
        from retrysafe.executors.sqlite_async import AsyncSqliteClient

        return AsyncSqliteClient(file)

    return Backend(
        SqliteStore(),
        sync=partial(SqliteClient, file),
        asynchronous=asynchronous,
        pulse=partial(SqliteClient, impatient),
        apulse=partial(asynchronous, impatient),
        address=url,
        migrates_itself=True,
        missing=lambda: not os.path.exists(path),  # noqa: PTH110 - pathlib would double the time to import
    )


def _postgresql(url: str) -> Backend:
    from retrysafe.stores.postgresql import PostgresqlStore

    module = _library("psycopg", "psycopg")
    plain = url.replace(urlsplit(url).scheme, "postgresql", 1)
    return Backend(
        PostgresqlStore(),
        sync=partial(module.PsycopgClient.connect, plain),
        asynchronous=partial(module.AsyncPsycopgClient.connect, plain),
        address=_without_password(url),
    )


def _asyncpg(url: str) -> Backend:
    from retrysafe.stores.postgresql import PostgresqlStore

    module = _library("asyncpg", "asyncpg")
    plain = url.replace("postgresql+asyncpg", "postgresql", 1)
    connect_ = partial(module.AsyncpgClient.connect, plain)
    return Backend(PostgresqlStore(), sync=None, asynchronous=connect_, address=_without_password(url))


def _mysql(url: str, *, sync: bool = True, asynchronous: bool = True) -> Backend:
    from retrysafe.stores.mysql import MysqlStore

    options = _mysql_options(url)
    client = partial(_library("pymysql", "mysql").PymysqlClient, options) if sync else None
    aclient = partial(_library("asyncmy", "mysql").AsyncmyClient.connect, options) if asynchronous else None
    return Backend(MysqlStore(), sync=client, asynchronous=aclient, address=_without_password(url))


def _mysql_options(url: str) -> dict[str, Any]:
    """What PyMySQL and asyncmy are both given."""
    from retrysafe.executors.sql import url_options

    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    url_options(given, ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket"), "mysql")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise ConfigurationError(f"store={_without_password(url)!r}: write mysql://user:password@host:3306/database.")
    options: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": "utf8mb4",
    }
    if "unix_socket" in given:
        options["unix_socket"] = given["unix_socket"]
    if "ssl_ca" in given:
        import ssl

        options["ssl"] = ssl.create_default_context(cafile=given["ssl_ca"])
        if "ssl_cert" in given:
            options["ssl"].load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    elif "ssl_cert" in given or "ssl_key" in given:
        raise ConfigurationError(f"store={_without_password(url)!r}: ssl_cert and ssl_key go with ssl_ca.")
    return options


def _redis(url: str) -> Backend:
    urls = _library("redis_url", "redis")
    address = urls.parse(url)
    return _redis_backend(
        sync=partial(urls.sync, address),
        asynchronous=partial(urls.asynchronous, address),
        most=address.most_connections,
        address=_without_password(url),
    )


def _redis_backend(sync: Any, asynchronous: Any, address: str, most: int | None = None) -> Backend:
    """A backend over what makes the masters for sync code, and for a loop; one of them may be None."""
    from retrysafe.stores.redis import RedisStore, name_of

    module, amodule = _library("redis", "redis"), _library("redis_async", "redis")
    listening = _library("redis_listening", "redis")

    def heard_by(masters: Any, listener: Any) -> Any:
        return None if masters is None else lambda heard: listener(masters(), name_of, heard)

    return Backend(
        RedisStore(),
        sync=None if sync is None else lambda: module.RedisClient(sync(), most),
        asynchronous=None if asynchronous is None else lambda: amodule.AsyncRedisClient(asynchronous()),
        listening=heard_by(sync, listening.RedisListener),
        alistening=heard_by(asynchronous, listening.AsyncRedisListener),
        address=address,
    )


def _dynamodb(url: str) -> Backend:
    from retrysafe.core import durations
    from retrysafe.executors.sql import url_options

    module = _library("dynamodb", "dynamodb")
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    url_options(options, ("region", "endpoint", "timeout", "pool"), "dynamodb")
    if not _TABLE_NAME.fullmatch(parts.netloc) or parts.path not in ("", "/"):
        raise ConfigurationError(
            f"store={url!r}: write dynamodb://table?region=…&endpoint=…; a table's name has 3 to 255 letters, digits, "
            "dots, hyphens and underscores."
        )
    pool = options.get("pool", "50")
    if not pool.isdecimal() or int(pool) < 1:
        raise ConfigurationError(f"store={url!r}: pool is a number of connections.")
    timeout = durations.seconds(options.get("timeout", "2s"), "timeout")
    access = module.Access(options.get("region"), options.get("endpoint"), timeout, int(pool))
    impatient = access._replace(timeout=min(1.0, timeout), pool=10, patience=0.0)
    clock = _service_clock()
    return Backend(
        _dynamodb_store(parts.netloc, clock, url),
        sync=partial(module.DynamodbClient.connect, access, clock),
        asynchronous=partial(module.AsyncDynamodbClient, access, clock),
        pulse=partial(module.DynamodbClient.connect, impatient, clock),
        apulse=partial(module.AsyncDynamodbClient, impatient, clock),
        address=url,
    )


_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")


def _service_clock() -> Any:
    from retrysafe.executors.service_clock import ServiceClock

    return ServiceClock()


def _dynamodb_store(table: str, clock: Any, address: str) -> Any:
    from retrysafe.stores.dynamodb import DynamodbStore

    return DynamodbStore(table, clock, address)


_SCHEMES: dict[str, Callable[[str], Backend]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "postgresql+psycopg": _postgresql,
    "postgresql+asyncpg": _asyncpg,
    "mysql": _mysql,
    "mysql+pymysql": partial(_mysql, asynchronous=False),
    "mysql+asyncmy": partial(_mysql, sync=False),
    "mariadb": _mysql,
    "mariadb+pymysql": partial(_mysql, asynchronous=False),
    "mariadb+asyncmy": partial(_mysql, sync=False),
    "unix": _redis,
    **{
        f"{scheme}{topology}": _redis
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for topology in ("", "+cluster", "+sentinel")
    },
    "dynamodb": _dynamodb,
}


_SECRET = re.compile(r"(?i)((?:ssl)?pass(?:word|file)\s*=\s*)('(?:[^'\\\\]|\\\\.)*'|[^&\s]+)")


def _without_password(url: str) -> str:
    """A URL or conninfo as it may be shown."""
    parts = urlsplit(url)
    if "://" in url and parts.password is not None:
        url = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
    return _SECRET.sub(r"\1***", url)


# ---------------------------------------------------------------- from an object


def _from_object(store: object) -> Backend:
    for module, name, make in _OBJECTS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(store, getattr(loaded, name)):
            return make(store)
    raise ConfigurationError(
        f"store= is a {type(store).__module__}.{type(store).__qualname__}; expected a URL, a SQLAlchemy engine or "
        "sessionmaker, a pool of psycopg, asyncpg or asyncmy, a client of redis-py, a boto3 DynamoDB client or "
        "Table, a Django alias or connection."
    )


def _django(alias: str) -> Backend:
    try:
        module = _library("django", "django")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"store={alias!r} is no URL, and an alias of Django's DATABASES only with Django, which is missing. "
            "A file is sqlite:///its-path."
        ) from error
    if not module.names(alias):
        raise ConfigurationError(
            f"store={alias!r} is neither a URL nor an alias of Django's DATABASES, which has {module.known()}. "
            "A file is sqlite:///its-path."
        )
    return Backend(
        _sql_store(module.vendor(alias)),
        sync=partial(module.DjangoClient, alias),
        asynchronous=None,
        pulse=partial(module.DjangoClient, alias, impatient=True),
        address=module.address(alias),
        migrate_with=f"python manage.py migrate retrysafe --database={alias}  ('retrysafe.django' in INSTALLED_APPS)",
        async_with="put the whole guarded function into asgiref.sync.sync_to_async, or give a URL",
    )


def _sql_store(dialect: str) -> Any:
    from retrysafe.stores.mysql import MysqlStore
    from retrysafe.stores.postgresql import PostgresqlStore
    from retrysafe.stores.sqlite import SqliteStore

    kinds: dict[str, type[Any]] = {
        "sqlite": SqliteStore,
        "postgresql": PostgresqlStore,
        "mysql": MysqlStore,
        "mariadb": MysqlStore,
    }
    if dialect not in kinds:
        raise ConfigurationError(f"store=: a {dialect!r} database is not supported; supported are {', '.join(kinds)}.")
    return kinds[dialect]()


def _engine(engine: Any, sessions: Any = None) -> Backend:
    module = _library("sqlalchemy", "sqlalchemy")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
    return Backend(
        _sql_store(engine.dialect.name),
        sync=partial(module.EngineClient, engine, sessions),
        asynchronous=None,
        address=str(engine.url),
        migrates_itself=engine.dialect.name == "sqlite",
    )


def _async_engine(engine: Any, sessions: Any = None) -> Backend:
    module = _library("sqlalchemy", "sqlalchemy")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
        _migrate_file(engine.url.database)
    return Backend(
        _sql_store(engine.dialect.name),
        sync=None,
        asynchronous=partial(module.AsyncEngineClient, engine, sessions),
        address=str(engine.url),
    )


def _refuse_memory(url: Any) -> None:
    if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
        raise ConfigurationError(
            "store=: a SQLite engine must be on a file. A database in memory is another one for every connection, and "
            "with one shared connection our commits would be yours; for tests, memory:// or a temporary file."
        )


def _migrate_file(path: str) -> None:
    backend = _sqlite(f"sqlite:///{path}")
    backend.migrate()
    backend.close()


def _sessionmaker(sessions: Any) -> Backend:
    return _engine(_bind_of(sessions), sessions)


def _async_sessionmaker(sessions: Any) -> Backend:
    return _async_engine(_bind_of(sessions), sessions)


def _bind_of(sessions: Any) -> Any:
    bind = sessions.kw.get("bind")
    if bind is None:
        raise ConfigurationError("store=: the sessionmaker has no engine; make it with sessionmaker(engine).")
    return bind


def _psycopg_pool(pool: Any) -> Backend:
    module = _library("psycopg", "psycopg")
    return Backend(
        _sql_store("postgresql"),
        sync=partial(module.PsycopgClient.on, pool),
        asynchronous=None,
        address=_without_password(pool.conninfo),
    )


def _async_psycopg_pool(pool: Any) -> Backend:
    module = _library("psycopg", "psycopg")
    return Backend(
        _sql_store("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncPsycopgClient.on, pool),
        address=_without_password(pool.conninfo),
    )


def _asyncmy_pool(pool: Any) -> Backend:
    module = _library("asyncmy", "mysql")
    return Backend(
        _sql_store("mysql"), sync=None, asynchronous=partial(module.AsyncmyClient.on, pool), address="mysql://…"
    )


def _asyncpg_pool(pool: Any) -> Backend:
    module = _library("asyncpg", "asyncpg")
    return Backend(
        _sql_store("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncpgClient, pool),
        address="postgresql://…",
    )


def _redis_object(module: str, colour: str, kind: str) -> Callable[[Any], Backend]:
    def make(client: Any) -> Backend:
        masters = getattr(_library(module, "redis"), kind)
        made = partial(masters, client if colour == "async" or kind == "one_server" else lambda: client, ours=False)
        return _redis_backend(
            sync=made if colour == "sync" else None,
            asynchronous=made if colour == "async" else None,
            address="redis://…",
        )

    return make


DYNAMODB_TABLE = "retrysafe_records"
"""The table of a DynamoDB client, which names none."""


def _boto_client(client: Any) -> Backend:
    module, clock = _library("dynamodb", "dynamodb"), _service_clock()
    service = client.meta.service_model.service_name
    if service != "dynamodb":
        raise ConfigurationError(f"store= is a client of {service}; expected one of dynamodb.")
    asynchronous = hasattr(client, "__aenter__")
    return Backend(
        _dynamodb_store(DYNAMODB_TABLE, clock, _dynamodb_url(DYNAMODB_TABLE, client)),
        sync=None if asynchronous else partial(module.DynamodbClient, client, clock),
        asynchronous=partial(module.AsyncDynamodbClient, module.Access(), clock, client) if asynchronous else None,
        address=_dynamodb_url(DYNAMODB_TABLE, client),
    )


def _boto_table(table: Any) -> Backend:
    module, clock = _library("dynamodb", "dynamodb"), _service_clock()
    if table.meta.resource_model.name != "Table" or table.meta.service_name != "dynamodb":
        raise ConfigurationError(f"store= is {table!r}; of boto3's resources only a DynamoDB Table can be one.")
    address = _dynamodb_url(table.name, table.meta.client)
    return Backend(
        _dynamodb_store(table.name, clock, address),
        sync=partial(module.DynamodbClient, module.Plain(table.meta.client), clock),
        asynchronous=None,
        address=address,
    )


def _dynamodb_url(table: str, client: Any) -> str:
    return f"dynamodb://{table}?region={client.meta.region_name}&endpoint={client.meta.endpoint_url}"


_OBJECTS: tuple[tuple[str, str, Callable[[Any], Backend]], ...] = (
    ("sqlalchemy", "Engine", _engine),
    ("sqlalchemy.ext.asyncio", "AsyncEngine", _async_engine),
    ("sqlalchemy.orm", "sessionmaker", _sessionmaker),
    ("sqlalchemy.ext.asyncio", "async_sessionmaker", _async_sessionmaker),
    ("psycopg_pool", "ConnectionPool", _psycopg_pool),
    ("psycopg_pool", "AsyncConnectionPool", _async_psycopg_pool),
    ("asyncpg", "Pool", _asyncpg_pool),
    ("botocore.client", "BaseClient", _boto_client),
    ("boto3.resources.base", "ServiceResource", _boto_table),
    ("asyncmy", "Pool", _asyncmy_pool),
    ("redis", "Redis", _redis_object("redis", "sync", "one_server")),
    ("redis.asyncio", "Redis", _redis_object("redis_async", "async", "one_server")),
    ("redis.cluster", "RedisCluster", _redis_object("redis", "sync", "cluster")),
    ("redis.asyncio.cluster", "RedisCluster", _redis_object("redis_async", "async", "cluster")),
)


# ---------------------------------------------------------------- the caller's transaction


def _fixed(kind: str) -> Callable[[Any], str]:
    return lambda tx: kind


def _dialect(tx: Any) -> str:
    bind = getattr(tx, "dialect", None) or tx.get_bind().dialect
    return "mysql" if bind.name == "mariadb" else str(bind.name)


def _join_sqlite(tx: Any) -> Joining:
    from retrysafe.executors.sqlite import Joined
    from retrysafe.executors.sqlite_async import AsyncJoined

    joined = Joined(tx)
    return Joining(joined, AsyncJoined(joined))


def _join_sync(module: str, extra: str, maker: str) -> Callable[[Any], Joining]:
    return lambda tx: Joining(getattr(_library(module, extra), maker)(tx), None)


def _join_async(module: str, extra: str, maker: str) -> Callable[[Any], Joining]:
    return lambda tx: Joining(None, getattr(_library(module, extra), maker)(tx))


def _join_django(backend: Backend, tx: Any) -> Joining:
    module = _library("django", "django")
    connection = module.connection_of(tx)
    _refuse_other_kind(backend, connection.vendor)
    return Joining(module.join(connection, backend.address), None, connection)


_ALIASED = (("django.db.backends.base.base", "BaseDatabaseWrapper"), ("django.utils.connection", "ConnectionProxy"))
"""Connections of Django."""

_SCOPED = (("sqlalchemy.orm", "scoped_session"), ("sqlalchemy.ext.asyncio", "async_scoped_session"))
"""Registries of sessions, which stand for the session of the current scope."""

_JOINABLE: tuple[tuple[str, str, Callable[[Any], str], Callable[[Any], Joining]], ...] = (
    ("sqlite3", "Connection", _fixed("sqlite"), _join_sqlite),
    ("psycopg", "Connection", _fixed("postgresql"), _join_sync("psycopg", "psycopg", "join")),
    ("psycopg", "AsyncConnection", _fixed("postgresql"), _join_async("psycopg", "psycopg", "ajoin")),
    ("asyncpg", "Connection", _fixed("postgresql"), _join_async("asyncpg", "asyncpg", "ajoin")),
    ("asyncpg.pool", "PoolConnectionProxy", _fixed("postgresql"), _join_async("asyncpg", "asyncpg", "ajoin")),
    ("pymysql.connections", "Connection", _fixed("mysql"), _join_sync("pymysql", "mysql", "join")),
    ("asyncmy.connection", "Connection", _fixed("mysql"), _join_async("asyncmy", "mysql", "ajoin")),
    ("sqlalchemy", "Connection", _dialect, _join_sync("sqlalchemy", "sqlalchemy", "Joined")),
    ("sqlalchemy.orm", "Session", _dialect, _join_sync("sqlalchemy", "sqlalchemy", "Joined")),
    (
        "sqlalchemy.ext.asyncio",
        "AsyncConnection",
        _dialect,
        _join_async("sqlalchemy", "sqlalchemy", "AsyncJoined"),
    ),
    (
        "sqlalchemy.ext.asyncio",
        "AsyncSession",
        _dialect,
        _join_async("sqlalchemy", "sqlalchemy", "AsyncJoined"),
    ),
)
