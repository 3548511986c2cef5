"""Loads into SQLite, PostgreSQL, MySQL and MariaDB: the mark is a row of a table beside the data, in their commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import chain, islice
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import restarting, run
from retrysafe.backends.migrations.on_demand import is_present
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers.base import wants_restart
from retrysafe.backends.user_tables import UserTable
from retrysafe.errors import ConfigurationError, RetryTransaction
from retrysafe.loads.work import Mark, Merge, Work, may_publish, part_of
from retrysafe.protocol.client import AfterCommit
from retrysafe.protocol.requests import Ask, Program, Query, Rows, ask

LEDGER = "retrysafe_loads"
_AT_ONCE = 1000
_PLAIN = frozenset({str, int, date})
"""Types of values that a database compares as Python does."""
_KINDS = ("sqlite", "postgresql", "mysql")
_READ = "fence, run, counted, version, high"
_PART = "target = :target AND part = :part"


class Writing:
    """Writes the rows of a load, in its transaction."""

    mark = "%s"
    _belong = False

    def __init__(self, work: Work, rows: Any, kind: str, opened: Any) -> None:
        self._rows = rows
        self.work, self._kind, self.tx, self._execute = work, kind, opened.handle, opened.execute
        self._names = UserTable(work.table, kind)
        if kind == "sqlite":
            self.mark = "?"
        self._into = self._names.name

    def write(self) -> int:
        work = self.work
        counted = self._merge(work.strategy) if isinstance(work.strategy, Merge) else self._replace_part()
        if work.check is not None and work.check(self.tx) is False:
            raise ValueError(f"check= refused run {work.mark.run!r} of {work.table}. Nothing was loaded.")
        return counted

    def _replace_part(self) -> int:
        work = self.work
        if work.strategy == "append_once":
            return self._fill(self._into)[0]
        whole = "" if work.by is None else f" WHERE {self._names.quoted(work.by)} = :part"
        self._do(f"DELETE FROM {self._into}{whole}", part=work.partition)
        counted, _ = self._fill(self._into)
        if work.by is not None and not self._belong:
            [(found,)] = self._do(f"SELECT count(*) FROM {self._into}{whole}", part=work.partition).rows
            if found != counted:
                raise ConfigurationError(
                    f"Of {counted} rows, {found} have {work.by} = {work.partition!r}: the others would stay when this "
                    "part is loaded again. Nothing was loaded."
                )
        return counted

    # ------------------------------------------------------------ merging

    def _merge(self, merge: Merge) -> int:
        """Fill a stage, and write from it what is new."""
        quoted = self._names.quoted
        key = [quoted(name) for name in merge.key]
        stage = quoted("retrysafe_stage")
        drop = f"DROP {'TEMPORARY ' if self._kind == 'mysql' else ''}TABLE IF EXISTS {stage}"
        self._do(drop)
        self._do(f"CREATE TEMPORARY TABLE {stage} AS SELECT * FROM {self._into} WHERE 1 = 0")
        counted, given = self._fill(stage)
        names = [quoted(name) for name in given]
        newer = None if merge.newer is None else quoted(merge.newer)
        self._refuse_keys(stage, key, unique=newer is None)
        rows = f"SELECT {', '.join(names)} FROM {stage}"
        if newer is not None:
            latest = f"row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {newer} DESC) AS latest"
            rows = f"SELECT {', '.join(names)} FROM (SELECT s.*, {latest} FROM {stage} AS s) AS s WHERE latest = 1"
        changed = [name for name in names if name not in key and name != newer] + ([newer] if newer else [])
        self._do(f"INSERT INTO {self._into} ({', '.join(names)}) {rows} {self._on_conflict(key, changed, newer)}")
        self._do(drop)
        return counted

    def _on_conflict(self, key: list[str], changed: list[str], newer: str | None) -> str:
        old = self._into.rpartition(".")[2]
        if self._kind == "mysql":
            given = [f"VALUES({name})" for name in changed]
            if newer is not None:  # the last of them: the columns before it compare with what is there
                old_is_lower = f"{old}.{newer} IS NULL OR {old}.{newer} < VALUES({newer})"
                given = [f"IF({old_is_lower}, {new}, {old}.{name})" for new, name in zip(given, changed, strict=True)]
            sets = ", ".join(f"{old}.{name} = {new}" for name, new in zip(changed, given, strict=True))
            return f"ON DUPLICATE KEY UPDATE {sets}"
        guard = "" if newer is None else f" WHERE {old}.{newer} IS NULL OR {old}.{newer} < excluded.{newer}"
        sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
        parsed = "WHERE true " if self._kind == "sqlite" and newer is None else ""  # SQLite takes ON for that of a join
        return f"{parsed}ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}{guard}"

    def _refuse_keys(self, stage: str, key: list[str], *, unique: bool) -> None:
        without = " OR ".join(f"{name} IS NULL" for name in key)
        faults = [f"SELECT 1 FROM {stage} WHERE {without} LIMIT 1"]
        if unique:
            faults.append(f"SELECT 1 FROM {stage} GROUP BY {', '.join(key)} HAVING count(*) > 1 LIMIT 1")
        if any(self._do(fault).rows for fault in faults):
            raise ConfigurationError(
                f"The rows have a key {', '.join(key)} with NULL in it, or twice without newer= to choose by. "
                "Nothing was loaded."
            )

    # ------------------------------------------------------------ rows

    def _fill(self, into: str) -> tuple[int, list[str]]:
        """Write the rows of the load into a table; return how many they are, and their columns."""
        rows, tag = self._rows, self.work.tag
        tagged = () if tag is None else (self.work.tagged,)
        known = self._columns()
        if tag is not None and tag not in known:
            raise ConfigurationError(f"{self.work.table} has no column {tag!r}: add it, or write tag=None.")
        others = [name for name in known if name != tag]
        if isinstance(rows, str):
            names = [*others, *([] if tag is None else [tag])]
            text = rows if self.mark == "?" or not tagged else rows.replace("%", "%%")
            more = f", {self.mark}" * len(tagged)
            sql = f"INSERT INTO {into} ({self._list(names)}) SELECT q.*{more} FROM ({text}) AS q"
            return self.insert(sql, tagged), names
        given, tuples = _tuples(rows)
        names = [*(given or others), *([] if tag is None else [tag])]
        by = names.index(self.work.by) if self.work.by in names else None
        return self.copy(f"{into} ({self._list(names)})", len(names), self._tag(tuples, tagged, by)), names

    def _tag(self, rows: Iterator[Sequence[Any]], tagged: tuple[str, ...], by: int | None) -> Iterator[tuple[Any, ...]]:
        """The rows with their tag; find out whether all belong to the partition, which else the database is asked."""
        expected, belong = self.work.partition, by is not None
        for row in rows:
            if by is not None and row[by] != expected:
                belong = belong and type(row[by]) in _PLAIN and part_of(self.work.by, row[by]) == self.work.part
                expected = row[by]
            yield tuple(row) + tagged
        self._belong = belong

    def insert(self, sql: str, args: tuple[Any, ...]) -> int:
        """Perform an INSERT of the user's rows; return their number."""
        cursor = self.cursor()
        cursor.execute(sql, args)
        return int(cursor.rowcount)

    def copy(self, into: str, width: int, rows: Iterator[tuple[Any, ...]]) -> int:
        """Write rows in bulk; return their number."""
        cursor, counted = self.cursor(), 0
        if hasattr(cursor, "copy"):  # psycopg
            with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return int(cursor.rowcount)
        insert = f"INSERT INTO {into} VALUES ({', '.join([self.mark] * width)})"
        while some := list(islice(rows, _AT_ONCE)):
            cursor.executemany(insert, some)
            counted += len(some)
        return counted

    def _columns(self) -> list[str]:
        """The columns of the table, in their order."""
        cursor = self.cursor()
        cursor.execute(f"SELECT * FROM {self._into} WHERE 1 = 0")
        names = [column[0] for column in cursor.description]
        cursor.fetchall()
        return names

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._names.quoted, names))

    def cursor(self) -> Any:
        """A cursor of the driver's, below SQLAlchemy and Django."""
        connection = self.tx.connection() if hasattr(self.tx, "get_bind") else self.tx
        return getattr(connection, "connection", connection).cursor()

    def _do(self, sql: str, **params: Any) -> Rows:
        return _perform(self._execute, sql, params)


