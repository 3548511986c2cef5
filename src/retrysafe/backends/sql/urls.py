"""Backends on SQL databases, from URLs and from aliases of Django's; a dialect's store is imported when it is met."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.spec import StoreAccess, library
from retrysafe.backends.sql import store_of
from retrysafe.backends.sql.drivers.pool import MOST_CONNECTIONS, Size
from retrysafe.backends.sql.drivers.sqlite import RENEWAL_BUSY, SqliteClient, SqliteFile
from retrysafe.backends.sql.drivers.sqlite_async import AsyncSqliteClient
from retrysafe.backends.urls import file_of, refuse_percent, url_options, without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations
from retrysafe.protocol.client import AsyncClient, Client


def driver(module: str, extra: str) -> Any:
    """The module of a driver. Raises `ConfigurationError` when the library of its extra is missing."""
    return library(f"retrysafe.backends.sql.drivers.{module}", extra)


def sqlite(url: str) -> Backend:
    location, _, query = url.removeprefix("sqlite://").partition("?")
    options = dict(parse_qsl(query))
    url_options(options, ("synchronous", "busy"), "sqlite")
    path = location[1:]
    if not location.startswith("/") or path in ("", ":memory:"):
        raise ConfigurationError(
            f"store={without_password(url)!r}: write sqlite:///relative.db or sqlite:////absolute.db; for memory, memory://."
        )
    synchronous = options.get("synchronous", "FULL").upper()
    if synchronous not in ("FULL", "NORMAL", "EXTRA"):
        raise ConfigurationError(f"store={without_password(url)!r}: synchronous is FULL, NORMAL or EXTRA.")
    file = SqliteFile(str(Path(path).absolute()), synchronous)  # the same file wherever the process goes
    if "busy" in options:
        file = file._replace(busy=durations.seconds(options["busy"], "busy"))
    impatient = file._replace(busy=min(RENEWAL_BUSY, file.busy))

    return Backend(
        store_of("sqlite"),
        StoreAccess(
            address=url,
            sync=partial(SqliteClient, file),
            asynchronous=partial(AsyncSqliteClient, file),
            heartbeat=partial(SqliteClient, impatient),
            aheartbeat=partial(AsyncSqliteClient, impatient),
            places=lambda: {found} if (found := file_of(path)) else set(),
            migrates_itself=True,
            on_demand=partial(SqliteClient, file),
            missing=lambda: not os.path.exists(path),  # noqa: PTH110 - pathlib would double the time to import
        ),
    )


def postgresql(url: str) -> Backend:
    module = driver("psycopg", "psycopg")
    refuse_percent(url, "store")
    to = _read_postgresql(url, module.is_option)
    return _server("postgresql", url, partial(module.PsycopgDriver.to, *to), partial(module.AsyncPsycopgDriver.to, *to))


def asyncpg(url: str) -> Backend:
    module = driver("asyncpg", "asyncpg")
    return _server("postgresql", url, None, partial(module.AsyncpgDriver.to, *_read_postgresql(url, module.is_option)))


def mysql(url: str) -> Backend:
    parts = urlsplit(url)
    to, named = (_mysql_options(url), _size(parse_qsl(parts.query))), parts.scheme.partition("+")[2]
    client = None if named == "asyncmy" else partial(driver("pymysql", "mysql").PymysqlDriver, *to)
    aclient = None if named == "pymysql" else partial(driver("asyncmy", "mysql").AsyncmyDriver, *to)
    return _server("mysql", url, client, aclient)


def sqlserver(url: str) -> Backend:
    """SQL Server by mssql-python, or by pymssql if the scheme names it; async code is served by threads."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    url_options(given, ("encrypt", "trust_server_certificate", "pool"), "mssql")
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database or not parts.username:
        raise ConfigurationError(f"store={without_password(url)!r}: write mssql://user:password@host:1433/database.")
    options = {
        "host": parts.hostname or "localhost",
        "port": parts.port or 1433,
        "user": unquote(parts.username),
        "password": unquote(parts.password or ""),
        "database": database,
        "encrypt": given.get("encrypt"),
        "trust_server_certificate": given.get("trust_server_certificate"),
    }
    size = _size(given.items())
    if parts.scheme.endswith("+pymssql"):
        make = partial(driver("pymssql", "pymssql").PymssqlDriver, options, size)
    else:
        make = partial(driver("mssql_python", "sqlserver").MssqlPythonDriver, options, size)
    threads = driver("sqlserver", "sqlserver").AsyncThreads
    return _server("mssql", url, make, lambda: threads(make(), size))


def _server(
    kind: str, url: str, sync: Callable[[], Client] | None, asynchronous: Callable[[], AsyncClient] | None
) -> Backend:
    """A backend on connections of its own to the database of a URL."""
    place = identity.of_url(kind, url)
    return Backend(
        store_of(kind),
        StoreAccess(
            address=without_password(url),
            sync=sync,
            asynchronous=asynchronous,
            places=lambda: set() if place is None else {place},
            own_connections=True,
        ),
    )


