"""SQLite's own statements under the simulated clock: `--store tests.laboratory.simulation.sqlite:subject`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from retrysafe.backends import migrations
from retrysafe.backends.sql.drivers.base import in_turn
from retrysafe.backends.sql.drivers.sqlite import perform
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Query, Rows
from tests.laboratory.simulation.world import Subject

_MILLIS_A_DAY = 86_400_000
_EPOCH = 2440587.5
"""The Julian day on which the Unix epoch began."""


def subject(clock: Callable[[], Micros]) -> Subject:
    """A database in memory, whose `julianday('now')` is the simulated time."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for migration in migrations.load("sqlite"):
        for statement in migration.statements:
            connection.execute(statement)
    connection.create_function("julianday", 1, lambda _: clock() // 1000 / _MILLIS_A_DAY + _EPOCH)

    def execute(query: Query) -> Rows:
        return in_turn(query, lambda part: perform(connection, part))

    return Subject(SqliteStore(), execute, quantum=1000)
