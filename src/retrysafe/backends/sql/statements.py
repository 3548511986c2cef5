"""The statements about records, with their parameters; a dialect overrides what its database needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from retrysafe.backends.sql.table import KEPT, REPORTED, TABLE, allowed, columns
from retrysafe.protocol.records import Allowance, ClaimRequest, Record, StoredResult
from retrysafe.protocol.requests import Query
from retrysafe.protocol.transitions import RULES, Transition


def want_params(request: ClaimRequest) -> dict[str, Any]:
    """The parameters of a claim; `SqlStore.own_schema` is one of them."""
    return {
        "key": request.key,
        "boundary": request.boundary,
        "scope": request.scope,
        "operation": request.recorded or request.operation,
        "fingerprint": request.fingerprint,
        "attempt": request.attempt,
        "effects": request.effects,
        "lease": request.clocks.lease,
        "window": request.clocks.window,
        "memory": request.clocks.memory,
        "own_schema": None if request.scoped else "",
    }


def quota_params(allowance: Allowance) -> dict[str, Any]:
    """The key that would fill a limit has so many before it."""
    before = {"rate_before": allowance.rate, "kept_before": allowance.outstanding}
    params: dict[str, Any] = {name: limit - 1 for name, limit in before.items() if limit is not None}
    return params | {"quota": allowance.holder, "period": allowance.period}


def params_of_seen(seen: Record) -> dict[str, Any]:
    return {"key": seen.key, "seen_attempt": seen.attempt, "seen_version": seen.version}


def result_params(result: StoredResult | None) -> dict[str, Any]:
    body, media_type, version = result or (None, None, None)
    return {"result": body, "media_type": media_type, "codec_version": version}


Limited = tuple[bool, bool]
"""The limits that a quota has: a rate, and a number of outstanding keys."""
LIMITED: tuple[Limited, ...] = ((True, False), (False, True), (True, True))


def limit_by(allowance: Allowance) -> Limited:
    return allowance.rate is not None, allowance.outstanding is not None


class SqlStatements:
    """Statements that the dialects share, spelt with the class variables below."""

    NOW: ClassVar[str]
    GREATEST: ClassVar[str] = "greatest"
    CASTS: ClassVar[dict[str, str]] = {}
    """Parameter name → SQL type, where the database cannot infer it."""
    STAMP: ClassVar[str | None] = None
    """An expression that identifies the current transaction, stored in column ``xact``."""
    READ: ClassVar[str] = f"{TABLE} AS r"
    """The records, where one is read as it was committed last."""
    SCANNED: ClassVar[str] = READ
    """The records, where many are read, and none is waited for."""
    COUNTED: ClassVar[str] = f"{TABLE} AS q"
    """The records that a quota counts."""
    GATE: ClassVar[str] = ""
    """A further condition under which a transaction may take a record, so that it never blocks."""
    SKIP_LOCKED: ClassVar[str] = ""
    BYTES: ClassVar[str] = "octet_length"
    """The function that tells how many bytes a value has, without reading it where the database can."""
    clock: str
    """The source that a statement reads beside the records, so that it has ``t.now``."""

    def query(
        self, sql: str, params: Mapping[str, Any], otherwise: Query | None = None, *, writes: bool = True
    ) -> Query:
        """One statement about records, as the dialect spells it and its parameters."""
        return Query(sql, params, otherwise, writes)

    def inline_clock(self, sql: str) -> str:
        """A statement about one row as the database performs it best."""
        return sql

    def p(self, kind: str, name: str | None = None) -> str:
        """A parameter, cast where the dialect needs it."""
        cast = self.CASTS.get(kind)
        return f":{name or kind}" if cast is None else f"CAST(:{name or kind} AS {cast})"

    def among(self, kind: str, name: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """The condition, behind an expression, that it is one of these values; and its parameters.

        Where it is not one of them the condition is false or NULL: not for NOT.
        """
        names = [f"{name}{i}" for i in range(len(values))]
        placed = map(self.p(kind, "{0}").format, names)
        return f"IN ({', '.join(placed)})", dict(zip(names, values, strict=True))

    def along(self, table: str, places: Mapping[str, str], start: str, index: str) -> tuple[str, str]:
        """Rows with these values, from an id on, in the order of their ids, along an index of those columns and the id.

        What stands behind FROM, and behind ORDER BY, for a LIMIT to follow. There may be rows with other values among
        them: the caller leaves them out afterwards. With ranges instead of equal values no statistics, and no lack of
        them, can make the database expect few rows and sort all that there are. The upper end of a single value keeps
        it from walking through all that was removed behind it, while a snapshot is held open; with two values the same
        would make PostgreSQL prefer the index of the first one, and sort.
        """
        order = ", ".join(f"o.{name}" for name in (*places, "id"))
        end = "".join(f" AND o.{name} <= {value}" for name, value in places.items()) if len(places) == 1 else ""
        return f"{table} AS o WHERE ({order}) >= ({', '.join(places.values())}, {start}){end}", order

    def beside(self, table: str, name: str, number: str, only: str = "") -> str:
        """Join to each row the one of a table with this id, if it is there and ``only`` holds."""
        return f"LEFT JOIN {table} AS {name} ON {name}.id = {number}{only}"

    def choose_numbers(self, table: str, ids: Sequence[int]) -> tuple[str, dict[str, Any]]:
        """The condition that a row of the table, which is never changed, has one of these ids; and its parameters."""
        among, params = self.among("token", "id", ids)
        return f"id {among}", params

    def upsert(self, key: str, columns: Iterable[str]) -> str:
        """The end of an INSERT that changes these columns of the row which is there."""
        return self.on_conflict(key, ", ".join(f"{column} = excluded.{column}" for column in columns))

    def on_conflict(self, key: str, changes: str) -> str:
        """The end of an INSERT that changes the row which is there in this way."""
        return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def insert_ignoring(self, key: str) -> tuple[str, str]:
        """The beginning and the end of an INSERT that leaves the row which is there alone, and then affects none."""
        return "INSERT INTO", f"ON CONFLICT ({key}) DO NOTHING"

    # ------------------------------------------------------------ one record

    def _insert(self, clock: str, gate: str = "", *, counted: bool = False) -> str:
        """``counted``: under the holder of a quota; other records are not in its index."""
        more, values = (", xact", f", {self._stamp_value()}") if self.STAMP else ("", "")
        if counted:
            more, values = f"{more}, quota", f"{values}, {self.p('quota')}"
        return (
            f"INSERT INTO {TABLE} ({columns()}{more}) SELECT {self.p('key')}, {self.p('boundary')}, "
            f"{self.p('scope')}, {self.p('operation')}, {self.p('fingerprint')}, 'running', {self.p('attempt')}, "
            f"t.now, 1, {self.p('effects')}, t.now + {self.p('lease')}, t.now, t.now, t.now + {self.p('window')}, "
            f"t.now + {self.p('memory')}, t.now, NULL, NULL, NULL{values} FROM {clock}{gate or ' WHERE true'} "
            f"ON CONFLICT (key_hash) DO NOTHING RETURNING {columns()}, updated"
        )

    def _take(self, clock: str, gate: str) -> str:
        stamp = f", xact = {self._stamp_value()}" if self.STAMP else ""
        token = f"{self.GREATEST}(r.token + 1, t.now)"
        changes = (  # created before token: MySQL reads what it has just set
            f"fingerprint = {self.p('fingerprint')}, state = 'running', attempt = {self.p('attempt')}, "
            f"created = CASE WHEN {self.p('attempts')} = 1 THEN {token} ELSE r.created END, token = {token}, "
            f"attempts = {self.p('attempts')}, effects = {self.p('effects')}, lease_until = t.now + {self.p('lease')}, "
            f"{self._set_written()}, result = NULL, media_type = NULL, codec_version = NULL{stamp}"
        )
        update = self._update(changes, clock, f"{self._is_as_seen()} AND {allowed(Transition.CLAIM)}{gate}")
        return f"{update} RETURNING {columns()}, updated"

    def _settle(self, clock: str, event: Transition, in_tx: bool) -> str:
        stamp = f" AND r.xact = {self.STAMP}" if self.STAMP and in_tx else ""
        return self._update(
            f"state = '{RULES[event].target}', {self._result()}, {self._set_written()}",
            clock,
            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt')} "
            f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",
        )

    def _resolve(self, clock: str, event: Transition) -> str:
        return self._update(
            f"state = '{RULES[event].target}', {self._result()}, {self._set_written()}",
            clock,
            f"{self._is_as_seen()} AND {allowed(event)}",
        )

    def _update(self, changes: str, clock: str, condition: str) -> str:
        return f"UPDATE {TABLE} AS r SET {changes} FROM {clock} WHERE {condition}"

    def _is_as_seen(self) -> str:
        return (
            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt', 'seen_attempt')} "
            f"AND r.version = {self.p('version', 'seen_version')}"
        )

    def _set_written(self) -> str:
        return (
            f"updated = t.now, expires = t.now + {self.p('window')}, tombstone_until = t.now + {self.p('memory')}, "
            f"version = r.version + 1"
        )

    def _result(self) -> str:
        return (
            f"result = {self.p('result')}, media_type = {self.p('media_type')}, "
            f"codec_version = {self.p('codec_version')}"
        )

    def _stamp_value(self) -> str:
        return f"CASE WHEN {self.p('effects')} = 'transactional' THEN {self.STAMP} END"

    def renew_query(self, count: int, params: dict[str, Any]) -> Query:
        """Extend ``count`` leases; the rows are the keys of those that were extended.

        The keys are listed besides, so that PostgreSQL looks into their partitions only, and waits for no other.
        """
        names = ("key", "attempt", "token", "lease", "window", "memory")
        rows = ", ".join(f"({', '.join(self.p(name, f'{name}{i}') for name in names)})" for i in range(count))
        keys = ", ".join(self.p("key", f"key{i}") for i in range(count))
        sql = (
            f"WITH held (held_key, held_attempt, held_token, lease, kept, remembered) AS (VALUES {rows}) "
            f"UPDATE {TABLE} AS r SET lease_until = t.now + lease, updated = t.now, "
            f"expires = t.now + kept, tombstone_until = t.now + remembered, version = r.version + 1 "
            f"FROM held, (SELECT {self.NOW} AS now) AS t WHERE r.key_hash IN ({keys}) "
            f"AND r.key_hash = held_key AND r.attempt = held_attempt "
            f"AND r.token = held_token AND {allowed(Transition.RENEW)} RETURNING key_hash"
        )
        return self.query(sql, params)

    def is_forgotten_now(self) -> str:
        """The condition for a sweep, with the clock as a value: beside a joined clock no planner trusts the index
        to give the records in their order, and reads and sorts all that are forgotten for every batch."""
        return allowed(Transition.SWEEP).replace("t.now", f"(SELECT {self.NOW})")

    # ------------------------------------------------------------ quotas

    def _room(self, limited: Limited) -> str:
        """The condition for one more key not to be too many: the key that would fill the quota is not there."""
        ours = f"(SELECT q.created FROM {self.COUNTED} WHERE q.quota = {self.p('quota')}"
        recent = f"q.created > t.now - {self.p('period')} ORDER BY q.created DESC"
        rate = f"{ours} AND {recent} LIMIT 1 OFFSET {self.p('rate_before')}) IS NULL"
        outstanding = f"{ours} AND {KEPT} LIMIT 1 OFFSET {self.p('kept_before')}) IS NULL"
        return " AND ".join(part for part, has in zip((rate, outstanding), limited, strict=True) if has)

    def _usage(self, clock: str, limited: Limited, condition: str = "true") -> str:
        """Select a quota's use: the time, when its rate was filled, the kept keys, and when the next is forgotten."""
        ours = f"FROM {self.COUNTED} WHERE q.quota = {self.p('quota')}"
        filling = f"(SELECT q.created {ours} ORDER BY q.created DESC LIMIT 1 OFFSET {self.p('rate_before')})"
        kept = f"(SELECT count(*) {ours} AND {KEPT})"
        settled = "q.state NOT IN ('running', 'unknown')"
        forgotten = f"(SELECT min(q.tombstone_until) {ours} AND {settled} AND q.tombstone_until > t.now)"
        return (
            f"SELECT t.now, {filling if limited[0] else 'NULL'}, {kept if limited[1] else '0'}, "
            f"{forgotten if limited[1] else 'NULL'} FROM {clock} WHERE {condition}"
        )

    # ------------------------------------------------------------ many records

    def rows_of(self, keys: Sequence[bytes], fingerprints: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
        params: dict[str, Any] = {}
        for i, pair in enumerate(zip(keys, fingerprints, strict=True)):
            params |= zip((f"key{i}", f"fingerprint{i}"), pair, strict=True)
        rows = (f"({self.p('key', f'key{i}')}, {self.p('fingerprint', f'fingerprint{i}')})" for i in range(len(keys)))
        return f"VALUES {', '.join(rows)}", params

    def claim_many_sql(self, rows: str) -> str:
        """One INSERT of what is wanted; here a transaction that writes is alone."""
        return self._insert_many(
            f"WITH wanted (wanted_key, wanted_print) AS ({rows}) ", f"wanted, {self.clock} WHERE true"
        )

    def _insert_many(self, before: str, source: str) -> str:
        insert = self._insert("retrysafe_source", " WHERE retrysafe_true").rsplit(" RETURNING ", 1)[0]
        insert = insert.replace(self.p("key"), "wanted_key", 1).replace(self.p("fingerprint"), "wanted_print", 1)
        return f"{before}{insert.replace('retrysafe_source WHERE retrysafe_true', source)} RETURNING key_hash, token"

    def _sweep(self, clock: str) -> str:
        return (
            f"DELETE FROM {TABLE} WHERE key_hash IN (SELECT r.key_hash FROM {TABLE} AS r "
            f"WHERE {self.is_forgotten_now()} ORDER BY r.tombstone_until LIMIT {self.p('limit')}{self.SKIP_LOCKED})"
        )

    def _forgotten(self, clock: str) -> str:
        return (
            f"SELECT {columns('r.')}, (SELECT {self.NOW}) FROM {self.SCANNED} WHERE {self.is_forgotten_now()} "
            f"ORDER BY r.tombstone_until LIMIT {self.p('limit')}"
        )

    def remove_sql(self, count: int) -> str:
        """Remove ``count`` records if they are forgotten and as they were seen, by key and version."""
        rows = ", ".join(f"({self.p('key', f'key{i}')}, {self.p('version', f'version{i}')})" for i in range(count))
        # the plus keeps SQLite from looking through all that is forgotten instead of looking up the keys
        forgotten = self.is_forgotten_now().replace("r.tombstone_until", "+r.tombstone_until")
        return (
            f"DELETE FROM {TABLE} WHERE key_hash IN (WITH seen (seen_key, seen_version) AS (VALUES {rows}) "
            f"SELECT r.key_hash FROM seen CROSS JOIN {TABLE} AS r WHERE r.key_hash = seen_key "
            f"AND r.version = seen_version AND {forgotten})"
        )

    def _tally(self, clock: str) -> str:
        cases = " ".join(f"WHEN {condition} THEN '{standing}'" for standing, condition in REPORTED.items())
        return (
            "SELECT x.boundary, x.standing, count(*), min(x.updated), max(x.seen) FROM (SELECT r.boundary, "
            f"CASE {cases} END AS standing, r.updated, t.now AS seen FROM {self.SCANNED}, {clock}) AS x "
            "GROUP BY x.boundary, x.standing ORDER BY x.boundary, x.standing"
        )
