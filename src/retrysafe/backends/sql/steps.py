"""Steps in a table beside the records: a step is one INSERT, which selects from its record if that is its claim's.

No statement in the caller's transaction locks the record, whose renewals would wait for the end of that transaction.
There the row has a gate, as a transactional claim has: on PostgreSQL an advisory lock, on MySQL a row of gates. On
SQLite, writers are serial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from retrysafe.backends.sql import reading, selection
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import TABLE
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import Filter, Micros, StoredResult
from retrysafe.protocol.requests import Ask, Query, Rows
from retrysafe.protocol.steps import DECISION, At, FoundRow, RunEntry, RunPage, StepRow, StepState, Work

STEPS = "retrysafe_steps"
_READ = "s.name, s.idx, s.state, s.place, s.undoable, s.fingerprint, s.result, s.media_type, s.codec_version, s.token"
_COLUMNS = "key_hash, generation, name, idx, state, token, place, undoable, fingerprint, updated, kept_until"
_CASTS = {
    **dict.fromkeys(("name", "idx", "state"), "text"),
    **dict.fromkeys(("generation", "gate"), "bigint"),
    **dict.fromkeys(("place", "undoable"), "integer"),
}
_LOCKED = "55P03"
_NO_RESULT = (None, None, None)
_LOOKED = ("kept_until", "key_hash", "generation", "name", "idx", "state", "token")
"""The columns of rows that a list of runs looks at."""


class SqlSteps:
    """The statements of SQLite; `PostgresqlSteps` and `MysqlSteps` override what is different there."""

    SHARED = ""
    """The end of a SELECT that keeps the record from being taken over until the transaction ends."""
    GATE = ""
    """The condition that the row's gate is free; it is taken for the caller's transaction."""
    newest_first = True
    RECORD = f"{TABLE} AS r"
    """The record of a row ``s``, looked up by its key."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        p, clock = self.p, store.clock
        self.row = (
            f"s.key_hash = {p('key')} AND s.generation = {p('generation')} AND s.name = {p('name')} "
            f"AND s.idx = {p('idx')}"
        )
        self.held = (
            f"r.key_hash = {p('key')} AND r.attempt = {p('attempt')} AND r.token = {p('token')} "
            "AND r.state IN ('running', 'unknown')"
        )
        pending = (
            f"r.key_hash = {p('key')} AND r.created = {p('generation')} "
            "AND r.state IN ('running', 'unknown', 'released')"
        )
        begin, self.ignoring = store.insert_ignoring("key_hash, generation, name, idx")
        self._insert = (
            f"{begin} {STEPS} ({_COLUMNS}, result, media_type, codec_version) SELECT {p('key')}, {p('generation')}, "
            f"{p('name')}, {p('idx')}, {p('state')}, {p('token')}, {p('place')}, {p('undoable')}, {p('fingerprint')}, "
            f"t.now, t.now + {p('memory')}, {p('result')}, {p('media_type')}, {p('codec_version')} FROM "
        )
        insert = self._insert  # columns of the record need not be sent again
        for sent, there in (("key", "key_hash"), ("generation", "created"), ("token", "token")):
            insert = insert.replace(p(sent), f"r.{there}", 1)
        held, free = f"{insert}{TABLE} AS r, {clock} WHERE {self.held}", f"{self._insert}{clock} WHERE true"
        self.inserts = {
            (is_held, joined): store.inline_clock(f"{insert}{self.GATE if joined else ''} {self.ignoring}")
            for is_held, insert in ((True, held), (False, free))
            for joined in (True, False)
        }
        self.decision_sql = f"{held}{self.SHARED} {self.ignoring}"
        self.insert_signal = f"{self._insert}{TABLE} AS r, {clock} WHERE {pending} {self.ignoring}"
        self.rows_sql = (
            f"SELECT {_READ} FROM {STEPS} AS s WHERE s.key_hash = {p('key')} AND s.generation = {p('generation')}"
        )
        self.history_sql = self.rows_sql.replace(_READ, f"{_READ}, s.updated", 1)
        self.find_sql = f"SELECT {_READ} FROM {STEPS} AS s WHERE {self.row}"
        self.held_sql = f"SELECT 1 FROM {TABLE} AS r WHERE {self.held}"
        self.change_sql = self._update(f"s.state = {p('state', 'before')} AND s.token <= {p('token')}")
        self.undo_sql = f"{self.change_sql} AND EXISTS ({self.held_sql})"
        self.drop_sql = self._delete(f"{self.row} AND s.state = 'started' AND s.token = {p('token')}")
        lost = (
            f"SELECT l.key_hash, l.generation, l.name, l.idx FROM {STEPS} AS l "
            f"WHERE l.kept_until <= (SELECT {store.NOW}) AND NOT EXISTS (SELECT 1 FROM {TABLE} AS r "
            "WHERE r.key_hash = l.key_hash AND r.created = l.generation) "
            f"ORDER BY l.kept_until LIMIT {p('limit')}"
        )
        self.sweep_sql = self._sweep(lost)

    def p(self, kind: str, name: str | None = None) -> str:
        return self.store.p(kind, name)

    # ------------------------------------------------------------ asks

    def rows(self, work: Work) -> list[Ask[list[StepRow]]]:
        query = self._query(self.rows_sql, work, At(""), writes=False)
        return [Ask(query, lambda answer: list(map(_row, answer.rows)))]

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        """Write a first row if the work is its claim's, and its gate is free."""
        return Ask(self.insert_query(work, row, joined=joined), lambda answer: answer.affected == 1 and not answer.rows)

    def insert_query(self, work: Work, row: StepRow, *, joined: bool) -> Query:
        """One INSERT; the row that says that the run goes back keeps the record as it is meanwhile."""
        held = work.ownership is not None
        sql = self.decision_sql if held and row.at == DECISION else self.inserts[held, joined]
        gate: dict[str, Any] = {"gate": _gate(work, row.at)} if joined and self.GATE else {}
        return self._query(sql, work, row.at, row, **gate)

    def change(self, work: Work, row: StepRow, before: StepState) -> Ask[bool]:
        owned = row.state is StepState.UNDONE and work.ownership is not None
        sql = self.undo_sql if owned else self.change_sql
        return Ask(self._query(sql, work, row.at, row, before=before.value), reading.has_changed_one)

    def drop(self, work: Work, at: At) -> Ask[bool]:
        return Ask(self._query(self.drop_sql, work, at), reading.has_changed_one)

    def find(self, work: Work, at: At) -> Ask[FoundRow]:
        """Return a row; without one, ask for the record instead, which has a column less."""
        held = None if work.ownership is None else self._query(self.held_sql, work, at, writes=False)
        return Ask(self._query(self.find_sql, work, at, writes=False, otherwise=held), _finding(work))

    def signal(self, work: Work, row: StepRow) -> Ask[bool]:
        return Ask(self._query(self.insert_signal, work, row.at, row), reading.has_changed_one)

    def conclude(self, work: Work) -> list[Ask[None]]:
        return []

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Remove rows that were not written for the memory of their key, and whose record is gone or of other work."""
        return [Ask(self.store.query(self.sweep_sql, {"limit": limit}), reading.count)]

    # ------------------------------------------------------------ for operators

    def history(self, work: Work) -> Ask[list[tuple[StepRow, Micros]]]:
        query = self._query(self.history_sql, work, At(""), writes=False)
        return Ask(query, lambda answer: [(_row(row[:-1]), int(row[-1])) for row in answer.rows])

    def runs(self, wanted: Filter, cursor: str | None) -> Ask[RunPage]:
        """Return a page, by a walk along the index of the rows that looks at so many as one of records does."""
        p, within, place = self.p, "1 = 1", dict[str, Any]()
        if cursor is not None:
            until, _, digits = cursor.partition("-")
            try:
                place = {"before": int(until), "key": bytes.fromhex(digits)}
            except ValueError:
                raise ConfigurationError(f"{cursor!r} is not a cursor of runs.") from None
            below = p("version", "before")
            within = f"s.kept_until <= {below} AND (s.kept_until < {below} OR s.key_hash < {p('key')})"
        conditions, params = selection.conditions_of(self.store, wanted)
        order = "ORDER BY s.kept_until DESC, s.key_hash DESC"
        sql = (
            f"SELECT {', '.join(f's.{name}' for name in _LOOKED)}, {selection.UNREAD}, t.now FROM (SELECT "
            f"{', '.join(f's.{name}' for name in _LOOKED)} FROM {STEPS} AS s WHERE {within} {order} LIMIT {p('limit')}"
            f") AS s CROSS JOIN {self.store.clock} LEFT JOIN {self.RECORD} ON r.key_hash = s.key_hash "
            f"AND r.created = s.generation AND NOT EXISTS (SELECT 1 FROM {STEPS} AS n WHERE n.key_hash = s.key_hash "
            f"AND n.generation = s.generation AND n.kept_until > s.kept_until){conditions and f' AND {conditions}'} "
            f"{order}"
        )
        query = self.store.query(sql, {**place, **params, "limit": selection.SPAN}, writes=False)
        return Ask(query, _run_page)

    # ------------------------------------------------------------ statements

    def _update(self, condition: str) -> str:
        names = ("state", "token", "result", "media_type", "codec_version")
        changes = ", ".join(f"{name} = {self.p(name)}" for name in names)
        return (
            f"UPDATE {STEPS} AS s SET {changes}, updated = {self.store.NOW}, kept_until = {self.store.NOW} + "
            f"{self.p('memory')} WHERE {self.row} AND {condition}"
        )

    def _delete(self, condition: str) -> str:
        return f"DELETE FROM {STEPS} AS s WHERE {condition}"

    def _sweep(self, lost: str) -> str:
        return f"DELETE FROM {STEPS} WHERE (key_hash, generation, name, idx) IN ({lost})"

    def _query(
        self,
        sql: str,
        work: Work,
        at: At,
        row: StepRow | None = None,
        *,
        writes: bool = True,
        otherwise: Query | None = None,
        **more: Any,
    ) -> Query:
        params: dict[str, Any] = {
            "key": work.key,
            "generation": work.generation,
            "name": at.name,
            "idx": at.each,
            "memory": work.memory,
            **more,
        }
        ownership = work.ownership
        if ownership is None:
            params["token"] = 0
        else:
            params["token"], params["attempt"] = ownership.token, ownership.attempt
        if row is not None:
            _, state, place, undoable, fingerprint, result, _ = row
            params["state"], params["place"], params["undoable"] = state._value_, place, int(undoable)
            params["result"], params["media_type"], params["codec_version"] = result or _NO_RESULT
            params["fingerprint"] = fingerprint
        return self.store.query(sql, params, otherwise, writes=writes)


class PostgresqlSteps(SqlSteps):
    """An advisory lock on the row, held to the end of the caller's transaction, is its gate."""

    SHARED = " FOR SHARE OF r"
    RECORD = f"LATERAL (SELECT * FROM {TABLE} AS l WHERE l.key_hash = s.key_hash LIMIT 1) AS r"  # or it reads them all
    GATE = (
        " AND pg_try_advisory_xact_lock(CAST(:gate AS bigint) # CAST(CAST(to_regclass('retrysafe_steps') AS oid) "
        "AS bigint))"
    )

    def insert(self, work: Work, row: StepRow, *, joined: bool) -> Ask[bool]:
        """Insert as every SQL store does; of a claim without a tenant, in the schema of our own connections alone."""
        ask = super().insert(work, row, joined=joined)
        if not joined or work.ownership is None or work.ownership.scoped:
            return ask
        store: Any = self.store
        return cast("Ask[bool]", store.in_own_schema(ask, ended=row.state is StepState.DONE))

    def p(self, kind: str, name: str | None = None) -> str:
        """A parameter, cast also where it is a column of steps."""
        cast_ = _CASTS.get(kind)
        return self.store.p(kind, name) if cast_ is None else f"CAST(:{name or kind} AS {cast_})"


