"""The written part of a job's inputs, in a table of the database that has the data.

A row is of one source of one job: the next position that is not written, and an epoch that each take-over of the
source counts up. A position is moved in the transaction that writes the data, only from where it was found and under
the epoch that was found. The statements are those that SQLite, PostgreSQL, MySQL and MariaDB share, over the DB-API.

A row is found by a digest: a collation of MySQL takes two names for one that differ in case, accents or a last space.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from retrysafe.errors import ConfigurationError

NONE = -1
"""The next position of a source of which nothing was written."""
LONGEST = 250
"""Characters of the name of a job, a source and an origin."""
TABLE = """CREATE TABLE IF NOT EXISTS {table} (
    id CHAR(64) NOT NULL PRIMARY KEY,
    job VARCHAR(250) NOT NULL,
    source VARCHAR(250) NOT NULL,
    origin VARCHAR(250) NOT NULL,
    position BIGINT NOT NULL,
    epoch BIGINT NOT NULL
)"""
_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)


class Position(NamedTuple):
    """The position of a source.

    next: the first position that is not written, or below 0: none is.
    epoch: counted up by each process that takes the source over.
    origin: what positions are counted from, such as the id of a query with its checkpoint.
    """

    next: int
    epoch: int
    origin: str


class Positions:
    """The rows of one job. ``placeholder``: of a parameter in the SQL of the driver."""

    def __init__(self, job: str, table: str, placeholder: str) -> None:
        if placeholder not in ("?", "%s"):
            raise ConfigurationError(f'placeholder={placeholder!r}: write "?" for sqlite3, "%s" for other drivers.')
        if not _NAME.fullmatch(table):
            raise ConfigurationError(f"table={table!r}: write the name of a table, with or without its schema.")
        self.job, self._table, self._mark = check_name(job, "job"), table, placeholder
        self._where = f"WHERE id = {placeholder}"

    def create(self, connection: Any) -> None:
        """Make the table, if it is missing, and commit. A table that is there needs no right to make one."""
        if self._exists(connection):
            return
        try:
            self._perform(connection, TABLE.format(table=self._table))
            connection.commit()
        except Exception:  # of two who make it at once, PostgreSQL refuses one
            connection.rollback()
            if not self._exists(connection):
                raise

    def _exists(self, connection: Any) -> bool:
        try:
            self._perform(connection, f"SELECT 1 FROM {self._table} WHERE 1 = 0").fetchone()
        except Exception:  # noqa: BLE001 - drivers share no class for it
            return False
        finally:
            connection.rollback()
        return True

    def find(self, connection: Any, source: str) -> Position | None:
        """Find the position of a source; end the transaction of the connection."""
        reading = f"SELECT position, epoch, origin FROM {self._table} {self._where}"
        row = self._perform(connection, reading, (self._id(source),)).fetchone()
        connection.commit()
        return None if row is None else Position(*row)

    def take(self, connection: Any, source: str) -> Position:
        """Take a source over: who had it before moves it no more. Commits."""
        counting = f"UPDATE {self._table} SET epoch = epoch + 1 {self._where}"
        place = (self._id(source),)
        if not self._perform(connection, counting, place).rowcount:
            self.begin(connection, source)
            self._perform(connection, counting, place)
        connection.commit()
        found = self.find(connection, source)
        assert found is not None
        return found

    def begin(self, connection: Any, source: str, origin: str = "") -> Position:
        """The row of a source of which nothing was written; that of its first maker. Commits."""
        marks = ", ".join([self._mark] * 6)
        inserting = f"INSERT INTO {self._table} (id, job, source, origin, position, epoch) VALUES ({marks})"
        values = (self._id(source), self.job, source, check_name(origin, "origin"), NONE, 0)
        connection.rollback()
        with suppress(Exception):  # another may make it at the same time; drivers share no class for it
            self._perform(connection, inserting, values)
            connection.commit()
        connection.rollback()
        found = self.find(connection, source)
        if found is None:
            raise ConfigurationError(f"{self._table} takes no row of source {source!r}, or does not keep it.")
        return found

    def move(self, connection: Any, source: str, found: Position, to: Position) -> bool:
        """Move a source from where it was found, in the transaction of the connection; whether it was still there."""
        moving = (
            f"UPDATE {self._table} SET position = {self._mark}, epoch = {self._mark}, origin = {self._mark} "
            f"{self._where} AND position = {self._mark} AND epoch = {self._mark}"
        )
        values = (to.next, to.epoch, to.origin, self._id(source), found.next, found.epoch)
        moved: int = self._perform(connection, moving, values).rowcount
        return moved == 1

    def forget(self, connection: Any) -> int:
        """Delete the rows of the job, and commit; how many there were."""
        reading = f"SELECT id, job FROM {self._table} WHERE job = {self._mark}"
        ours = [one for one, job in self._perform(connection, reading, (self.job,)).fetchall() if job == self.job]
        for one in ours:
            self._perform(connection, f"DELETE FROM {self._table} {self._where}", (one,))
        connection.commit()
        return len(ours)

    def _id(self, source: str) -> str:
        return hashlib.sha256(f"{self.job}\0{check_name(source, 'source')}".encode()).hexdigest()

    def _perform(self, connection: Any, sql: str, parameters: Sequence[Any] = ()) -> Any:
        cursor = connection.cursor()
        cursor.execute(sql, parameters)
        return cursor


def check_name(text: str, what: str) -> str:
    """A name that fits its column. Raises `ConfigurationError` for another one."""
    if len(text) > LONGEST or "\0" in text or (not text and what == "job"):
        raise ConfigurationError(f"{what}={text!r:.80}: write 1 to {LONGEST} characters, without NUL.")
    return text


def refuse_autocommit(connection: Any, placeholder: str) -> None:
    """Raise `ConfigurationError` for a connection on which data and position would be committed one by one."""
    commits = getattr(connection, "autocommit", False)
    is_own = not callable(commits) and commits is True
    if callable(getattr(connection, "get_autocommit", None)):  # PyMySQL
        is_own = connection.get_autocommit()
    if is_own or (placeholder == "?" and getattr(connection, "isolation_level", "") is None):
        raise ConfigurationError("connect= opens connections in autocommit: data and position would part.")
