"""SQL stores: statements built from the transition table; a dialect overrides what its database needs.

Instants are BIGINT microseconds since the Unix epoch on the database's clock, so there is no time
zone anywhere. Every statement reads that clock once, as ``t.now``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from retrysafe.core import quotas
from retrysafe.core.transitions import RULES, Event, Guard, kept_fingerprint, started_before, state_of
from retrysafe.ports import Ask, Capabilities, Query, Rows
from retrysafe.types import (
    Allowance,
    Clocks,
    Filter,
    Finding,
    Held,
    Page,
    Record,
    Refusal,
    Standing,
    Stored,
    Tally,
    Want,
)

TABLE = "retrysafe_records"
COLUMNS = (
    "key_hash",
    "boundary",
    "scope",
    "operation",
    "fingerprint",
    "state",
    "attempt",
    "token",
    "attempts",
    "effects",
    "lease_until",
    "created",
    "updated",
    "expires",
    "forget",
    "version",
    "result",
    "media_type",
    "codec_version",
)

Limited = tuple[bool, bool]
"""Which limits a quota has: a rate, and a number of outstanding keys."""
LIMITED: tuple[Limited, ...] = ((True, False), (False, True), (True, True))

AT_ONCE = 1000
"""How many archived records one statement removes."""

_UNREAD = ("result", "media_type", "codec_version")
"""Columns that an operator's list leaves out."""

_KEPT = "(q.state IN ('running', 'unknown') OR q.forget > t.now)"
"""The SQL condition for a record ``q`` not to be forgotten."""

_SETTLED = "r.state IN ('completed', 'failed', 'released')"
_STANDING: dict[Standing, str] = {
    Standing.RUNNING: "r.state = 'running' AND r.lease_until > t.now",
    Standing.LAPSED: "r.state = 'running' AND r.lease_until <= t.now",
    Standing.UNKNOWN: "r.state = 'unknown'",
    Standing.COMPLETED: "r.state = 'completed' AND r.expires > t.now AND r.forget > t.now",
    Standing.FAILED: "r.state = 'failed' AND r.expires > t.now AND r.forget > t.now",
    Standing.RELEASED: "r.state = 'released' AND r.expires > t.now AND r.forget > t.now",
    Standing.EXPIRED: f"{_SETTLED} AND r.expires <= t.now AND r.forget > t.now",
    Standing.FORGOTTEN: f"{_SETTLED} AND r.forget <= t.now",
}


def allowed(event: Event) -> str:
    """The SQL condition for a record ``r`` at time ``t.now`` to take ``event``, from the table."""
    return any_of(RULES[event].sources)


def any_of(standings: Iterable[Standing]) -> str:
    """The SQL condition for a record ``r`` to stand in one of these ways at time ``t.now``."""
    return "(" + " OR ".join(f"({_STANDING[standing]})" for standing in sorted(standings)) + ")"


def columns(prefix: str = "") -> str:
    """The columns of a record, in the order in which they are read."""
    return ", ".join(prefix + column for column in COLUMNS)


