"""PostgreSQL, set up wrongly: its settings, its schema, its replicas, and what stands before it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import psycopg

from retrysafe.messaging.cdc import Slot
from retrysafe.protocol.checks import Severity
from tests.conftest import absent
from tests.doctor.setups import application
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Making, Setup, migrated
from tests.faults.servers import LogicalCluster, PgBouncer, pgbouncer_program, postgresql_programs

UTF8 = "ENCODING 'UTF8' TEMPLATE template0"


def database(ground: Ground, settings: str = UTF8) -> str:
    """A migrated database of the test's own."""
    name = f"d{secrets.token_hex(6)}"
    with ground.cluster().admin() as admin:
        admin.execute(f"CREATE DATABASE {name} {settings}".encode())
    return migrated(urlsplit(ground.cluster().url)._replace(path=f"/{name}").geturl())


def perform(url: str, *statements: str) -> None:
    """Run statements in a database, whose name takes the place of "shop"."""
    name = urlsplit(url).path.strip("/")
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.replace("DATABASE shop", f"DATABASE {name}").encode())


def _after(statement: str) -> Making:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url = database(ground)
        perform(url, statement)
        yield ["--store", url]

    return make


def _stated(finds: str, severity: Severity, broken: str, statement: str) -> Setup:
    return Setup(broken, f"`{statement}`", finds, severity, _after(statement))


@contextmanager
def _torn_pages(ground: Ground) -> Iterator[Arguments]:
    url = database(ground)
    ground.cluster().set(full_page_writes="off")
    try:
        yield ["--store", url]
    finally:
        ground.cluster().set(full_page_writes="on")


@contextmanager
def _ascii(ground: Ground) -> Iterator[Arguments]:
    name = f"d{secrets.token_hex(6)}"
    with ground.cluster().admin() as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0".encode())
    yield ["--store", urlsplit(ground.cluster().url)._replace(path=f"/{name}").geturl()]


@contextmanager
def _latin(ground: Ground) -> Iterator[Arguments]:
    yield ["--store", f"{database(ground)}?client_encoding=LATIN1"]


@contextmanager
def _replica(ground: Ground) -> Iterator[Arguments]:
    url = database(ground)
    with closing(ground.cluster().replica("one")):
        yield ["--store", url]


@contextmanager
def _standby(ground: Ground) -> Iterator[Arguments]:
    url = database(ground)
    with closing(ground.cluster().replica("two")) as replica:
        yield ["--store", urlsplit(replica.url)._replace(path=urlsplit(url).path).geturl()]


@contextmanager
def _pooled(ground: Ground) -> Iterator[Arguments]:
    program = pgbouncer_program()
    if program is None:
        absent("no pgbouncer")
    url = database(ground)
    with closing(PgBouncer(program, ground.cluster().url)) as pooler:
        yield ["--store", pooler.before(url)]


@contextmanager
def _impatient(ground: Ground) -> Iterator[Arguments]:
    url = database(ground)
    perform(url, _IDLE)
    yield application.written(ground, application.SOUND.replace("sqlite:///shop.db", url))


@contextmanager
def _under_tenant(ground: Ground) -> Iterator[Arguments]:
    url = database(ground)
    perform(url, "CREATE SCHEMA blue", _TENANT)
    yield ["--store", url]