def _size(options: Iterable[tuple[str, str]]) -> Size:
    given = dict(options).get("pool", str(MOST_CONNECTIONS))
    if not given.isdecimal() or not int(given):
        raise ConfigurationError(f"store=: pool={given!r} is the number of connections, at least 1.")
    return Size(int(given))


_SSL = {"true": "require", "1": "require", "false": "disable", "0": "disable"}


def _read_postgresql(url: str, is_known: Callable[[str], bool]) -> tuple[str, Size]:
    """The URL as a driver takes it, without what is ours, and the number of connections.

    An option that nothing knows is refused here: to the driver it would be a server that cannot be reached.
    """
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    options: list[tuple[str, str]] = []
    for name, value in given:
        if name == "ssl":  # SQLAlchemy's name for asyncpg, and that of other languages
            options.append(("sslmode", _SSL.get(value.lower(), value)))
        elif name != "pool":
            _refuse_option(parts.scheme, name, is_known)
            options.append((name, value))
    query = parts.query if options == given else urlencode(options, quote_via=quote)
    plain = url.replace(parts.scheme, "postgresql", 1).partition("?")[0]
    return f"{plain}?{query}" if query else plain, _size(given)


def _refuse_option(scheme: str, name: str, is_known: Callable[[str], bool]) -> None:
    if is_known(name):
        return
    near = get_close_matches(name, [one for one in _USUAL if one == "pool" or is_known(one)], 1)
    hint = _ELSEWHERE.get(name) or (f"Is {near[0]} meant?" if near else "")
    raise ConfigurationError(
        f"store=: a {scheme} URL has no option {name!r}, with which no connection could be made; it has those of its "
        f"driver, and pool, the number of connections. {hint}".rstrip()
    )


_USUAL = ("sslmode", "sslrootcert", "connect_timeout", "application_name", "options", "target_session_attrs", "pool")
_ELSEWHERE = {
    "schema": "A schema is chosen by options=-csearch_path%3Dname.",
    "pgbouncer": "Poolers are recognised by themselves.",
    "prepared_statement_cache_size": "Poolers are recognised by themselves.",
    "charset": "Text is always UTF-8.",
    "connection_limit": "The number of connections is pool=.",
    "pool_size": "The number of connections is pool=.",
}
"""Hints for options of other libraries that stand in copied URLs."""


def _mysql_options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    url_options(given, ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket", "pool", "charset"), "mysql")
    if given.get("charset", "utf8mb4") != "utf8mb4":
        raise ConfigurationError("store=: charset is utf8mb4, or left out: no other keeps every character.")
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
        options["ssl"] = ssl.create_default_context(cafile=given["ssl_ca"])
        if "ssl_cert" in given:
            options["ssl"].load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    elif "ssl_cert" in given or "ssl_key" in given:
        raise ConfigurationError(f"store={without_password(url)!r}: ssl_cert and ssl_key go with ssl_ca.")
    return options


def anchor(url: str) -> str:
    """A SQLite URL with an absolute path: it must not follow the working directory to another file."""
    prefix, path = url[: len("sqlite:///")], url[len("sqlite:///") :]
    if prefix != "sqlite:///" or path.startswith(("/", ":memory:")) or not path:
        return url
    return prefix + os.path.abspath(path)  # noqa: PTH100 - pathlib would double the time to import


_FILE = re.compile(r"[/\\]|\.(db|sqlite3?)$")
"""Recognises text that is the path of a file, and no alias."""


def django(alias: str) -> Backend:
    shown = without_password(alias)
    if _FILE.search(alias):
        raise ConfigurationError(f"store={shown!r} is a path. A SQLite file is a URL: write store='sqlite:///{shown}'.")
    try:
        module = driver("django", "django")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"store={shown!r} is no URL, and an alias of Django's DATABASES only with Django, which is missing. "
            "A file is sqlite:///its-path."
        ) from error
    if not module.names(alias):
        raise ConfigurationError(
            f"store={shown!r} is neither a URL nor an alias of Django's DATABASES, which has "
            f"{module.known()}. A file is sqlite:///its-path."
        )
    migrating = f"python manage.py migrate retrysafe --database={alias}  ('retrysafe.django' in INSTALLED_APPS)"
    return Backend(
        store_of(module.vendor(alias)),
        StoreAccess(
            address=module.address(alias),
            sync=partial(module.DjangoClient, alias),
            heartbeat=partial(module.DjangoClient, alias, impatient=True),
            places=lambda: identity.of_alias(alias, module.file_name(alias)),
            alias=alias,
            migrate_with=migrating,
            async_with="put the whole guarded function into asgiref.sync.sync_to_async, or give a URL",
        ),
    )