class SqlStore:
    """Statements that SQLite and PostgreSQL share. Dialects set the class variables below."""

    capabilities: ClassVar[Capabilities]
    NOW: ClassVar[str]
    GREATEST: ClassVar[str] = "greatest"
    CASTS: ClassVar[dict[str, str]] = {}
    """Parameter name → SQL type, where the database cannot infer it."""
    STAMP: ClassVar[str | None] = None
    """An expression that identifies the current transaction, stored in column ``xact``."""
    GATE: ClassVar[str] = ""
    """A further condition under which a transaction may take a record, so that it never blocks."""
    SKIP_LOCKED: ClassVar[str] = ""
    CLAIMS_MANY: ClassVar[bool] = True
    """Whether keys can be claimed many at once without waiting for others."""
    NOTIFY: ClassVar[str | None] = None
    """A statement that tells who listens for it that the outbox was written to."""
    LOCKS_ROWS: ClassVar[bool] = True
    """Whether a row can be held for a transaction while others write; else one writer holds all."""

    def __init__(self) -> None:
        clock = self.clock = f"(SELECT {self.NOW} AS now) AS t"
        self.read_sql = f"SELECT {columns('r.')}, t.now FROM {TABLE} AS r, {clock} WHERE r.key_hash = {self.p('key')}"
        self.insert_sql = self._insert(clock)
        self._room_sql = {limited: self._room(limited) for limited in LIMITED}
        self._usage_sql = {limited: self._usage(clock, limited) for limited in LIMITED}
        self._counted_insert_sql = {
            limited: self._insert(clock, f" WHERE {room}", counted=True) for limited, room in self._room_sql.items()
        }
        self._take_sql = {gated: self._take(clock, self.GATE if gated else "") for gated in (False, True)}
        self._settle_sql = {
            (event, own): self._settle(clock, event, own)
            for event in (Event.COMPLETE, Event.FAIL, Event.DOUBT, Event.RELEASE)
            for own in (False, True)
        }
        self._resolve_sql: dict[Event, str] = {event: self._resolve(clock, event) for event in _RESOLVING}
        self._sweep_sql = self._sweep(clock)
        self._forgotten_sql = self._forgotten(clock)
        self._tally_sql = self._tally(clock)

    def query(
        self, sql: str, params: Mapping[str, Any], otherwise: Query | None = None, *, writes: bool = True
    ) -> Query:
        """One statement about records, as the dialect spells it and its parameters."""
        return Query(sql, params, otherwise, writes)

    def upsert(self, key: str, columns: Iterable[str]) -> str:
        """The end of an INSERT that changes these columns of the row which is there."""
        return self.on_conflict(key, ", ".join(f"{column} = excluded.{column}" for column in columns))

    def on_conflict(self, key: str, changes: str) -> str:
        """The end of an INSERT that changes the row which is there in this way."""
        return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def insert_ignoring(self, key: str) -> tuple[str, str]:
        """The beginning and the end of an INSERT that leaves the row which is there alone, and then affects none."""
        return "INSERT INTO", f"ON CONFLICT ({key}) DO NOTHING"

    # ------------------------------------------------------------ asks

    def admit(self, want: Want) -> list[Ask[Refusal | None]]:
        """Nothing: `claim` judges."""
        return []

    def claim(self, want: Want) -> Ask[Record | Refusal | None]:
        """Insert a first record if its quota has room, or return the record that is there."""
        allowance = want.quota
        if allowance is None:
            return Ask(self.claim_query(want), _record)
        return Ask(self.counted_claim_query(want, allowance), lambda answer: _counted(answer, allowance))

    def claim_query(self, want: Want) -> Query:
        """Read first when leased, so that a replay writes nothing; write first inside a transaction."""
        params = self._want_params(want)
        read = self.query(self.read_sql, params, writes=False)
        insert = self.query(self.insert_sql, params, read)
        return insert if want.transactional else read._replace(otherwise=insert)

    def counted_claim_query(self, want: Want, allowance: Allowance) -> Query:
        """The same, inserting only while there is room: where there is no record then, there was none."""
        limited, params = _limited(allowance), self._want_params(want) | _quota_params(allowance)
        usage = self.query(self._usage_sql[limited], params, writes=False)
        read = self.query(self.read_sql, params, usage, writes=False)
        insert = self.query(self._counted_insert_sql[limited], params, read)
        return insert if want.transactional else read._replace(otherwise=insert)

    def take(self, want: Want, seen: Record) -> Ask[Record | None]:
        """Claim a record that is as seen and claimable."""
        params = self._want_params(want) | _seen_params(seen)
        params |= {"attempts": started_before(seen) + 1, "fingerprint": kept_fingerprint(want, seen)}
        return Ask(self.query(self._take_sql[want.transactional], params), _record)

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        """Settle the owner's record."""
        params = {
            "key": held.key,
            "attempt": held.attempt,
            "token": held.token,
            "window": held.clocks.window,
            "memory": held.clocks.memory,
            **_result_params(result),
        }
        return Ask(self.query(self._settle_sql[event, held.transactional], params), _changed_one)

    def resolve(self, seen: Record, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        """Settle a record that is as seen."""
        params = {
            "key": seen.key,
            "window": clocks.window,
            "memory": clocks.memory,
            **_seen_params(seen),
            **_result_params(result),
        }
        return Ask(self.query(self._resolve_sql[event], params), _changed_one)

    def renew(self, held: Sequence[Held]) -> list[Ask[set[bytes]]]:
        """Extend leases, all in one statement, sorted by key so that two batches cannot deadlock."""
        params: dict[str, Any] = {}
        for i, one in enumerate(sorted(held)):
            params |= {
                f"key{i}": one.key,
                f"attempt{i}": one.attempt,
                f"token{i}": one.token,
                f"lease{i}": one.clocks.lease,
                f"window{i}": one.clocks.window,
                f"memory{i}": one.clocks.memory,
            }
        return [Ask(self.renew_query(len(held), params), _keys)] if held else []

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
            f"expires = t.now + kept, forget = t.now + remembered, version = r.version + 1 "
            f"FROM held, (SELECT {self.NOW} AS now) AS t WHERE r.key_hash IN ({keys}) "
            f"AND r.key_hash = held_key AND r.attempt = held_attempt "
            f"AND r.token = held_token AND {allowed(Event.RENEW)} RETURNING key_hash"
        )
        return self.query(sql, params)

    def read(self, key: bytes) -> Ask[Record | None]:
        """Return the record."""
        return Ask(self.query(self.read_sql, {"key": key}, writes=False), _record)

    def sweep(self, limit: int) -> list[Ask[int]]:
        """Remove up to ``limit`` forgotten records."""
        return [Ask(self.query(self._sweep_sql, {"limit": limit}), _count)]

    # ------------------------------------------------------------ many at once

    def claim_many(self, wants: Sequence[Want]) -> Ask[dict[bytes, int]]:
        """Insert first records, in the order of their keys; those that are there stay as they are."""
        ordered = sorted(wants)
        rows, params = self.rows_of([want.key for want in ordered], [want.fingerprint for want in ordered])
        found = self.query(self.claim_many_sql(rows), self._want_params(wants[0]) | params)
        return Ask(found, lambda answer: {bytes(key): int(token) for key, token in answer.rows})

    def claim_many_sql(self, rows: str) -> str:
        """One INSERT of what is wanted; here a transaction that writes is alone."""
        return self._insert_many(
            f"WITH wanted (wanted_key, wanted_print) AS ({rows}) ", f"wanted, {self.clock} WHERE true"
        )

    def rows_of(self, keys: Sequence[bytes], fingerprints: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
        """Keys and fingerprints as the rows of a table, and the parameters."""
        params: dict[str, Any] = {}
        for i, pair in enumerate(zip(keys, fingerprints, strict=True)):
            params |= zip((f"key{i}", f"fingerprint{i}"), pair, strict=True)
        rows = (f"({self.p('key', f'key{i}')}, {self.p('fingerprint', f'fingerprint{i}')})" for i in range(len(keys)))
        return f"VALUES {', '.join(rows)}", params

    def _insert_many(self, before: str, source: str) -> str:
        insert = self._insert("retrysafe_source", " WHERE retrysafe_true").rsplit(" RETURNING ", 1)[0]
        insert = insert.replace(self.p("key"), "wanted_key", 1).replace(self.p("fingerprint"), "wanted_print", 1)
        return f"{before}{insert.replace('retrysafe_source WHERE retrysafe_true', source)} RETURNING key_hash, token"

    def read_many(self, keys: Sequence[bytes]) -> Ask[dict[bytes, Record]]:
        """The records of keys."""
        among, params = self.among("key", "key", keys)
        sql = f"SELECT {columns('r.')}, t.now FROM {TABLE} AS r, {self.clock} WHERE r.key_hash {among}"
        found = self.query(sql, params, writes=False)
        return Ask(found, lambda answer: {record.key: record for record in _records(answer)})

    def complete_many(self, held: Sequence[Held], result: Stored) -> Ask[int]:
        """Complete the records of one attempt."""
        first, stamp = held[0], f" AND r.xact = {self.STAMP}" if self.STAMP else ""
        among, params = self.among("key", "key", [one.key for one in held])
        params |= {"attempt": first.attempt, "window": first.clocks.window, "memory": first.clocks.memory}
        sql = self._update(
            f"state = '{RULES[Event.COMPLETE].target}', {self._result()}, {self._written()}",
            self.clock,
            f"r.key_hash {among} AND r.attempt = {self.p('attempt')} AND {allowed(Event.COMPLETE)}{stamp}",
        )
        return Ask(self.query(sql, params | _result_params(result)), _count)

    # ------------------------------------------------------------ asks of an operator

    def forgotten(self, limit: int) -> list[Ask[list[Record]]]:
        """Return up to ``limit`` forgotten records, the longest forgotten first."""
        return [Ask(self.query(self._forgotten_sql, {"limit": limit}, writes=False), _records)]

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        """Remove those that are still as seen and forgotten; databases bound the parameters of a statement."""
        return [self._remove(seen[start : start + AT_ONCE]) for start in range(0, len(seen), AT_ONCE)]

    def _remove(self, seen: Sequence[Record]) -> Ask[int]:
        params: dict[str, Any] = {}
        for i, record in enumerate(seen):
            params |= {f"key{i}": record.key, f"version{i}": record.version}
        return Ask(self.query(self.remove_sql(len(seen)), params), _count)

    def scan(self, wanted: Filter, cursor: str | None, limit: int) -> Ask[Page]:
        """Return a page by the order of key hashes."""
        params: dict[str, Any] = {"limit": limit}
        conditions: list[str] = []
        for name in ("boundary", "operation", "scope"):
            value = getattr(wanted, name)
            if value is not None:
                params[name] = value
                conditions.append(f"r.{name} = {self.p(name)}")
        if cursor is not None:
            params["key"] = bytes.fromhex(cursor)
            conditions.append(f"r.key_hash > {self.p('key')}")
        if wanted.standings:
            conditions.append(any_of(wanted.standings))
        read = ", ".join("NULL" if name in _UNREAD else f"r.{name}" for name in COLUMNS)
        sql = (
            f"SELECT {read}, t.now FROM {TABLE} AS r, {self.clock} WHERE {' AND '.join(conditions) or '1 = 1'} "
            f"ORDER BY r.key_hash LIMIT {self.p('limit')}"
        )
        return Ask(self.query(sql, params, writes=False), lambda answer: _page(answer, limit))

    def tally(self) -> list[Ask[list[Tally]]]:
        """Count the records by boundary and standing, in one statement."""
        return [Ask(self.query(self._tally_sql, {}, writes=False), _tallies)]

    def examine(self) -> list[Ask[list[Finding]]]:
        """Look at no settings: a dialect overrides what is worth it."""
        return []

    # ------------------------------------------------------------ transaction control

    BEGIN: ClassVar[str] = "BEGIN"

    def begin(self) -> Ask[None]:
        """Open a transaction."""
        return _control("begin", self.BEGIN)

    def savepoint(self) -> Ask[None]:
        """Mark a savepoint."""
        return _control("savepoint", "SAVEPOINT retrysafe")

    def rollback_to_savepoint(self) -> Ask[None]:
        """Roll back to the savepoint."""
        return _control("rollback_to_savepoint", "ROLLBACK TO SAVEPOINT retrysafe")

    def commit(self) -> Ask[None]:
        """Commit."""
        return _control("commit", "COMMIT")

    def rollback(self) -> Ask[None]:
        """Roll back."""
        return _control("rollback", "ROLLBACK")

    TRANSACTIONS: ClassVar[str] = "0, 0"
    """Below which number all transactions have ended, and one that is higher than those of all that have begun."""

    UNFROZEN: ClassVar[str | None] = None
    """The first statement of a transaction whose others each see what was committed last, where that is to be said."""

    ISOLATION: ClassVar[str | None] = None
    """A query for the isolation level of the current transaction, where it decides what a waiter can see."""

    def isolation(self) -> list[Ask[str]]:
        """Ask for the isolation level; empty where a waiting duplicate always sees what was committed."""
        return [] if self.ISOLATION is None else [Ask(Query(self.ISOLATION, {}, writes=False), _first_value)]

    HAS_SCHEMA: ClassVar[str]
    """A query that gives a row with a value exactly when the schema's own table exists."""
    MIGRATION_LOCK: ClassVar[str | None] = None
    MIGRATION_UNLOCK: ClassVar[str | None] = None
    """What gives that lock back, where the end of the transaction does not."""

    def schema_version(self) -> list[Ask[int | None]]:
        """Ask whether there is a schema, then for its version."""
        exists = Query(self.HAS_SCHEMA, {}, writes=False)
        version = Query("SELECT max(version) FROM retrysafe_schema", {}, writes=False)
        return [Ask(exists, _first_value), Ask(version, _first_value)]

    def migration_lock(self) -> Query | None:
        """A statement that keeps two migrating processes apart, where begin does not."""
        return None if self.MIGRATION_LOCK is None else Query(self.MIGRATION_LOCK, {})

    def migration_unlock(self) -> Query | None:
        """A statement that lets the next one migrate."""
        return None if self.MIGRATION_UNLOCK is None else Query(self.MIGRATION_UNLOCK, {})

    # ------------------------------------------------------------ statements

    def p(self, kind: str, name: str | None = None) -> str:
        """A parameter, cast where the dialect needs it."""
        cast = self.CASTS.get(kind)
        return f":{name or kind}" if cast is None else f"CAST(:{name or kind} AS {cast})"

    def among(self, kind: str, name: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """The condition, behind an expression, that it is one of these values; and its parameters."""
        params = {f"{name}{i}": value for i, value in enumerate(values)}
        return f"IN ({', '.join(self.p(kind, each) for each in params)})", params

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

    def _room(self, limited: Limited) -> str:
        """The condition for one more key not to be too many: the key that would fill the quota is not there."""
        ours = f"(SELECT q.created FROM {TABLE} AS q WHERE q.quota = {self.p('quota')}"
        recent = f"q.created > t.now - {self.p('period')} ORDER BY q.created DESC"
        rate = f"{ours} AND {recent} LIMIT 1 OFFSET {self.p('rate_before')}) IS NULL"
        outstanding = f"{ours} AND {_KEPT} LIMIT 1 OFFSET {self.p('kept_before')}) IS NULL"
        return " AND ".join(part for part, has in zip((rate, outstanding), limited, strict=True) if has)

    def _usage(self, clock: str, limited: Limited, condition: str = "true") -> str:
        """How a quota is used: the time, when the key was made that fills the rate, how many keys are kept, and when
        the next of them is forgotten."""
        ours = f"FROM {TABLE} AS q WHERE q.quota = {self.p('quota')}"
        filling = f"(SELECT q.created {ours} ORDER BY q.created DESC LIMIT 1 OFFSET {self.p('rate_before')})"
        kept = f"(SELECT count(*) {ours} AND {_KEPT})"
        forgotten = f"(SELECT min(q.forget) {ours} AND q.state NOT IN ('running', 'unknown') AND q.forget > t.now)"
        return (
            f"SELECT t.now, {filling if limited[0] else 'NULL'}, {kept if limited[1] else '0'}, "
            f"{forgotten if limited[1] else 'NULL'} FROM {clock} WHERE {condition}"
        )

    def _take(self, clock: str, gate: str) -> str:
        stamp = f", xact = {self._stamp_value()}" if self.STAMP else ""
        changes = (
            f"fingerprint = {self.p('fingerprint')}, state = 'running', "
            f"attempt = {self.p('attempt')}, token = {self.GREATEST}(r.token + 1, t.now), "
            f"attempts = {self.p('attempts')}, effects = {self.p('effects')}, lease_until = t.now + {self.p('lease')}, "
            f"{self._written()}, result = NULL, media_type = NULL, codec_version = NULL{stamp}"
        )
        update = self._update(changes, clock, f"{self._seen()} AND {allowed(Event.CLAIM)}{gate}")
        return f"{update} RETURNING {columns()}, updated"

    def _update(self, changes: str, clock: str, condition: str) -> str:
        return f"UPDATE {TABLE} AS r SET {changes} FROM {clock} WHERE {condition}"

    def _settle(self, clock: str, event: Event, own: bool) -> str:
        stamp = f" AND r.xact = {self.STAMP}" if self.STAMP and own else ""
        return self._update(
            f"state = '{RULES[event].target}', {self._result()}, {self._written()}",
            clock,
            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt')} "
            f"AND r.token = {self.p('token')} AND {allowed(event)}{stamp}",
        )

    def _resolve(self, clock: str, event: Event) -> str:
        return self._update(
            f"state = '{RULES[event].target}', {self._result()}, {self._written()}",
            clock,
            f"{self._seen()} AND {allowed(event)}",
        )

    def _sweep(self, clock: str) -> str:
        return (
            f"DELETE FROM {TABLE} WHERE key_hash IN (SELECT r.key_hash FROM {TABLE} AS r "
            f"WHERE {self.forgotten_now()} ORDER BY r.forget LIMIT {self.p('limit')}{self.SKIP_LOCKED})"
        )

    def _forgotten(self, clock: str) -> str:
        return (
            f"SELECT {columns('r.')}, (SELECT {self.NOW}) FROM {TABLE} AS r WHERE {self.forgotten_now()} "
            f"ORDER BY r.forget LIMIT {self.p('limit')}"
        )

    def forgotten_now(self) -> str:
        """The condition for a sweep, with the clock as a value: beside a joined clock no planner trusts the index
        to give the records in their order, and reads and sorts all that are forgotten for every batch."""
        return allowed(Event.SWEEP).replace("t.now", f"(SELECT {self.NOW})")

    def remove_sql(self, count: int) -> str:
        """Remove ``count`` records if they are forgotten and as they were seen, by key and version."""
        rows = ", ".join(f"({self.p('key', f'key{i}')}, {self.p('version', f'version{i}')})" for i in range(count))
        return (
            f"DELETE FROM {TABLE} WHERE key_hash IN (WITH seen (seen_key, seen_version) AS (VALUES {rows}) "
            f"SELECT r.key_hash FROM seen CROSS JOIN {TABLE} AS r WHERE r.key_hash = seen_key "
            f"AND r.version = seen_version AND {self.forgotten_now().replace('r.forget', '+r.forget')})"
        )  # the plus keeps SQLite from looking through all that is forgotten instead of looking up the keys

    def _tally(self, clock: str) -> str:
        cases = " ".join(f"WHEN {condition} THEN '{standing}'" for standing, condition in _STANDING.items())
        return (
            f"SELECT r.boundary, CASE {cases} END AS standing, count(*), min(r.updated), max(t.now) "
            f"FROM {TABLE} AS r, {clock} GROUP BY 1, 2 ORDER BY 1, 2"
        )

    def _seen(self) -> str:
        return (
            f"r.key_hash = {self.p('key')} AND r.attempt = {self.p('attempt', 'seen_attempt')} "
            f"AND r.version = {self.p('version', 'seen_version')}"
        )

    def _written(self) -> str:
        return (
            f"updated = t.now, expires = t.now + {self.p('window')}, forget = t.now + {self.p('memory')}, "
            f"version = r.version + 1"
        )

    def _result(self) -> str:
        return (
            f"result = {self.p('result')}, media_type = {self.p('media_type')}, "
            f"codec_version = {self.p('codec_version')}"
        )

    def _stamp_value(self) -> str:
        return f"CASE WHEN {self.p('effects')} = 'transactional' THEN {self.STAMP} END"

    def _want_params(self, want: Want) -> dict[str, Any]:
        return {
            "key": want.key,
            "boundary": want.boundary,
            "scope": want.scope,
            "operation": want.operation,
            "fingerprint": want.fingerprint,
            "attempt": want.attempt,
            "effects": want.effects,
            "lease": want.clocks.lease,
            "window": want.clocks.window,
            "memory": want.clocks.memory,
        }


_RESOLVING: tuple[Event, ...] = tuple(
    event for event, rule in RULES.items() if rule.guard is Guard.SEEN and event is not Event.CLAIM
)


def _limited(allowance: Allowance) -> Limited:
    return allowance.rate is not None, allowance.outstanding is not None


def _quota_params(allowance: Allowance) -> dict[str, Any]:
    """The key that would fill a limit has so many before it."""
    before = {"rate_before": allowance.rate, "kept_before": allowance.outstanding}
    params: dict[str, Any] = {name: limit - 1 for name, limit in before.items() if limit is not None}
    return params | {"quota": allowance.holder, "period": allowance.period}


def _seen_params(seen: Record) -> dict[str, Any]:
    return {"key": seen.key, "seen_attempt": seen.attempt, "seen_version": seen.version}


def _result_params(result: Stored | None) -> dict[str, Any]:
    body, media_type, version = result or (None, None, None)
    return {"result": body, "media_type": media_type, "codec_version": version}


def _record(answer: Rows) -> Record | None:
    if not answer.rows or answer.rows[0][0] is None:
        return None
    return _record_of(answer.rows[0])


def _counted(answer: Rows, allowance: Allowance) -> Record | Refusal | None:
    """A record, or how the quota is used: if there is room by now, there was none a moment ago."""
    if not answer.rows or len(answer.rows[0]) > _USAGE:
        return _record(answer)
    now, filling, kept, forgotten = answer.rows[0]
    used = (None if value is None else int(value) for value in (filling, forgotten))
    return quotas.judge(allowance, int(now), next(used), int(kept), next(used)) or quotas.room_again(allowance)


_USAGE = 4
"""How many columns tell how a quota is used; a record has more."""


def _records(answer: Rows) -> list[Record]:
    return [_record_of(row) for row in answer.rows]


def _page(answer: Rows, limit: int) -> Page:
    records = _records(answer)
    return Page(records, records[-1].key.hex() if len(records) == limit else None)


def _tallies(answer: Rows) -> list[Tally]:
    return [
        Tally(boundary, Standing(standing), int(count), int(oldest), int(now))
        for boundary, standing, count, oldest, now in answer.rows
    ]


def _record_of(row: Any) -> Record:
    *head, result, media_type, codec_version, now = row
    stored = (
        None if media_type is None else Stored(None if result is None else bytes(result), media_type, codec_version)
    )
    fields = dict(zip(COLUMNS, head, strict=False))
    key, fingerprint = bytes(fields.pop("key_hash")), bytes(fields.pop("fingerprint"))
    state = state_of(fields.pop("state"))
    return Record(key=key, fingerprint=fingerprint, state=state, result=stored, now=int(now), **fields)


def _changed_one(answer: Rows) -> bool:
    return answer.affected == 1


def _count(answer: Rows) -> int:
    return answer.affected


def _keys(answer: Rows) -> set[bytes]:
    return {bytes(row[0]) for row in answer.rows}


def _first_value(answer: Rows) -> Any:
    return answer.rows[0][0] if answer.rows else None


def _nothing(answer: Rows) -> None:
    return None


def _control(name: str, sql: str) -> Ask[None]:
    return Ask(Query(sql, {}, control=name), _nothing)
