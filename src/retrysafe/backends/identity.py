"""The database that a store or a transaction leads to, as far as it shows without asking.

A place says enough to recognise a second way to the same database; two places that differ may still be one database,
under two names. Then it is asked itself, once: see `retrysafe.backends.database`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from retrysafe.backends.urls import file_of

Place = tuple[Hashable, ...]
"""A database, as far as a store or transaction shows it."""

_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_HARMLESS = """
    application_name channel_binding charset client_encoding connect_timeout encrypt fallback_application_name
    gssencmode keepalives keepalives_count keepalives_idle keepalives_interval passfile password pool ssl ssl_ca
    ssl_cert ssl_key sslcert sslcrl sslkey sslmode sslpassword sslrootcert tcp_user_timeout trust_server_certificate
"""
"""Options of a URL with which it leads where the rest of it says. To asyncpg, others may be settings of the server."""


def of_url(kind: str, url: str) -> Place | None:
    """Identify the database of a server's URL; None if the URL does not name all of it."""
    parts = urlsplit(url)
    options = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if "," in parts.netloc or not options <= set(_HARMLESS.split()):
        return None
    return server(kind, parts.hostname, parts.port, unquote(parts.path.removeprefix("/")), parts.username)


def server(kind: str, host: str | None, port: Any, database: str | None, user: str | None) -> Place | None:
    """A database of a server, as a user sees it: what is its schema, say, may depend on the user.

    None for a socket's path, and one host by two names is two: behind 127.0.0.1 and ::1 there may be two servers.
    """
    if not host or host[0] in "/%@" or not database or not user:
        return None
    return kind, host.lower(), int(port or _PORTS[kind]), database, user


def pool(of: object) -> Place:
    """A pool of connections, which all lead to one place; the pool is kept, so that its id stays its own."""
    return "pool", _Pool(of)


class _Pool:
    """Compares by the identity of what it keeps."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pool) and other._of is self._of

    def __hash__(self) -> int:
        return id(self._of)


def of_engine(engine: Any) -> set[Place]:
    """Identify the database of a SQLAlchemy engine, sync or async; its connect options may say more than its URL."""
    if engine.dialect.name == "sqlite":
        found = file_of(engine.url.database)
        return {pool(engine.pool)} if found is None else {pool(engine.pool), found}
    return {pool(engine.pool)}


def of_alias(alias: str, name: str | None) -> set[Place]:
    """Identify the database of a Django alias: the alias itself, and its file."""
    found = file_of(name)
    return {("django", alias)} if found is None else {("django", alias), found}


def of_connection(kind: str, host: Any, port: Any, database: Any, user: Any, besides: object = None) -> Place | None:
    """Identify the database of a connection; ``besides``: what else decides where it leads."""
    reached = [value.decode() if isinstance(value, bytes) else value for value in (host, port, database, user)]
    return (None if besides else server(kind, *reached)) or (kind, *reached, besides)
