"""Loads into SQLite, PostgreSQL, MySQL and MariaDB: the mark is a row of a table beside the data, in their commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import cached_property
from itertools import chain, islice
from typing import Any
from uuid import uuid4

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import run, run_transaction
from retrysafe.backends.migrations.on_demand import is_present
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.constraints import by_constraint
from retrysafe.backends.sql.drivers.base import is_unreachable, wants_restart
from retrysafe.backends.user_tables import UserTable
from retrysafe.errors import ConfigurationError, RetryTransaction, StoreUnavailable
from retrysafe.loads.work import WHOLE, Mark, Merge, Work, may_publish, part_of
from retrysafe.protocol.client import AfterCommit
from retrysafe.protocol.requests import Ask, Program, Query, Rows, ask

LEDGER = "retrysafe_loads"
_AT_ONCE = 1000
_PLAIN = frozenset({str, int, date})
"""Types of values that a database compares as Python does."""
_KINDS = {"sqlite": "", "postgresql": " FOR SHARE", "mysql": " LOCK IN SHARE MODE"}
"""The databases, and the end of a query that keeps others from writing its rows; on SQLite one at a time writes."""
_ALIKE = {
    "mysql": "CONCAT({0}, '') = :part AND HEX(CONVERT({0} USING utf8mb4)) <> HEX(CONVERT(:part USING utf8mb4))",
    "sqlite": "typeof({0}) = 'text' AND CAST({0} AS BLOB) <> CAST(:part AS BLOB)",
}
"""Rows of another text, where a collation takes texts for equal; dates and numbers may be written in other ways."""
_READ = "fence, run, counted, version, high"
_CLASS = (
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(CAST(:quoted AS text))"
)
_BARE = "CASE WHEN :target LIKE 'main.%' THEN substr(:target, 6) ELSE :target END"
_NAMED = {
    "sqlite": f"coalesce((SELECT name FROM main.sqlite_master WHERE name = {_BARE} COLLATE NOCASE), {_BARE})",
    "postgresql": "coalesce((SELECT CASE WHEN n.oid = (SELECT l.relnamespace FROM pg_class AS l "
    f"WHERE l.oid = to_regclass('{LEDGER}')) THEN '' ELSE n.nspname || '.' END || c.relname {_CLASS}), "
    "CAST(:target AS text))",
    "mysql": "TRIM(LEADING concat(DATABASE(), '.') FROM :target)",
}
"""A table as the ledger names it, however it is written; by search_path the same text may be another table for each
tenant."""
_WHOLE = {
    "sqlite": f"SELECT file, {_NAMED['sqlite']} FROM pragma_database_list WHERE name = 'main'",
    "postgresql": "SELECT concat((SELECT system_identifier FROM pg_control_system()), '/', current_database()), "
    f"concat(n.nspname, '.', c.relname) {_CLASS}",
    "mysql": f"SELECT concat(:address, ' ', DATABASE()), {_NAMED['mysql']}",
}
"""Queries of the place and the whole name of a table, which no other place has, whatever leads there."""


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
        self._refuse_alike(whole)
        self._do(f"DELETE FROM {self._into}{whole}", part=work.partition)
        counted, _ = self._fill(self._into)
        if work.by is not None and not self._belong:
            self._refuse_alike(whole)
            [(found,)] = self._do(f"SELECT count(*) FROM {self._into}{whole}", part=work.partition).rows
            if found != counted:
                raise ConfigurationError(
                    f"Of {counted} rows, {found} have {work.by} = {work.partition!r}: the others would stay when this "
                    "part is loaded again. Nothing was loaded."
                )
        return counted

    def _refuse_alike(self, whole: str) -> None:
        """Refuse a part that has rows of another one in the database's eyes: the load of one would delete the other."""
        work = self.work
        if work.by is None or not isinstance(work.partition, str) or self._kind not in _ALIKE:
            return
        column = self._names.quoted(work.by)
        other = f"SELECT {column} FROM {self._into}{whole} AND {_ALIKE[self._kind].format(column)} LIMIT 1"
        if found := self._do(other, part=work.partition).rows:
            raise ConfigurationError(
                f"{work.by} = {found[0][0]!r} and {work.partition!r} are one part by the collation of the column, and "
                "two for retrysafe. Write it always alike, or give the column a binary collation. Nothing was loaded."
            )

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
        self.work.refuse_merge(merge, given)
        names = [quoted(name) for name in given]
        newer = None if merge.newer is None else quoted(merge.newer)
        self._refuse_keys(stage, key, newer)
        rows = f"SELECT {', '.join(names)} FROM {stage}"
        if newer is not None:
            latest = f"row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {newer} DESC) AS latest"
            rows = f"SELECT {', '.join(names)} FROM (SELECT s.*, {latest} FROM {stage} AS s) AS s WHERE latest = 1"
        changed = [name for name in names if name not in key and name != newer] + ([newer] if newer else [])
        sql = f"INSERT INTO {self._into} ({', '.join(names)}) {rows} {self._on_conflict(key, changed, newer)}"
        run(by_constraint(Query(sql, {}, patient=True), self._names, self._kind, merge.key), self._execute)
        self._do(drop)
        return counted

    def _on_conflict(self, key: list[str], changed: list[str], newer: str | None) -> str:
        old = self._into.rpartition(".")[2]
        changed = changed or key[:1]  # rows that are only their key
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

    def _refuse_keys(self, stage: str, key: list[str], newer: str | None) -> None:
        without = " OR ".join(f"{name} IS NULL" for name in [*key, *([newer] if newer else [])])
        faults = [f"SELECT 1 FROM {stage} WHERE {without} LIMIT 1"]
        if newer is None:
            faults.append(f"SELECT 1 FROM {stage} GROUP BY {', '.join(key)} HAVING count(*) > 1 LIMIT 1")
        if any(self._do(fault).rows for fault in faults):
            raise ConfigurationError(
                f"The rows have a key {', '.join(key)} with NULL in it, or twice without newer= to choose by; or NULL "
                "in the column newer=. Nothing was loaded."
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
            if self.work.late is not None:
                raise ConfigurationError("late= reads rows, not SQL: say so in the SELECT. Nothing was loaded.")
            names = [*others, *([] if tag is None else [tag])]
            text = rows if self.mark == "?" or not tagged else rows.replace("%", "%%")
            more = f", {self.mark}" * len(tagged)
            sql = f"INSERT INTO {into} ({self._list(names)}) SELECT q.*{more} FROM ({text}\n) AS q"
            return self.insert(sql, tagged), names
        given, tuples = _tuples(rows)
        if given is None:
            tuples = self._full(tuples, others)
        elif {name.casefold() for name in given} - {name.casefold() for name in others}:
            raise self.work.unfit(others, ", ".join(given))
        names = [*(given or others), *([] if tag is None else [tag])]
        by = names.index(self.work.by) if self.work.by in names else None
        late: list[tuple[Any, ...]] = []
        timely = self._tag(self._without_late(tuples, names, late), tagged, by)
        counted = self.copy(f"{into} ({self._list(names)})", len(names), timely)
        if late:
            assert self.work.late is not None
            apart = UserTable(self.work.late.table, self._kind).name
            self.copy(f"{apart} ({self._list(names)})", len(names), (row + tagged for row in late))
        return counted, names

    def _full(self, rows: Iterator[Sequence[Any]], names: list[str]) -> Iterator[Sequence[Any]]:
        """The rows, each of which has a value for each column."""
        width = len(names)
        for row in rows:
            if isinstance(row, str) or len(row) != width:
                raise self.work.unfit_row(names, row)
            yield row

    def _without_late(
        self, rows: Iterator[Sequence[Any]], names: list[str], late: list[tuple[Any, ...]]
    ) -> Iterator[Sequence[Any]]:
        """The rows but for those below the window, which are collected."""
        where, low = self.work.late, self.work.low
        if where is None or low is None:
            yield from rows
            return
        if where.by not in names:
            raise ConfigurationError(f"late= compares {where.by!r}, and the rows have {names}. Nothing was loaded.")
        at = names.index(where.by)
        for row in rows:
            try:
                below = row[at] < low
            except TypeError as error:
                raise ConfigurationError(
                    f"late= cannot compare {where.by} = {row[at]!r} with the window's {low!r}. Nothing was loaded."
                ) from error
            if below:
                late.append(tuple(row))
            else:
                yield row

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
        cursor.execute(sql, *([args] if args else []))
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
    keeps_late = True
    writing = Writing
    address = ""
    named: str
    whole: str
    shared: str

    @cached_property
    def _own(self) -> str:
        return f"memory {uuid4().hex}"

    def __init__(self, store: Any) -> None:
        self._backend = connect(store)
        kind = self._backend.kind
        if kind not in _KINDS or not self._backend.serves_sync:
            raise ConfigurationError(
                f"The target of loads is {self._backend.address}: give a URL, a sync engine or pool, or a Django "
                "alias, on SQLite, PostgreSQL, MySQL or MariaDB."
            )
        self.store: Any = self._backend.store
        self.address, self.shared = self._backend.address, _KINDS[kind]
        self.named, self.whole = _NAMED[kind], _WHOLE[kind]

    def client(self) -> Any:
        """A client of a database that has the ledger."""
        self._backend.tables.provide("loads")
        return self._backend.ready_client()

    def locate(self, table: str) -> str:
        """Ask for the place of a table; one in memory is like no other."""
        query = Query(self.whole, {**self._names(table), "address": self.address}, writes=False)
        found = run(ask(Ask(query, lambda rows: rows.rows), again=True), self.client())
        if not found:
            raise ConfigurationError(f"There is no table {table} in {self.address}. Nothing was loaded.")
        [(place, name)] = found
        return f"{name} into {place or self._own}"

    def look(self, table: str, part: str) -> tuple[Mark | None, int]:
        client = self.client()
        found = _mark_of(run(ask(self._look(table, part), again=True), client))
        return found, run(ask(self._beside(table, part), again=True), client)

    def _beside(self, table: str, part: str) -> Ask[int]:
        """The sum of the fences: each load adds one."""
        others = "<>" if part == WHOLE else "="
        sql = f"SELECT coalesce(sum(fence), 0) FROM {LEDGER} WHERE target = {self.named} AND part {others} :part"
        query = Query(sql, {**self._names(table), "part": WHOLE}, writes=False)
        return Ask(query, lambda found: int(found.rows[0][0]))

    def _look(self, table: str, part: str) -> Ask[Rows]:
        sql = f"SELECT {_READ} FROM {LEDGER} WHERE {self._part} AND fence > 0"
        return Ask(Query(sql, {**self._names(table), "part": part}, writes=False), lambda rows: rows)

    @property
    def _part(self) -> str:
        return f"target = {self.named} AND part = :part"

    def _names(self, table: str) -> dict[str, Any]:
        return _names(table, self.store.capabilities.name)

    def _parameters(self, work: Work, counted: int) -> dict[str, Any]:
        return {**self._names(work.table), "part": work.part, **work.mark._asdict(), "counted": counted}

    def count_late(self, work: Work) -> int:
        """Count the late rows of a load, by their tag."""
        assert work.late is not None
        names = UserTable(work.late.table, self.store.capabilities.name)
        sql = f"SELECT count(*) FROM {names.name} WHERE {names.quoted(str(work.tag))} = :tagged"
        asked: Ask[int] = Ask(Query(sql, {"tagged": work.tagged}, writes=False), lambda found: int(found.rows[0][0]))
        return run(ask(asked, again=True), self.client())

    def publish(self, work: Work) -> int:
        """Write rows and mark in one transaction, and again if the database asks for that."""
        if self._shares(work):
            self._provide_whole(work)
        return run_transaction(lambda: self._transact(work))

    def _shares(self, work: Work) -> bool:
        """True for a load that others may be beside."""
        return work.part != WHOLE and self.shared != ""

    def _provide_whole(self, work: Work) -> None:
        """Write the row of the whole table if it is missing, with no load in it: loads of parts lock it."""
        params = {**self._names(work.table), **Mark(0, "")._asdict(), "part": WHOLE}
        there = Query(f"SELECT 1 FROM {LEDGER} WHERE {self._part}", params, writes=False)
        if not run(ask(Ask(there, lambda found: found.rows), again=True), self.client()):
            _perform(self.client(), self._insert, params)

    @property
    def _insert(self) -> str:
        into, ignoring = self.store.insert_ignoring("target, part")
        values = f"{self.named}, :part, :{_READ.replace(', ', ', :')}"
        return f"{into} {LEDGER} (target, part, {_READ}) VALUES ({values}) {ignoring}"

    def _transact(self, work: Work) -> int:
        rows = work.read()  # a slow source is read before the transaction, unless it is a generator
        with self.client().transaction() as opened:
            run(ask(self.store.begin()), opened.execute)
            if self.shared and self.store.UNFROZEN is not None:  # a snapshot from before a lock misses what was loaded
                _perform(opened.execute, self.store.UNFROZEN, {})
            there = self._take(work, opened.execute)
            if there is not None:
                return there.counted
            try:
                counted = self.writing(work, rows, self.store.capabilities.name, opened).write()
            except Exception as error:
                if wants_restart(error):
                    raise RetryTransaction(str(error)) from error
                if is_unreachable(error):
                    raise StoreUnavailable(str(error)) from error
                raise
            _perform(
                opened.execute,
                f"UPDATE {LEDGER} SET counted = :counted WHERE {self._part}",
                self._parameters(work, counted),
            )
            run(ask(self.store.commit()), opened.execute)
        if isinstance(opened, AfterCommit):
            opened.after_commit()
        return counted

    def _take(self, work: Work, execute: Any) -> Mark | None:
        """Set the mark on its condition, or return it if it is there; loads that overlap then wait for our end."""
        params = self._parameters(work, 0)
        if self._shares(work):  # before the part is locked, as all loads do it
            locked = f"SELECT fence FROM {LEDGER} WHERE {self._part}{self.shared}"
            _perform(execute, locked, {**self._names(work.table), "part": WHOLE})
        update = (
            f"UPDATE {LEDGER} SET fence = :fence, run = :run, counted = :counted, version = :version, high = :high "
            f"WHERE {self._part} AND fence < :fence"
        )
        taken = any(_perform(execute, statement, params).affected for statement in (update, self._insert))
        found = None if taken else _mark_of(run(ask(self._look(work.table, work.part)), execute))
        beside = run(ask(self._beside(work.table, work.part)), execute)
        return None if may_publish(found, beside, work) else found


def is_target(backend: Backend) -> bool:
    """Tell whether a store is a database that can have loads."""
    return backend.kind in _KINDS


def marks_of(backend: Backend, limit: int, **named: str) -> Program[list[tuple[str, str, Mark]]]:
    """The tables and parts with their last loads that have these values, without making the ledger in a SQLite file."""
    if not is_target(backend):
        raise ConfigurationError(f"{backend.address} is no SQL database: only such a target lists its loads.")
    if backend.kind == "sqlite" and not (yield from is_present("loads")):
        return []
    expected = {name: f":{name}" for name in named}
    if "target" in named:
        named, expected["target"] = {**named, **_names(named["target"], backend.kind)}, _NAMED[backend.kind]
    chosen = " AND ".join(["fence > 0", *(f"{name} = {value}" for name, value in expected.items())])
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


def _names(table: str, kind: str) -> dict[str, str]:
    return {"target": table, "quoted": UserTable(table, kind).name}


def _mark_of(answer: Rows) -> Mark | None:
    return Mark(*answer.rows[0]) if answer.rows else None


def _perform(execute: Any, sql: str, params: Mapping[str, Any]) -> Rows:
    request: Ask[Rows] = Ask(Query(sql, params, patient=True), lambda rows: rows)
    return run(ask(request), execute)
