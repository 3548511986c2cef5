"""The simulated servers beside the store: a cache, and the schema of a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.records import Cached, Micros, Record
from retrysafe.protocol.requests import Ask, Query, Rows


class Kept(NamedTuple):
    """A cache's entry of a key: a version, its record unless that was dropped, and its end."""

    version: int
    record: Record | None
    until: Micros


Cells = dict[bytes, Kept]


class SimulatedCache:
    """A cache as a dictionary; each ask is a step over it at an instant of the cache's own clock."""

    def look(self, key: bytes) -> Ask[Cached]:
        """Return the cache's entry of a key."""

        def step(cells: Cells, now: Micros) -> Cached:
            kept = cells.get(key)
            return Cached(None if kept is None or kept.until <= now else kept.record, now)

        return Ask(step, _as_it_is)

    def keep(self, record: Record, until: Micros) -> Ask[None]:
        """Keep a record, unless a later version is known."""
        return self._put(record.key, Kept(record.version, record, until))

    def drop(self, changed: Record, until: Micros) -> Ask[None]:
        """Remember the next version, and no record."""
        return self._put(changed.key, Kept(changed.version + 1, None, until))

    @staticmethod
    def _put(key: bytes, new: Kept) -> Ask[None]:
        def step(cells: Cells, now: Micros) -> None:
            known = cells.get(key)
            if known is None or known.until <= now or known.version < new.version:
                cells[key] = new

        return Ask(step, _as_it_is)


class CacheServer:
    """A cache with a clock of its own, which can lose keys and answer from what it had before."""

    OFFSET = 123_456

    def __init__(self) -> None:
        self.cells: Cells = {}
        self._before: dict[bytes, Kept] = {}

    def __call__(self, request: Callable[[Cells, Micros], Any], now: Micros) -> Any:
        had = dict(self.cells)
        answer = request(self.cells, now + self.OFFSET)
        for key, kept in had.items():
            if self.cells.get(key) is not kept:
                self._before[key] = kept
        return answer

    def evict(self, key: bytes) -> None:
        """Lose a key."""
        if (kept := self.cells.pop(key, None)) is not None:
            self._before[key] = kept

    def go_back(self, key: bytes) -> None:
        """Have what was there before, as a replica that lags behind does."""
        if key in self._before:
            self.cells[key] = self._before[key]


MIGRATIONS = (
    Migration(1, "records", ("CREATE TABLE",)),
    Migration(2, "expand", ("ADD COLUMN",)),
    Migration(3, "contract", ("DROP COLUMN",)),
)
"""The second is what the next version needs, and the third takes away what only the one before uses."""

FIT = {0: (1, 3), 1: (1, 2), 2: (2, 3)}
"""By the version of the code, the oldest and the newest schema with which it works; 0: the tools of an operator."""

LOCK, UNLOCK = Query("LOCK", {}), Query("UNLOCK", {})


class SchemaServer:
    """A database's schema under migration: transactions, one lock, and what was applied in which order."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self.version = 1
        self._broken = broken
        self._applied = [*MIGRATIONS[0].statements]
        self._pending: dict[str, list[Query]] = {}
        self._locked_by: str | None = None

    def __call__(self, who: str, request: Any) -> Any:
        if request == "version":
            return self.version
        if request == "begin":
            self._pending[who] = []
        elif request == "commit":
            self._commit(who)
        elif request is LOCK:
            return self._lock(who)
        elif request is UNLOCK:
            self._unlock(who)
        else:
            self._pending[who].append(request)
        return Rows([], 0)

    def hang_up(self, who: str) -> None:
        """A connection is gone: what it has not committed is rolled back, and its lock is free."""
        self._pending.pop(who, None)
        self._unlock(who)

    def _lock(self, who: str) -> Rows:
        self._locked_by = self._locked_by or who
        return Rows([(int(self._locked_by == who),)], 1)

    def _unlock(self, who: str) -> None:
        if self._locked_by == who:
            self._locked_by = None

    def _commit(self, who: str) -> None:
        for query in self._pending.pop(who, []):
            if query.params:
                if query.params["version"] != self.version + 1:
                    self._broken(f"schema version {query.params['version']} came after {self.version}")
                self.version = query.params["version"]
                continue
            if query.sql in self._applied:
                self._broken(f"{query.sql} was applied twice")
            self._applied.append(query.sql)


class Migrated:
    """The asks about a schema, as a store that has one makes them."""

    def schema_version(self) -> list[Ask[int | None]]:
        """The version."""
        return [Ask("version", _as_it_is)]

    def begin(self) -> Ask[None]:
        """Open a transaction."""
        return Ask("begin", _as_it_is)

    def commit(self) -> Ask[None]:
        """Commit it."""
        return Ask("commit", _as_it_is)


def _as_it_is(answer: Any) -> Any:
    return answer