class MysqlSteps(SqlSteps):
    """An INSERT locks what it selects from: in the caller's transaction the record is read before, by itself.

    The row's gate is one of the gates of claims; MariaDB refuses to wait instead.
    """

    SHARED = " LOCK IN SHARE MODE"

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self._lost = f"SELECT 1 FROM (SELECT 1) AS one WHERE NOT EXISTS ({self.held_sql})"
        self._joined = (
            f"/*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ {self._insert}"
            "/*!80019 retrysafe_gates AS g WHERE g.gate = :gate FOR UPDATE SKIP LOCKED */ /*M!100600 DUAL */"
        )

    def insert_query(self, work: Work, row: StepRow, *, joined: bool) -> Query:
        """The INSERT, or what answers with a row if the work is no longer its claim's, and else the INSERT at once."""
        if not joined:
            return super().insert_query(work, row, joined=joined)
        gate = _gate(work, row.at) % 0x10000
        insert = self._query(self._joined, work, row.at, row, gate=gate)._replace(refusals={_LOCKED: None})
        if work.ownership is None:
            return insert
        return self._query(self._lost, work, row.at, writes=False, otherwise=insert)

    def _delete(self, condition: str) -> str:
        return f"DELETE s FROM {STEPS} AS s WHERE {condition}"

    def _sweep(self, lost: str) -> str:
        row = " AND ".join(f"s.{name} = gone.{name}" for name in ("key_hash", "generation", "name", "idx"))
        return f"DELETE s FROM ({lost}) AS gone STRAIGHT_JOIN {STEPS} AS s ON {row}"