def as_reader(url: str) -> str:
    """The database by a user of the test's own, who may read it."""
    user = f"u{secrets.token_hex(6)}"
    perform(url, f"CREATE ROLE {user} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
    address = urlsplit(url)
    return address._replace(netloc=f"{user}@{address.netloc.rpartition('@')[2]}").geturl()


@contextmanager
def _read_only(ground: Ground) -> Iterator[Arguments]:
    yield ["--store", as_reader(database(ground))]


_TENANT = "ALTER DATABASE shop SET search_path = blue, public"
_IDLE = "ALTER DATABASE shop SET idle_in_transaction_session_timeout = '10s'"


def _with_a_slot(**settings: str) -> Making:
    """A server whose log tells of rows, with the slot of a relay that has gone."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        programs = postgresql_programs()
        if programs is None:
            absent("there is no PostgreSQL server to start")
        with closing(LogicalCluster(programs)) as server:
            name = f"d{secrets.token_hex(6)}"
            with server.admin() as admin:
                admin.execute(f"CREATE DATABASE {name} {UTF8}".encode())
            url = migrated(urlsplit(server.url)._replace(path=f"/{name}").geturl())
            server.set(**settings)
            Slot(url).create()
            yield ["--store", url]

    return make


BROKEN = (
    _stated(
        "postgresql-synchronous-commit",
        WARNING,
        "A commit is acknowledged before it is on disk.",
        "ALTER DATABASE shop SET synchronous_commit = off",
    ),
    Setup(
        "A page that was half written when the power failed is lost.",
        "`ALTER SYSTEM SET full_page_writes = off`",
        "postgresql-fsync",
        ERROR,
        _torn_pages,
    ),
    _stated(
        "postgresql-read-only",
        ERROR,
        "Transactions cannot write.",
        "ALTER DATABASE shop SET default_transaction_read_only = on",
    ),
    Setup(
        "The user may read the tables, and write none.",
        "`GRANT SELECT ON ALL TABLES IN SCHEMA public TO shop`",
        "postgresql-privileges",
        ERROR,
        _read_only,
    ),
    _stated(
        "postgresql-isolation",
        WARNING,
        "Every transaction is serializable, and fails where it would have waited.",
        "ALTER DATABASE shop SET default_transaction_isolation = 'serializable'",
    ),
    _stated(
        "postgresql-statement-timeout",
        WARNING,
        "A claim cannot wait for another one.",
        "ALTER DATABASE shop SET statement_timeout = '300ms'",
    ),
    Setup(
        "Each tenant has a schema and a login, and all of them share retrysafe's tables.",
        f"`{_TENANT}`",
        "postgresql-search-path",
        WARNING,
        _under_tenant,
    ),
    Setup(
        "A transaction ends before the lease of the work in it.",
        f'`{_IDLE}`, and a boundary with `lease="30s"`',
        "postgresql-idle-transaction-timeout",
        WARNING,
        _impatient,
    ),
    _stated(
        "postgresql-unique-key",
        ERROR,
        "Two claims of one key both win.",
        "ALTER TABLE retrysafe_records DROP CONSTRAINT retrysafe_records_pkey",
    ),
    _stated(
        "postgresql-unlogged",
        ERROR,
        "A crash of the server empties a table.",
        "ALTER TABLE retrysafe_records SET UNLOGGED",
    ),
    _stated("postgresql-indexes", WARNING, "An index is gone.", "DROP INDEX retrysafe_records_tombstone"),
    _stated(
        "store-schema",
        ERROR,
        "The schema is older than this version needs.",
        "DELETE FROM retrysafe_schema WHERE version > 3",
    ),
    Setup(
        "The database cannot store every character.",
        "`CREATE DATABASE shop ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0`",
        "postgresql-encoding",
        ERROR,
        _ascii,
        beside=("store-schema",),
    ),
    Setup(
        "Connections cannot carry every character.",
        "`?client_encoding=LATIN1` in the URL",
        "postgresql-client-encoding",
        ERROR,
        _latin,
    ),
    Setup(
        "A failover loses the last commits.",
        "a streaming replica, without `synchronous_standby_names`",
        "postgresql-asynchronous-replica",
        WARNING,
        _replica,
    ),
    Setup("The store is a standby.", "the URL of a streaming replica", "postgresql-standby", ERROR, _standby),
    Setup(
        "Connections change sessions between transactions.",
        "PgBouncer with `pool_mode = transaction` in front",
        "postgresql-pooler",
        WARNING,
        _pooled,
    ),
    Setup(
        "A slot that nobody reads from fills the disk.",
        "`retrysafe cdc create` without `max_slot_wal_keep_size`",
        "postgresql-slot-limit",
        WARNING,
        _with_a_slot(max_slot_wal_keep_size="-1"),
        beside=("postgresql-slot-reader",),
    ),
    Setup(
        "The log is kept for a relay that has gone.",
        "`retrysafe cdc create`, and no relay with `--cdc`",
        "postgresql-slot-reader",
        WARNING,
        _with_a_slot(max_slot_wal_keep_size="1GB"),
    ),
)
