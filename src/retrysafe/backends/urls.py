"""Backends from URLs, and from an alias of Django's databases."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend, Place
from retrysafe.backends.files import file_of
from retrysafe.backends.parts import dynamodb_store, library, redis_backend, service_clock, sql_store, without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.client import AsyncClient

IMPATIENCE = 0.5
"""How long a fast store may keep its answer back, in seconds, where its URL does not say."""


def from_url(url: str) -> Backend:
    if "://" not in url:
        return django(url)
    scheme = urlsplit(url).scheme
    make = _SCHEMES.get(scheme)
    if make is None:
        known = ", ".join(f"{name}://" for name in sorted(_SCHEMES))
        raise ConfigurationError(
            f"store={url!r}: unknown kind of URL; known are {known}. A file is sqlite:///its-path."
        )
    return make(url)


def fast(url: str) -> Backend:
    """A store that is only asked for what is quick: with little patience."""
    if _SCHEMES.get(urlsplit(url).scheme) is not _redis:
        raise ConfigurationError(f"layered(): the fast store is Redis, not {url!r}.")
    return _redis(url, silence=IMPATIENCE)


def memory(url: str) -> Backend:
    from retrysafe.backends.memory.client import AsyncMemoryClient, MemoryClient
    from retrysafe.backends.memory.store import MemoryStore

    client = MemoryClient()
    return Backend(
        MemoryStore(), sync=lambda: client, asynchronous=lambda: AsyncMemoryClient(client), address=url, immediate=True
    )


def sqlite(url: str) -> Backend:
    from retrysafe.backends.sql.drivers.base import url_options
    from retrysafe.backends.sql.drivers.sqlite import RENEWAL_BUSY, SqliteClient, SqliteFile
    from retrysafe.backends.sql.sqlite import SqliteStore
    from retrysafe.protocol import durations

    location, _, query = url.removeprefix("sqlite://").partition("?")
    options = dict(parse_qsl(query))
    url_options(options, ("synchronous", "busy"), "sqlite")
    path = location[1:]
    if not location.startswith("/") or path in ("", ":memory:"):
        raise ConfigurationError(
            f"store={url!r}: write sqlite:///relative.db or sqlite:////absolute.db; for memory, memory://."
        )
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL", "EXTRA"):
        raise ConfigurationError(f"store={url!r}: synchronous is FULL, NORMAL or EXTRA.")
    file = SqliteFile(path, synchronous)
    if "busy" in options:
        file = file._replace(busy=durations.seconds(options["busy"], "busy"))
    impatient = file._replace(busy=min(RENEWAL_BUSY, file.busy))

    def asynchronous(file: SqliteFile = file) -> AsyncClient:
        from retrysafe.backends.sql.drivers.sqlite_async import AsyncSqliteClient

        return AsyncSqliteClient(file)

    return Backend(
        SqliteStore(),
        sync=partial(SqliteClient, file),
        asynchronous=asynchronous,
        pulse=partial(SqliteClient, impatient),
        apulse=partial(asynchronous, impatient),
        address=url,
        places=lambda: {found} if (found := file_of(path)) else set(),
        migrates_itself=True,
        missing=lambda: not os.path.exists(path),  # noqa: PTH110 - pathlib would double the time to import
    )


def _postgresql(url: str) -> Backend:
    from retrysafe.backends.sql.postgresql import PostgresqlStore

    module = library("sql.drivers.psycopg", "psycopg")
    plain = url.replace(urlsplit(url).scheme, "postgresql", 1)
    return Backend(
        PostgresqlStore(),
        sync=partial(module.PsycopgClient.connect, plain),
        asynchronous=partial(module.AsyncPsycopgClient.connect, plain),
        address=without_password(url),
        places=_place("postgresql", url),
    )


def _asyncpg(url: str) -> Backend:
    from retrysafe.backends.sql.postgresql import PostgresqlStore

    module = library("sql.drivers.asyncpg", "asyncpg")
    plain = url.replace("postgresql+asyncpg", "postgresql", 1)
    connect_ = partial(module.AsyncpgClient.connect, plain)
    return Backend(
        PostgresqlStore(),
        sync=None,
        asynchronous=connect_,
        address=without_password(url),
        places=_place("postgresql", url),
    )


def _mysql(url: str, *, sync: bool = True, asynchronous: bool = True) -> Backend:
    from retrysafe.backends.sql.mysql import MysqlStore

    options = _mysql_options(url)
    client = partial(library("sql.drivers.pymysql", "mysql").PymysqlClient, options) if sync else None
    aclient = partial(library("sql.drivers.asyncmy", "mysql").AsyncmyClient.connect, options) if asynchronous else None
    return Backend(
        MysqlStore(),
        sync=client,
        asynchronous=aclient,
        address=without_password(url),
        places=_place("mysql", url),
    )


def _place(kind: str, url: str) -> Callable[[], set[Place]]:
    """What `Backend` takes."""
    found = identity.of_url(kind, url)
    return lambda: set() if found is None else {found}


def _mysql_options(url: str) -> dict[str, Any]:
    """What PyMySQL and asyncmy are both given."""
    from retrysafe.backends.sql.drivers.base import url_options

    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    url_options(given, ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket"), "mysql")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise ConfigurationError(f"store={without_password(url)!r}: write mysql://user:password@host:3306/database.")
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
        raise ConfigurationError(f"store={without_password(url)!r}: ssl_cert and ssl_key go with ssl_ca.")
    return options


def _redis(url: str, **options: Any) -> Backend:
    urls = library("redis.url", "redis")
    address = urls.parse(url, **options)
    return redis_backend(
        sync=partial(urls.sync, address),
        asynchronous=partial(urls.asynchronous, address),
        most=address.most_connections,
        address=without_password(url),
    )


def _dynamodb(url: str) -> Backend:
    from retrysafe.backends.sql.drivers.base import url_options
    from retrysafe.protocol import durations

    module = library("dynamodb.client", "dynamodb")
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
    clock = service_clock()
    return Backend(
        dynamodb_store(parts.netloc, clock, url),
        sync=partial(module.DynamodbClient.connect, access, clock),
        asynchronous=partial(module.AsyncDynamodbClient, access, clock),
        pulse=partial(module.DynamodbClient.connect, impatient, clock),
        apulse=partial(module.AsyncDynamodbClient, impatient, clock),
        address=url,
    )


_TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")


def django(alias: str) -> Backend:
    try:
        module = library("sql.drivers.django", "django")
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
        sql_store(module.vendor(alias)),
        sync=partial(module.DjangoClient, alias),
        asynchronous=None,
        pulse=partial(module.DjangoClient, alias, impatient=True),
        address=module.address(alias),
        places=lambda: identity.of_alias(alias, module.file_name(alias)),
        alias=alias,
        migrate_with=f"python manage.py migrate retrysafe --database={alias}  ('retrysafe.django' in INSTALLED_APPS)",
        async_with="put the whole guarded function into asgiref.sync.sync_to_async, or give a URL",
    )


_SCHEMES: dict[str, Callable[[str], Backend]] = {
    "memory": memory,
    "sqlite": sqlite,
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