def step_store(store: SqlStore) -> SqlSteps:
    kinds: Mapping[str, type[SqlSteps]] = {"postgresql": PostgresqlSteps, "mysql": MysqlSteps}
    return kinds.get(store.capabilities.name, SqlSteps)(store)


def _gate(work: Work, at: At) -> int:
    named = b"\0".join((work.key, str(work.generation).encode(), at.name.encode(), at.each.encode()))
    return int.from_bytes(hashlib.sha256(named).digest()[:8], signed=True)


def _finding(work: Work) -> Any:
    def parse(answer: Rows) -> FoundRow:
        if not answer.rows:
            return FoundRow(None, held=work.ownership is None)
        return FoundRow(None if len(answer.rows[0]) == 1 else _row(answer.rows[0]), held=True)

    return parse


def _run_page(answer: Rows) -> RunPage:
    found: dict[bytes, RunEntry] = {}
    for _, _, _, name, idx, state, token, *record in answer.rows:
        if record[0] is not None:
            (read,) = reading.records(Rows([tuple(record)], 1))
            found.setdefault(read.key, RunEntry(read, StepRow(At(name, idx), StepState(state), token=int(token))))
    last = answer.rows[-1] if len(answer.rows) == selection.SPAN else None
    return RunPage(list(found.values()), None if last is None else f"{last[0]}-{bytes(last[1]).hex()}")


def _row(row: tuple[Any, ...]) -> StepRow:
    name, idx, state, place, undoable, fingerprint, body, media_type, version, token = row
    result = None if media_type is None else StoredResult(None if body is None else bytes(body), media_type, version)
    at, printed = At(cast("str", name), cast("str", idx)), bytes(fingerprint)
    return StepRow(at, StepState(state), int(place), bool(undoable), printed, result, int(token))
