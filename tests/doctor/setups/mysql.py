"""MySQL, set up wrongly: its settings, its schema, and how an application connects."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from retrysafe.protocol.checks import Severity
from tests.conftest import absent
from tests.doctor.setups import application
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Making, Setup, migrated
from tests.faults.servers import MariaDB, mariadb_program
from tests.stores.ageing import mysql_connection


def database(server: MariaDB) -> str:
    """A migrated database of the test's own."""
    name = f"d{secrets.token_hex(6)}"
    with closing(mysql_connection(server.url, autocommit=True)) as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return migrated(urlsplit(server.url)._replace(path=f"/{name}").geturl())


def _stated(finds: str, severity: Severity, broken: str, statement: str, mending: str = "") -> Setup:
    """Broken by a statement; one that changes the whole server is mended by another one."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url = database(ground.mariadb())
        with closing(mysql_connection(url, autocommit=True)) as connection:
            connection.cursor().execute(statement)
            try:
                yield ["--store", url]
            finally:
                if mending:
                    connection.cursor().execute(mending)

    return Setup(broken, f"`{statement}`", finds, severity, make)


def _started(finds: str, severity: Severity, broken: str, *settings: str) -> Setup:
    """Broken by how the server was started."""

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        with closing(server(*settings)) as made:
            yield ["--store", migrated(made.url)]

    return Setup(broken, f"`mariadbd {' '.join(settings)}`", finds, severity, make)


def server(*settings: str) -> MariaDB:
    """A MariaDB of the test's own."""
    program = mariadb_program()
    if program is None:
        absent("no mariadbd")
    return MariaDB(program, *settings)


def _through(engine: str) -> Making:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url = database(ground.mariadb()).replace("mysql:", "mysql+pymysql:", 1)
        yield application.written(ground, application.on_engine(f"create_engine('{url}{engine}')"))

    return make


BROKEN = (
    _stated(
        "mysql-flush-log",
        WARNING,
        "A commit is acknowledged before it is on disk.",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    ),
    _stated(
        "mysql-isolation",
        ERROR,
        "Results are seen before they are committed.",
        "SET GLOBAL tx_isolation = 'READ-UNCOMMITTED'",
        "SET GLOBAL tx_isolation = 'REPEATABLE-READ'",
    ),
    _stated(
        "mysql-sql-mode",
        WARNING,
        "A value that does not fit is cut off.",
        "SET GLOBAL sql_mode = ''",
        "SET GLOBAL sql_mode = DEFAULT",
    ),
    _stated(
        "mysql-read-only",
        ERROR,
        "The server is read-only, as a replica is.",
        "SET GLOBAL read_only = ON",
        "SET GLOBAL read_only = OFF",
    ),
    _stated(
        "mysql-packet",
        WARNING,
        "Results of the largest size cannot be stored.",
        "SET GLOBAL max_allowed_packet = 1048576",
        "SET GLOBAL max_allowed_packet = 67108864",
    ),
    _stated(
        "mysql-engine",
        ERROR,
        "A table takes no part in transactions.",
        "ALTER TABLE retrysafe_outbox_buckets ENGINE = MyISAM",
    ),
    _stated(
        "mysql-table-charset",
        ERROR,
        "A table cannot store every character.",
        "ALTER TABLE retrysafe_outbox_paused CONVERT TO CHARACTER SET latin1",
    ),
    _stated(
        "mysql-unique-key",
        ERROR,
        "Two claims of one key both win.",
        "ALTER TABLE retrysafe_records DROP PRIMARY KEY",
    ),
    _stated(
        "mysql-indexes",
        WARNING,
        "An index is gone.",
        "DROP INDEX retrysafe_records_tombstone ON retrysafe_records",
    ),
    _started(
        "mysql-rollback-on-timeout",
        ERROR,
        "A lock timeout rolls the whole transaction back.",
        "--innodb-rollback-on-timeout=ON",
    ),
    _started(
        "mysql-sync-binlog",
        WARNING,
        "After a crash, replicas lack the last commits.",
        "--log-bin=log",
        "--sync-binlog=0",
    ),
    _started("mysql-doublewrite", WARNING, "A torn page is lost.", "--innodb-doublewrite=OFF"),
    Setup(
        "Connections cannot carry every character.",
        '`Boundary(store=create_engine("mysql+pymysql://…/shop?charset=latin1"))`',
        "mysql-charset",
        ERROR,
        _through("?charset=latin1"),
    ),
)
