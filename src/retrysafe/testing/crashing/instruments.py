"""Client libraries made to tell of their calls. Each function knows one library, and patches it where all calls pass.

Only in processes of `crash_points`, never in the one that called it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrysafe.errors import ConfigurationError
from retrysafe.providers import catalogue
from retrysafe.testing.crashing.points import Call, Database
from retrysafe.testing.crashing.tracing import Tracer

Describe = Callable[..., Call]
KEY_FIELDS = {"idempotency-key", *(one.header.lower() for one in catalogue().values() if one.header)}
_KEY_PARAMETERS = ("ClientToken", "ClientRequestToken", "IdempotencyToken", "MessageDeduplicationId")
_EFFECTS = ("Send", "Publish", "Invoke", "PutEvents", "PutRecord", "StartExecution", "RunTask")
_FACTORY = 4
"""The position of the factory among sqlite3.connect's arguments."""
_UNSAFE = ("POST", "PATCH")
_VOLATILE = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{12,}|\d{4,})\b", re.IGNORECASE)


def steady(text: object) -> str:
    """Text without what differs from run to run: long numbers, hexadecimal, UUIDs."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return _VOLATILE.sub("#", " ".join(str(text).split()))


def trace_calls(
    tracer: Tracer,
    owner: Any,
    name: str,
    describe: Describe,
    *,
    database: Callable[[Any], Database] | None = None,
    unless: Callable[..., bool] = lambda *_, **__: False,
) -> None:
    """Let every call of ``owner.name`` be a boundary. ``describe`` is given its arguments, ``database`` the first."""
    original = inspect.getattr_static(owner, name)
    function = original.__func__ if isinstance(original, staticmethod | classmethod) else original

    def watch(*args: Any, **options: Any) -> AbstractContextManager[None]:
        if database is not None and tracer.watching:
            tracer.note_database(database(args[0]))
        return nullcontext() if unless(*args, **options) else tracer.call(lambda: describe(*args, **options))

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaiting(*args: Any, **options: Any) -> Any:
            with watch(*args, **options):
                return await function(*args, **options)

        replacement: Any = awaiting
    else:

        @functools.wraps(function)
        def calling(*args: Any, **options: Any) -> Any:
            with watch(*args, **options):
                return function(*args, **options)

        replacement = calling
    kind = type(original) if isinstance(original, staticmethod | classmethod) else None
    setattr(owner, name, replacement if kind is None else kind(replacement))


def _sqlite(tracer: Tracer, module: Any) -> None:
    made: dict[type, type] = {}
    real = module.connect

    @functools.wraps(real)
    def connect(database: Any, *args: Any, **options: Any) -> Any:
        before, *rest = (args[:_FACTORY], *args[_FACTORY : _FACTORY + 1])
        factory = rest[0] if rest else options.get("factory", module.Connection)
        if factory not in made:
            made[factory] = _sqlite_connection(tracer, module, factory)
        options["factory"] = made[factory]
        options |= dict(zip(("cached_statements", "uri"), args[_FACTORY + 1 :], strict=False))
        connection = real(database, *before, **options)
        path = database.decode() if isinstance(database, bytes) else str(database)
        if path in ("", ":memory:") or "mode=memory" in path:
            tracer.tell("in memory", f"sqlite3.connect({path!r})")
        else:
            where = path if path.startswith("file:") else str(Path(path).absolute())
            tracer.note_database(Database("sqlite", (("path", where),)))
        return connection

    module.connect = connect
    sys.modules["sqlite3.dbapi2"].connect = connect  # type: ignore[attr-defined]


def _sqlite_connection(tracer: Tracer, module: Any, factory: Any) -> type:
    def statement(_: Any, sql: str, *__: Any) -> Call:
        return Call(steady(sql))

    def end_of(connection: Any, label: str) -> AbstractContextManager[None]:
        return tracer.call(lambda: Call(label)) if connection.in_transaction else nullcontext()

    class Cursor(module.Cursor):  # type: ignore[misc]
        """A cursor whose statements are boundaries."""

    class TracedConnection(factory):  # type: ignore[misc]
        """A connection whose statements, commits and rollbacks are boundaries."""

        retrysafe_watched = True

        def cursor(self, factory: Any = Cursor) -> Any:
            if isinstance(factory, type) and factory not in cursors:
                cursors[factory] = type(factory.__name__, (factory,), {})
                watch(cursors[factory])
            return super().cursor(cursors.get(factory, factory))

        def commit(self) -> None:
            with end_of(self, "COMMIT"):
                super().commit()

        def rollback(self) -> None:
            with end_of(self, "ROLLBACK"):
                super().rollback()

        def __exit__(self, kind: Any, *rest: Any) -> Any:
            with end_of(self, "COMMIT" if kind is None else "ROLLBACK"):
                return super().__exit__(kind, *rest)

    def watch(owner: type) -> None:
        for name in ("execute", "executemany", "executescript"):
            setattr(owner, name, getattr(owner, name))  # its own, so that the library's stays as it is
            trace_calls(tracer, owner, name, statement)

    cursors: dict[type, type] = {Cursor: Cursor}
    watch(Cursor)
    watch(TracedConnection)
    return TracedConnection


def _each(tracer: Tracer, owner: Any, names: Iterable[str], describe: Describe) -> None:
    for name in names:
        if hasattr(owner, name):
            trace_calls(tracer, owner, name, describe)


def _psycopg(tracer: Tracer, module: Any) -> None:
    def exchange(connection: Any, gen: Any, *_: Any, **__: Any) -> Call:
        frame = getattr(gen, "gi_frame", None)
        query = None if frame is None else frame.f_locals.get("query", frame.f_locals.get("command"))
        if query is not None and hasattr(query, "as_string"):
            query = query.as_string(None)
        name = getattr(gen, "__name__", "exchange").strip("_").removesuffix("_gen").upper().replace("_", " ")
        return Call(steady(name if query is None else query))

    for name in ("Connection", "AsyncConnection"):
        trace_calls(tracer, getattr(module, name), "wait", exchange, database=_of_psycopg)


def _of_psycopg(connection: Any) -> Database:
    info = connection.info
    return Database("postgresql", (("dsn", f"{info.dsn} password={info.password}" if info.password else info.dsn),))


def _asyncpg(tracer: Tracer, module: Any) -> None:
    def statement(_: Any, query: Any, *__: Any, **___: Any) -> Call:
        return Call(steady(getattr(query, "query", query)))

    def describe_prepared(statement: Any, *_: Any, **__: Any) -> Call:
        return Call(steady(statement.get_query()))

    connection = importlib.import_module("asyncpg.connection").Connection
    for name in ("execute", "_execute", "_executemany", "_copy_in", "_copy_out"):
        trace_calls(tracer, connection, name, statement, database=_of_asyncpg)
    names = ("_PreparedStatement__bind_execute", "executemany")
    _each(tracer, importlib.import_module("asyncpg.prepared_stmt").PreparedStatement, names, describe_prepared)
    cursor = importlib.import_module("asyncpg.cursor").BaseCursor
    _each(tracer, cursor, ("_bind_exec", "_bind", "_exec"), lambda cursor, *_, **__: Call(steady(cursor._query)))


def _of_asyncpg(connection: Any) -> Database:
    parameters, address = connection._params, connection._addr
    where = {"user": parameters.user, "password": parameters.password, "database": parameters.database}
    where["host"], where["port"] = address if isinstance(address, tuple) else (address, None)
    settings = getattr(parameters, "server_settings", None)
    where["server_settings"] = tuple(settings.items()) if isinstance(settings, dict) else settings
    return Database("asyncpg", tuple(where.items()))


def _of_mysql(connection: Any) -> Database:
    names = ("host", "port", "user", "password", "db")
    found = {name: getattr(connection, name, getattr(connection, f"_{name}", None)) for name in names}
    return Database("mysql", tuple(found.items()))


def _mysql(tracer: Tracer, module: Any) -> None:
    package = "pymysql.connections" if module.__name__ == "pymysql" else f"{module.__name__}.connection"
    connection = importlib.import_module(package).Connection
    trace_calls(tracer, connection, "query", lambda _, sql, *__, **___: Call(steady(sql)), database=_of_mysql)
    for name in ("begin", "commit", "rollback"):
        trace_calls(tracer, connection, name, lambda *_, name=name, **__: Call(name.upper()))


def _aiosqlite(tracer: Tracer, module: Any) -> None:
    def work(connection: Any, function: Any, *args: Any, **_: Any) -> Call:
        sql = next((arg for arg in args if isinstance(arg, str)), None)
        return Call(steady(sql or getattr(function, "__name__", "call").upper()))

    trace_calls(tracer, module.Connection, "_execute", work)


def _sqlalchemy(tracer: Tracer, module: Any) -> None:
    """For drivers that nothing else here knows."""
    dialect = importlib.import_module("sqlalchemy.engine.default").DefaultDialect
    statements = ("do_execute", "do_executemany", "do_execute_no_params")
    _each(tracer, dialect, statements, lambda _, cursor, sql, *__, **___: Call(steady(sql)))
    for name in ("do_begin", "do_commit", "do_rollback"):
        trace_calls(tracer, dialect, name, lambda *_, name=name, **__: Call(name.removeprefix("do_").upper()))


def _redis(tracer: Tracer, module: Any) -> None:
    def command(_: Any, *args: Any, **__: Any) -> Call:
        return Call(steady(" ".join(str(arg) for arg in args[:2])))

    def pipeline(pipe: Any, *_: Any, **__: Any) -> Call:
        commands = [entry[0] if isinstance(entry, tuple) else entry.args for entry in pipe.command_stack]
        return Call(f"pipeline of {', '.join(str(command[0]) for command in commands)}")

    for package in ("redis.cluster", "redis.asyncio.cluster"):
        trace_calls(tracer, importlib.import_module(package).RedisCluster, "execute_command", command)
    for package in ("redis.client", "redis.asyncio.client"):
        known = importlib.import_module(package)
        trace_calls(tracer, known.Redis, "execute_command", command)
        trace_calls(tracer, known.Pipeline, "execute", pipeline)


def _request(method: str, url: str, headers: Mapping[str, Any], body: Any) -> Call:
    parts = urlsplit(str(url))
    texts = (
        (name, value.decode("latin-1") if isinstance(value, bytes) else str(value)) for name, value in headers.items()
    )
    fields = {str(name).lower(): text for name, text in texts}
    key = next((fields[name] for name in KEY_FIELDS if name in fields), None)
    raw = body if isinstance(body, bytes) else str(body or "").encode()
    boundary = fields.get("content-type", "").partition("boundary=")[2]
    if boundary:  # of a multipart body, made anew for each request
        raw = raw.replace(boundary.strip('"').encode(), b"")
    label = f"{method.upper()} {parts.scheme}://{parts.hostname}{steady(parts.path)}"
    payload = hashlib.sha256(raw).hexdigest()[:16]
    return Call(label, outbound=method.upper() in _UNSAFE, key=key, payload=payload)


def _httpx(tracer: Tracer, module: Any) -> None:
    def send(_: Any, request: Any, *__: Any, **___: Any) -> Call:
        return _request(request.method, request.url, request.headers, getattr(request, "_content", b""))

    def is_in_process(client: Any, request: Any, *_: Any, **__: Any) -> bool:
        return type(client._transport_for_url(request.url)).__name__ in ("ASGITransport", "WSGITransport")

    for name in ("Client", "AsyncClient"):
        trace_calls(tracer, getattr(module, name), "send", send, unless=is_in_process)


def _requests(tracer: Tracer, module: Any) -> None:
    def send(_: Any, request: Any, **__: Any) -> Call:
        return _request(request.method, request.url, request.headers, request.body)

    trace_calls(tracer, module.Session, "send", send)


def _urllib(tracer: Tracer, module: Any) -> None:
    def opening(_: Any, url: Any, data: Any = None, *__: Any) -> Call:
        if isinstance(url, str):
            return _request("GET" if data is None else "POST", url, {}, data)
        return _request(url.get_method(), url.full_url, dict(url.header_items()), url.data)

    trace_calls(tracer, module.OpenerDirector, "open", opening)


def _aiohttp(tracer: Tracer, module: Any) -> None:
    def request(_: Any, method: str, url: Any, **options: Any) -> Call:
        return _request(method, str(url), options.get("headers") or {}, options.get("json") or options.get("data"))

    trace_calls(tracer, module.ClientSession, "_request", request)


def _smtplib(tracer: Tracer, module: Any) -> None:
    def mail(_: Any, sender: str, to: Any, message: Any, *__: Any, **___: Any) -> Call:
        raw = message if isinstance(message, bytes) else str(message).encode()
        return Call(f"mail to {to}", outbound=True, payload=hashlib.sha256(raw).hexdigest()[:16])

    trace_calls(tracer, module.SMTP, "sendmail", mail)


def _botocore(tracer: Tracer, module: Any) -> None:
    def api(client: Any, operation: str, parameters: Mapping[str, Any]) -> Call:
        key = next((str(parameters[name]) for name in _KEY_PARAMETERS if name in parameters), None)
        service = client.meta.service_model.service_name
        outbound = key is not None or operation.startswith(_EFFECTS)
        return Call(f"{service} {operation}", outbound=outbound, key=key)

    trace_calls(tracer, importlib.import_module("botocore.client").BaseClient, "_make_api_call", api)
    if "aiobotocore" in sys.modules:
        trace_calls(tracer, importlib.import_module("aiobotocore.client").AioBaseClient, "_make_api_call", api)


LIBRARIES: dict[str, Callable[[Tracer, Any], None]] = {
    "sqlite3": _sqlite,
    "psycopg": _psycopg,
    "asyncpg": _asyncpg,
    "pymysql": _mysql,
    "asyncmy": _mysql,
    "aiosqlite": _aiosqlite,
    "sqlalchemy": _sqlalchemy,
    "redis": _redis,
    "httpx": _httpx,
    "requests": _requests,
    "urllib.request": _urllib,
    "aiohttp": _aiohttp,
    "smtplib": _smtplib,
    "botocore": _botocore,
}
"""The instrumentation of libraries, by the module to import."""


def instrument(tracer: Tracer, done: set[str]) -> None:
    """Instrument every library that this process has imported, unless it is ``done``."""
    for name, library in LIBRARIES.items():
        if name in sys.modules and name not in done:
            done.add(name)
            library(tracer, sys.modules[name])


def watch_also(tracer: Tracer, target: str) -> None:
    """Instrument a function of the user's choice, given as "package.module:Class.method"."""
    module, _, path = target.partition(":")
    *parents, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for parent in parents:
            owner = getattr(owner, parent)
        inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"watch={target!r}: {error}.") from error
    trace_calls(tracer, owner, name, lambda *_, **__: Call(target, outbound=True))