class SqlTarget:
    """A database with retrysafe's tables."""

    strategies = frozenset({"overwrite", "append_once", "merge"})
    writing = Writing

    def __init__(self, store: Any) -> None:
        self._backend = connect(store)
        kind = self._backend.kind
        if kind not in _KINDS or not self._backend.serves_sync:
            raise ConfigurationError(
                f"The target of loads is {self._backend.address}: give a URL, a sync engine or pool, or a Django "
                "alias, on SQLite, PostgreSQL, MySQL or MariaDB."
            )
        self.store: Any = self._backend.store

    def client(self) -> Any:
        """A client of a database that has the ledger."""
        self._backend.tables.provide("loads")
        return self._backend.ready()

    def look(self, table: str, part: str) -> Mark | None:
        """The mark of the last load of a part."""
        return _mark_of(run(ask(_look(table, part), again=True), self.client()))

    def publish(self, work: Work) -> int:
        """Write rows and mark in one transaction, and again if the database asks for that."""
        return restarting(lambda: self._transact(work))

    def _transact(self, work: Work) -> int:
        rows = work.rows()  # a slow source is read before the transaction, unless it is a generator
        with self.client().transaction() as opened:
            run(ask(self.store.begin()), opened.execute)
            there = self._take(work, opened.execute)
            if there is not None:
                return there.counted
            try:
                counted = self.writing(work, rows, self.store.capabilities.name, opened).write()
            except Exception as error:
                if wants_restart(error):
                    raise RetryTransaction(str(error)) from error
                raise
            _perform(
                opened.execute, f"UPDATE {LEDGER} SET counted = :counted WHERE {_PART}", _parameters(work, counted)
            )
            run(ask(self.store.commit()), opened.execute)
        if isinstance(opened, AfterCommit):
            opened.after_commit()
        return counted

    def _take(self, work: Work, execute: Any) -> Mark | None:
        """Set the mark on its condition, or return it if it is there; other loads of the part then wait for our end."""
        params = _parameters(work, 0)
        update = (
            f"UPDATE {LEDGER} SET fence = :fence, run = :run, counted = :counted, version = :version, high = :high "
            f"WHERE {_PART} AND fence < :fence"
        )
        into, ignoring = self.store.insert_ignoring("target, part")
        insert = (
            f"{into} {LEDGER} (target, part, {_READ}) VALUES (:target, :part, :{_READ.replace(', ', ', :')}) {ignoring}"
        )
        for statement in (update, insert):
            if _perform(execute, statement, params).affected:
                return None
        found = _mark_of(run(ask(_look(work.table, work.part)), execute))
        return None if may_publish(found, work.mark) else found


