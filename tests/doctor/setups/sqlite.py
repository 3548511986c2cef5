"""SQLite, set up wrongly; stores that are not there, and one that forgets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from retrysafe import Boundary, OutcomeUnknown
from retrysafe.protocol.checks import Severity
from tests.doctor.setups import application
from tests.doctor.setups.form import ERROR, WARNING, Arguments, Ground, Setup, migrated
from tests.ports import free_port


def _stated(finds: str, severity: Severity, broken: str, *statements: str) -> Setup:
    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        url = migrated(f"sqlite:///{ground.folder}/shop.db")
        with closing(sqlite3.connect(ground.folder / "shop.db", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
        yield ["--store", url]

    return Setup(broken, f"`{'; '.join(statements)}`", finds, severity, make)


def _opened(finds: str, severity: Severity, broken: str, pragma: str) -> Setup:
    """Broken by how an application opens its connections."""
    listener = f"event.listen(engine, 'connect', lambda connection, _: connection.execute('{pragma}'))"

    @contextmanager
    def make(ground: Ground) -> Iterator[Arguments]:
        text = application.on_engine("create_engine('sqlite:///shop.db')", listener)
        yield application.written(ground, text)

    return Setup(broken, f"`{pragma}` on the connections of the application's engine", finds, severity, make)


@contextmanager
def _dead(ground: Ground) -> Iterator[Arguments]:
    yield ["--store", f"postgresql://shop@127.0.0.1:{free_port()}/shop"]


_FORGETFUL = application.SOUND.replace("sqlite:///shop.db", "memory://").replace("transactional", "keyed")


@contextmanager
def _in_memory(ground: Ground) -> Iterator[Arguments]:
    yield application.written(ground, _FORGETFUL)


@contextmanager
def _in_doubt(ground: Ground) -> Iterator[Arguments]:
    url = migrated(f"sqlite:///{ground.folder}/shop.db")
    with (
        closing(Boundary("shop", store=url, effects="external", observers=())) as boundary,
        suppress(TimeoutError),
        boundary.claim("order 1"),
    ):
        raise TimeoutError
    yield ["--store", url]


@contextmanager
def _stranded(ground: Ground) -> Iterator[Arguments]:
    url = migrated(f"sqlite:///{ground.folder}/shop.db")
    with (
        closing(Boundary("shop", store=url, effects="keyed", observers=())) as boundary,
        suppress(TimeoutError),
        boundary.claim("order 1") as claim,
    ):
        claim.step("charge", str)
        raise TimeoutError
    with closing(sqlite3.connect(ground.folder / "shop.db")) as connection, connection:
        connection.execute("UPDATE retrysafe_records SET updated = updated - 7200000000")
    yield ["--store", url]


@contextmanager
def _in_a_step(ground: Ground) -> Iterator[Arguments]:
    url = migrated(f"sqlite:///{ground.folder}/shop.db")
    with closing(Boundary("shop", store=url, effects="keyed", observers=())) as boundary:
        for expected in (TimeoutError, OutcomeUnknown):
            with suppress(expected), boundary.claim("order 1") as claim, claim.step("mail", effects="external"):
                raise TimeoutError
    yield ["--store", url]


BROKEN = (
    _stated(
        "sqlite-unique-key",
        ERROR,
        "A table has lost the key by which one of two claims wins.",
        "DROP TABLE retrysafe_outbox_paused",
        "CREATE TABLE retrysafe_outbox_paused (topic TEXT, paused_at INTEGER)",
    ),
    _stated("sqlite-indexes", WARNING, "An index is gone.", "DROP INDEX retrysafe_records_tombstone"),
    _opened(
        "sqlite-synchronous",
        WARNING,
        "A commit is acknowledged before it is on disk.",
        "PRAGMA synchronous = OFF",
    ),
    _opened(
        "sqlite-journal",
        ERROR,
        "A crash in a commit corrupts the file.",
        "PRAGMA journal_mode = MEMORY",
    ),
    Setup("Nobody answers.", "a port where nothing listens", "store-unreachable", ERROR, _dead),
    Setup(
        "A restart forgets every key.",
        '`Boundary(store="memory://")` in an application',
        "memory-store",
        WARNING,
        _in_memory,
    ),
    Setup(
        "Retries of a key are refused until somebody settles it.",
        'an attempt that raised `TimeoutError`, with `effects="external"`',
        "store-unknown",
        WARNING,
        _in_doubt,
    ),
    Setup(
        "Work in steps was begun, and its caller has gone.",
        "an attempt that raised `TimeoutError` behind a step, two hours ago",
        "runs-stranded",
        WARNING,
        _stranded,
    ),
    Setup(
        "It is not known whether a step has happened.",
        'two attempts at a step that raises `TimeoutError`, with `effects="external"` and without `probe=`',
        "runs-in-doubt",
        WARNING,
        _in_a_step,
        ("store-unknown",),
    ),
)