def marks_of(backend: Backend, limit: int, **named: str) -> Program[list[tuple[str, str, Mark]]]:
    """The tables and parts with their last loads that have these values, without making the ledger in a SQLite file."""
    if backend.kind not in _KINDS:
        raise ConfigurationError(f"{backend.address} is no SQL database: only such a target lists its loads.")
    if backend.kind == "sqlite" and not (yield from is_present("loads")):
        return []
    chosen = " AND ".join(f"{name} = :{name}" for name in named) or "1 = 1"
    most = f" LIMIT {limit:d}" if limit else ""
    sql = f"SELECT target, part, {_READ} FROM {LEDGER} WHERE {chosen} ORDER BY target, part{most}"
    found = yield from ask(Ask(Query(sql, named, writes=False), lambda answer: answer.rows))
    return [(target, part, Mark(*mark)) for target, part, *mark in found]


def _tuples(rows: Any) -> tuple[list[str] | None, Iterator[Sequence[Any]]]:
    """The columns of the rows, if they say so, and their values."""
    if hasattr(rows, "schema") and hasattr(rows, "to_batches"):  # an Arrow table
        batches = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in rows.to_batches())
        return list(rows.schema.names), chain.from_iterable(batches)
    every: Iterator[Any] = iter(rows)
    first = next(every, None)
    if first is None:
        return None, iter(())
    every = chain([first], every)
    if isinstance(first, Mapping):
        return list(first), _values(list(first), every)
    return None, every


def _values(names: list[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Any]]:
    for row in rows:
        if len(row) != len(names) or any(name not in row for name in names):
            raise ConfigurationError(f"The rows differ in their columns: {names} and {list(row)}. Nothing was loaded.")
        yield [row[name] for name in names]


def _look(table: str, part: str) -> Ask[Rows]:
    sql = f"SELECT {_READ} FROM {LEDGER} WHERE {_PART}"
    return Ask(Query(sql, {"target": table, "part": part}, writes=False), lambda rows: rows)


def _mark_of(answer: Rows) -> Mark | None:
    return Mark(*answer.rows[0]) if answer.rows else None


def _parameters(work: Work, counted: int) -> dict[str, Any]:
    return {"target": work.table, "part": work.part, **work.mark._asdict(), "counted": counted}


def _perform(execute: Any, sql: str, params: Mapping[str, Any]) -> Rows:
    request: Ask[Rows] = Ask(Query(sql, params, patient=True), lambda rows: rows)
    return run(ask(request), execute)
