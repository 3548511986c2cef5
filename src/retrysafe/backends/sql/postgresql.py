"""PostgreSQL: claims that never block, also inside the caller's transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO, ClassVar, TypeVar

from retrysafe.backends.sql import reading
from retrysafe.backends.sql.drivers.base import SEARCH_PATH, other_schema_error, sqlstate
from retrysafe.backends.sql.statements import limit_by, quota_params, want_params
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import COLUMNS, TABLE, allowed, columns
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Finding,
    Ownership,
    Partition,
    QuotaRefusal,
    Record,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, Copy, Query, Rows, nothing
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import RULES, Transition
from retrysafe.runtime import new_lock

V = TypeVar("V")

MOST_GATES = 1000
"""The most gates of one transaction. All sessions of the server share its lock table, for locks of every kind."""

_MOST_COUNTED = 4096
"""The number of transactions whose gates are counted."""
_MOST_FULL = 16


class Gates:
    """Counts the gates of transactions by the answers to claims: no statement is added, no end has to be told.

    A gate that a rollback to a savepoint has opened stays counted. Transactions without a claim for longest are
    forgotten: their counts start anew.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[int, int] = OrderedDict()
        self._full: OrderedDict[int, None] = OrderedDict()
        self._lock = new_lock()

    def full(self) -> list[int]:
        """The numbers of transactions that are to take no more; each claim tells them to the server."""
        return list(self._full)

    def count_locks(self, answer: Rows) -> Rows:
        """The answer without its first column: the number of the transaction, if the claim may have taken a lock."""
        for number, *_ in answer.rows:
            if number == _OTHER_SCHEMA_NUMBER:
                raise other_schema_error(SEARCH_PATH)
            if number is not None:
                self._count(int(number))
        return Rows([row[1:] for row in answer.rows], answer.affected)

    def _count(self, number: int) -> None:
        with self._lock:
            held = self._held.pop(number, 0) + 1
            _keep(self._held, number, held, _MOST_COUNTED)
            if held >= MOST_GATES:
                self._full.pop(number, None)
                _keep(self._full, number, None, _MOST_FULL)


def _refuse_other_schema(answer: Rows) -> Rows:
    """The answer to a claim, unless it was made under another schema."""
    if any(row[0] is None for row in answer.rows):
        raise other_schema_error(SEARCH_PATH)
    return answer


def _change_in_own_schema(answer: Rows) -> bool:
    """Tell whether a record was changed; raise an error, which undoes it, if that was under another schema."""
    if any(row[0] for row in answer.rows):
        raise other_schema_error(SEARCH_PATH, ended=True)
    return len(answer.rows) == 1


def _keep(kept: OrderedDict[int, V], number: int, value: V, most: int) -> None:
    kept[number] = value
    if len(kept) > most:
        kept.popitem(last=False)


R = TypeVar("R")

_COPYING = 5000
"""Milliseconds in which a rotation counts, copies and puts back, while claims wait."""
_REST = Ask(
    Query(
        f"SELECT set_config('statement_timeout', CAST(greatest(1, {_COPYING} - CAST(1000 * extract(epoch FROM "
        "clock_timestamp() - transaction_timestamp()) AS integer)) AS text), true)",
        {},
    ),
    reading.count,
)
"""Bounds each of the following statements by what is left of that time."""
_CANCELED = "57014"
_SAMPLE = 8 << 20
"""Bytes of a partition that are read to estimate the share of forgotten records."""

# Advisory locks are the database's, tables are a schema's: a key means another one in another schema.
_LOCK = (
    "pg_try_advisory_xact_lock(('x' || encode(substr(CAST(:key AS bytea), 1, 8), 'hex'))::bit(64)::bigint "
    f"# CAST(CAST(to_regclass('{TABLE}') AS oid) AS bigint))"
)
_GATE = f"CASE WHEN txid_current() = ANY (CAST(:full AS bigint[])) THEN true ELSE {_LOCK} END"
"""A transaction that has taken as many locks as it may goes on without: its claims wait at the unique key."""
_SHUT = f" UNION ALL SELECT NULL, {', '.join(['NULL'] * (len(COLUMNS) + 1))} FROM gate WHERE NOT open"
"""A closed gate is a row without a record."""
_OTHER_SCHEMA_NUMBER = -1
_IS_OTHER_SCHEMA = "coalesce(nullif(CAST(:own_schema AS text), '') <> current_schema(), false)"
"""True in another schema than `SqlStore.own_schema`."""
_OTHER_SCHEMA_ROW = f"{', '.join(['NULL'] * (len(COLUMNS) + 1))} WHERE {_IS_OTHER_SCHEMA}"
_NUMBER = "txid_current_if_assigned()"
_IMPATIENT = "set_config('lock_timeout', '100ms', true)"
"""For a statement about many keys: one that another transaction holds must not hold up the others."""


_PADDING = 10
"""NULLs, which match nothing, behind the values of an array. A plan for all calls assumes 10 values: for fewer one of
their own looks cheaper, and the server would plan every call anew, which takes longer than to perform it. It still
does so for a table with partitions, where the values tell which of them it need not lock."""
_ONE_ROW = "{0} || '' = {0}"
"""Always true, but the server expects it to be rare. So it has one plan for all lengths of an array: to look up row
after row by the index. By the length it would read a table without statistics, as a new one is, from end to end."""
_BY_NUMBER = "{0} AS {1} WHERE {1}.id >= {2} AND {1}.id <= {2}{3} ORDER BY {1}.id LIMIT 1"
"""One row, by the index of ids. Of a table whose removed rows a snapshot keeps, statistics say that it is empty. To
walk through any index with that column costs as much as to look up one id, unless an order is wanted that one has."""

CHANNEL = "retrysafe_outbox"
"""On which relays listen. Channels are the database's: relays of another schema only look once more than they must."""


_UNFROZEN = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"


class PostgresqlStore(SqlStore):
    """Records in a PostgreSQL table (13 or later).

    In a transaction, an advisory lock held to its end gates the claim, so that a duplicate of an
    uncommitted claim is told at once instead of blocking. A transaction takes a thousand of them; its
    later claims block, and are waited for, at the unique key. A leased claim commits at once and has no
    gate: when its reply is lost, its repetition must find it, not a closed gate. The unique key
    alone decides.
    """

    capabilities = Capabilities(
        name="postgresql",
        transactions=True,
        waits_in_transaction=True,
        clock="the database server",
        durability="every commit with synchronous_commit=on and fsync=on, PostgreSQL's defaults",
        failover="nothing with synchronous replication; the last commits of the old primary with asynchronous replicas",
        cannot_survive=(
            "a failover to an asynchronous replica that had not received a committed record: it runs again",
            "fsync=off, or synchronous_commit=off, and a crash of the server: the last commits may be gone",
            "a restored backup: records since then are gone, and what they guarded may run again",
        ),
        choose_when=(
            "when your data is in PostgreSQL: record, business write and outbox row commit together, "
            "and nothing else has to run"
        ),
        quotas="approximately: claims at the same moment do not see each other, and each of them may exceed the quota",
    )
    NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"
    NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
    CASTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("key", "fingerprint", "result", "quota", "payload"), "bytea"),
        **dict.fromkeys(("boundary", "scope", "operation", "attempt", "effects", "media_type"), "text"),
        **dict.fromkeys(
            ("lease", "window", "memory", "token", "version", "limit", "period", "rate_before", "kept_before"), "bigint"
        ),
        **dict.fromkeys(("attempts", "codec_version"), "integer"),
    }
    STAMP = "pg_current_xact_id()"
    GATE = f" AND {_GATE}"
    SKIP_LOCKED = " FOR UPDATE OF r SKIP LOCKED"
    WHEREABOUTS = (
        "SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint), "
        "(SELECT CAST(oid AS bigint) FROM pg_database WHERE datname = current_database()), "
        f"CAST(CAST(to_regclass('{TABLE}') AS oid) AS bigint)"
    )
    HAS_SCHEMA = "SELECT CAST(to_regclass('retrysafe_schema') AS text)"
    MIGRATION_BOUNDS = Query(
        "SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '0', true)", {}
    )
    BLOCKERS = (
        "SELECT DISTINCT ON (a.xact_start, a.pid) concat('process ', a.pid, ' (', concat_ws(', ', "
        "'user ' || a.usename, nullif(a.application_name, ''), a.state, "
        "'in its transaction for ' || round(extract(epoch FROM clock_timestamp() - a.xact_start)) || ' s'), "
        "'); to end it: SELECT pg_terminate_backend(', a.pid, ')') "
        "FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid JOIN pg_class AS c ON c.oid = l.relation "
        "WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND starts_with(CAST(c.relname AS text), 'retrysafe_') AND a.pid <> pg_backend_pid() "
        "ORDER BY a.xact_start, a.pid LIMIT 3"
    )
    MIGRATION_LOCK = Query("SELECT pg_advisory_xact_lock(7303014801234711)", {})

    def refuse_other_schema(self) -> Ask[None]:
        """Refuse a transaction of the caller's under another schema than `own_schema`."""

        def judge(answer: Rows) -> None:
            if answer.rows[0][0]:
                raise other_schema_error(SEARCH_PATH)

        params = {"own_schema": self.own_schema or "", "lease": 0}
        return Ask(Query(f"SELECT {_IS_OTHER_SCHEMA}", params, writes=False), judge)

    def in_own_schema(self, insert: Ask[bool], *, ended: bool) -> Ask[bool]:
        """An insert into a transaction of the caller's that raises an error, which undoes it, under another schema."""

        def judge(answer: Rows) -> bool:
            ((is_other, written),) = answer.rows
            if is_other:
                raise other_schema_error(SEARCH_PATH, ended=ended)
            return bool(written)

        query = insert.request
        sql = f"WITH new AS ({query.sql} RETURNING 1) SELECT {_IS_OTHER_SCHEMA}, (SELECT count(*) FROM new)"
        return Ask(query._replace(sql=sql, params={**query.params, "own_schema": self.own_schema or ""}), judge)

    def __init__(self) -> None:
        super().__init__()
        self._gated_claim_sql = self._claim(gated=True)
        self._claim_sql = self._claim(gated=False)
        self._counted_claim_sql = {
            (gated, limited): self._claim(gated=gated, room=room)
            for limited, room in self._room_sql.items()
            for gated in (False, True)
        }
        self._gated_take_sql = self._take_sql[True].replace(" RETURNING ", f" RETURNING {_NUMBER}, ", 1)
        self._gated_read_sql = _number(self.read_sql)
        self._gated_usage_sql = {limited: _number(sql) for limited, sql in self._usage_sql.items()}
        self._gates = Gates()
        self.own_schema = None
        self._claims_sql = self._claims()
        self._settle_own_sql = {
            event: f"{sql} RETURNING {_IS_OTHER_SCHEMA}" for (event, in_tx), sql in self._settle_sql.items() if in_tx
        }
        self._settles_sql = {event: self._settles(event) for event, in_tx in self._settle_sql if not in_tx}

    def _claims(self) -> str:
        """`_claim` without a gate, for many claims of different keys; there is a row for each but those that lost."""
        names = ("key", "boundary", "scope", "operation", "fingerprint", "attempt", "effects")
        values = "w.key, w.boundary, w.scope, w.operation, w.fingerprint, 'running', w.attempt, t.now, 1, w.effects"
        return (
            f"WITH t AS MATERIALIZED (SELECT {self.NOW} AS now, {_IMPATIENT}), "
            f"w AS MATERIALIZED ({self._arrays(*names, 'lease', 'window', 'memory')}), "
            f"old AS MATERIALIZED (SELECT r.* FROM w, {self._there(columns('r.'), 'w.key', 'key')} AS r), "
            f"new AS (INSERT INTO {TABLE} ({columns()}) SELECT {values}, t.now + w.lease, t.now, t.now, "
            f"t.now + w.window, t.now + w.memory, t.now, NULL, NULL, NULL FROM w, t "
            f"WHERE NOT EXISTS (SELECT 1 FROM old WHERE old.key_hash = w.key) ORDER BY w.key "
            f"ON CONFLICT (key_hash) DO NOTHING RETURNING {columns()}) "
            f"SELECT {columns('f.')}, t.now FROM t, (SELECT * FROM new UNION ALL SELECT * FROM old) AS f"
        )

    def _settles(self, event: Transition) -> str:
        """`_settle` for the owners of many records."""
        names = ("key", "attempt", "token", "window", "memory", "result", "media_type", "codec_version")
        return (
            f"UPDATE {TABLE} AS r SET state = '{RULES[event].target}', result = w.result, media_type = w.media_type, "
            f"codec_version = w.codec_version, updated = t.now, expires = t.now + w.window, "
            f"tombstone_until = t.now + w.memory, version = r.version + 1 "
            f"FROM ({self._arrays(*names)}) AS w, (SELECT {self.NOW} AS now, {_IMPATIENT}) AS t "
            f"WHERE r.key_hash {self._any('key', 'key')} AND r.key_hash = w.key AND r.attempt = w.attempt "
            f"AND r.token = w.token AND {allowed(event)} RETURNING r.key_hash"
        )

    def _there(self, columns: str, key: str, keys: str) -> str:
        """The record of a key among those in an array: looked up by itself (OFFSET), in the partitions of them all."""
        one = f"r.key_hash = {key} AND r.key_hash {self._any('key', keys)}"
        return f"LATERAL (SELECT {columns} FROM {TABLE} AS r WHERE {one} OFFSET 0)"

    def _arrays(self, *names: str) -> str:
        """Rows of parameters that are arrays; the server takes them for one row, see `_ONE_ROW`."""
        arrays = ", ".join(f"CAST(:{name} AS {self.CASTS[name]}[])" for name in names)
        quoted = ", ".join(f'"{name}"' for name in names)
        return f"SELECT * FROM unnest({arrays}) AS w ({quoted}) WHERE {_ONE_ROW.format('w.key')}"

    def _claim(self, *, gated: bool, room: str = "") -> str:
        """Insert if there is no record, and return the record there is, in one statement.

        ``room``: insert only if that is true, under the holder of a quota.
        """
        lock, source, go = (_GATE, "gate", "gate.open") if gated else ("true", "gate", "true")
        number, shut = "", f" UNION ALL SELECT {_OTHER_SCHEMA_ROW}"
        if gated:
            number, shut = (
                "(SELECT txid_current() FROM gate WHERE open), ",
                f"{_SHUT} UNION ALL SELECT {_OTHER_SCHEMA_NUMBER}, {_OTHER_SCHEMA_ROW}",
            )
        looked = ""
        if room:  # looked for only behind an open gate: a key with a record needs none
            looked = f"room AS MATERIALIZED (SELECT {room} AS free FROM {self.clock}, gate WHERE gate.open), "
            source, go = "room", "room.free"
        insert = self._insert(f"{self.clock}, {source}", f" WHERE {go}", counted=bool(room))
        return (
            f"WITH old AS MATERIALIZED (SELECT {columns('r.')} FROM {TABLE} AS r WHERE r.key_hash = {self.p('key')}), "
            f"gate AS MATERIALIZED (SELECT {lock} AS open WHERE NOT EXISTS (SELECT 1 FROM old) "
            f"AND NOT {_IS_OTHER_SCHEMA}), {looked}new AS ({insert}) "
            f"SELECT {number}new.* FROM new UNION ALL SELECT {number}old.*, {self.NOW} FROM old{shut}"
        )

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """Claim as every SQL store does, and count the locks that the transaction takes."""
        ask = super().claim(request)
        if request.transactional:
            return self._counting(ask)
        return ask if request.scoped else Ask(ask.request, lambda answer: ask.parse(_refuse_other_schema(answer)))

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        """Take as every SQL store does, and count the locks that the transaction takes."""
        ask = super().take(request, seen)
        if not request.transactional:
            return ask
        params = {**ask.request.params, "full": self._gates.full()}
        return self._counting(Ask(Query(self._gated_take_sql, params), ask.parse))

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        """Settle as every SQL store does; records that no transaction has written can be settled together."""
        ask = super().settle(ownership, event, result)
        if ownership.transactional and not ownership.scoped:
            query = Query(self._settle_own_sql[event], {**ask.request.params, "own_schema": self.own_schema or ""})
            return Ask(query, _change_in_own_schema)
        return ask if ownership.transactional else Ask(ask.request._replace(merged=self._settles_sql[event]), ask.parse)

    def _counting(self, ask: Ask[R]) -> Ask[R]:
        return Ask(ask.request, lambda answer: ask.parse(self._gates.count_locks(answer)))

    def _want(self, request: ClaimRequest) -> dict[str, Any]:
        params = want_params(request)
        if not request.scoped:
            params["own_schema"] = self.own_schema or ""
        return params

    def schema(self) -> Ask[tuple[str, bool]]:
        """The schema of a connection, and whether its search_path is the one that it was connected with."""
        sql = (
            "SELECT CAST(coalesce(current_schema(), '') AS text), setting = reset_val FROM pg_settings "
            "WHERE name = 'search_path'"
        )
        return Ask(Query(sql, {}, writes=False), lambda answer: (str(answer.rows[0][0]), bool(answer.rows[0][1])))

    def claim_query(self, request: ClaimRequest) -> Query:
        """One statement; no row means that a rival committed first, and a new statement will see it."""
        params = self._want(request)
        if not request.transactional:
            read = Query(self.read_sql, params, writes=False)
            return Query(self._claim_sql, params, read, merged=self._claims_sql)
        gated = {**params, "full": self._gates.full()}
        return Query(self._gated_claim_sql, gated, Query(self._gated_read_sql, params, writes=False))

    def claim_query_with_quota(self, request: ClaimRequest, allowance: Allowance) -> Query:
        """`claim_query` with a quota: no row for the read either means no room. A closed gate is judged first."""
        limited, params = limit_by(allowance), self._want(request) | quota_params(allowance)
        own = request.transactional
        usage = Query((self._gated_usage_sql if own else self._usage_sql)[limited], params, writes=False)
        read = Query(self._gated_read_sql if own else self.read_sql, params, usage, writes=False)
        params = {**params, "full": self._gates.full()} if own else params
        return Query(self._counted_claim_sql[own, limited], params, read)

    def among(self, kind: str, name: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """One parameter for all: a statement that is the same for every number of them is prepared once."""
        return self._any(kind, f"{name}s"), {f"{name}s": list(values)}

    def _any(self, kind: str, name: str) -> str:
        """The condition, behind an expression, that it is in an array; see `_PADDING`."""
        cast = self.CASTS[kind]
        return f"= ANY (CAST(:{name} AS {cast}[]) || array_fill(CAST(NULL AS {cast}), '{{{_PADDING}}}'))"

    def beside(self, table: str, name: str, number: str, only: str = "") -> str:
        """See `_BY_NUMBER`."""
        return (
            f"LEFT JOIN LATERAL (SELECT {name}.* FROM {_BY_NUMBER.format(table, name, number, only)}) AS {name} ON true"
        )

    def choose_numbers(self, table: str, ids: Sequence[int]) -> tuple[str, dict[str, Any]]:
        """By the places of the rows, since no id is looked up otherwise: for rows that are never changed."""
        one = f"SELECT o.ctid FROM {_BY_NUMBER.format(table, 'o', 'n.id', '')}"
        return f"ctid = ANY (ARRAY(SELECT ({one}) FROM unnest(CAST(:ids AS bigint[])) AS n (id)))", {"ids": list(ids)}

    def rows_of(self, keys: Sequence[bytes], fingerprints: Sequence[bytes]) -> tuple[str, dict[str, Any]]:
        """Two parameters for all rows, for the reason given at `among`."""
        rows = "SELECT w.k, w.f FROM unnest(CAST(:keys AS bytea[]), CAST(:prints AS bytea[])) AS w (k, f)"
        return f"{rows} WHERE {_ONE_ROW.format('w.k')}", {"keys": list(keys), "prints": list(fingerprints)}

    def claim_many_sql(self, rows: str) -> str:
        """Insert behind the gates of the keys: no wait for another transaction, for as many gates as one takes."""
        lock = _LOCK.replace("CAST(:key AS bytea)", "w.wanted_key")
        lock = f"CASE WHEN row_number() OVER () > {MOST_GATES} THEN true ELSE {lock} END"
        there = f"SELECT r.key_hash FROM wanted AS w, {self._there('r.key_hash', 'w.wanted_key', 'keys')} AS r"
        before = (
            f"WITH wanted (wanted_key, wanted_print) AS MATERIALIZED ({rows}), "
            f"t AS MATERIALIZED (SELECT {self.NOW} AS now), old AS MATERIALIZED ({there}), "
            f"gate AS MATERIALIZED (SELECT w.wanted_key, w.wanted_print, {lock} AS open FROM wanted AS w "
            f"WHERE NOT EXISTS (SELECT 1 FROM old WHERE old.key_hash = w.wanted_key)) "
        )
        return self._insert_many(before, "gate, t WHERE gate.open")

    def _sweep(self, clock: str) -> str:
        return self._sweep_table(TABLE)

    def _sweep_table(self, table: str) -> str:
        locked = (
            f"SELECT r.tableoid AS part, r.ctid AS place FROM {table} AS r WHERE {self.is_forgotten_now()} "
            f"ORDER BY r.tombstone_until LIMIT {self.p('limit')}{self.SKIP_LOCKED}"
        )
        return self._delete(locked, table)

    def remove_sql(self, count: int) -> str:
        """Remove ``count`` records if they are forgotten and as they were seen; they are looked up one by one."""
        rows = ", ".join(f"({self.p('key', f'key{i}')}, {self.p('version', f'version{i}')})" for i in range(count))
        locked = (
            f"SELECT found.part, found.place FROM (VALUES {rows}) AS seen (key, version), LATERAL ("
            f"SELECT r.tableoid AS part, r.ctid AS place FROM {TABLE} AS r WHERE r.key_hash = seen.key "
            f"AND r.version = seen.version AND {self.is_forgotten_now()}{self.SKIP_LOCKED}) AS found"
        )
        return self._delete(locked)

    def _delete(self, locked: str, table: str = TABLE) -> str:
        """Lock records, then delete them by their places in the table, which cannot change meanwhile.

        Never by key, by what a subquery without locks has found: a DELETE that had to wait for a claim looks at
        the new version of the row, but not again at the subquery, and deletes it. By place it is also three times
        as quick.
        """
        return (
            f"WITH doomed AS MATERIALIZED ({locked}) DELETE FROM {table} AS r "
            f"WHERE r.ctid = ANY (ARRAY(SELECT place FROM doomed)) "
            f"AND (r.tableoid, r.ctid) IN (SELECT part, place FROM doomed)"
        )

    def examine(self) -> list[Ask[list[Finding]]]:
        """Refuse a standby, and text that is not UTF-8; tell how durable a commit is, and which work is cut off."""
        names = (
            *("fsync", "synchronous_commit", "synchronous_standby_names", "full_page_writes"),
            *("server_encoding", "client_encoding"),
        )
        settings = ", ".join(f"current_setting('{name}')" for name in names)
        idle = "(SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')"  # without a unit
        sql = f"SELECT CAST(pg_is_in_recovery() AS text), {settings}, {idle}"
        return [Ask(Query(sql, {}, writes=False), _findings)]

    # ------------------------------------------------------------ rotation

    def partitions(self) -> Ask[list[Partition]]:
        sql = (
            "SELECT CAST(n.nspname AS text), CAST(c.relname AS text), pg_relation_size(c.oid) FROM pg_inherits AS i "
            "JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            f"WHERE i.inhparent = to_regclass('{TABLE}') ORDER BY 1, 2"
        )
        return Ask(Query(sql, {}, writes=False), lambda answer: [Partition(*row) for row in answer.rows])

    def share(self, partition: Partition) -> Ask[float]:
        """The share of forgotten records in some of the partition's pages, whatever its statistics say."""
        percent = 100 if partition.size <= _SAMPLE else 100 * _SAMPLE / partition.size
        sql = (
            f"SELECT count(*) FILTER (WHERE {allowed(Transition.SWEEP)}), count(*) "
            f"FROM {partition.quoted} AS r TABLESAMPLE SYSTEM ({percent:.6f}), {self.clock}"
        )
        return Ask(Query(sql, {}, writes=False), _share)

    def enter(self, partition: Partition) -> list[Ask[None]]:
        """Lock the partition, or fail soon: claims of its keys wait behind this lock while it is waited for.

        READ COMMITTED whatever the default: a snapshot from before the lock would miss what was written since.
        The other two bounds end the transaction, and so the lock, when we are stopped in the middle of it.
        """
        bounds = {"lock_timeout": "100ms", "statement_timeout": _COPYING, "idle_in_transaction_session_timeout": "5s"}
        settings = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in bounds.items())
        statements = (
            _UNFROZEN,
            f"SELECT {settings}",
            f"LOCK TABLE {partition.quoted} IN ACCESS EXCLUSIVE MODE",
        )
        return [Ask(Query(sql, {}), nothing) for sql in statements]

    def ran_out_of_time(self, error: StoreUnavailable) -> bool:
        return error.__cause__ is not None and sqlstate(error.__cause__) == _CANCELED

    def count(self, partition: Partition) -> Ask[int]:
        return Ask(Query(f"SELECT count(*) FROM {partition.quoted}", {}, writes=False), reading.first_value)

    def unload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        chosen = f"SELECT r.* FROM {partition.quoted} AS r, {self.clock} WHERE NOT {allowed(Transition.SWEEP)}"
        return [_REST, Ask(Copy(partition, chosen, spool), reading.count)]

    def reload(self, partition: Partition, spool: BinaryIO) -> list[Ask[int]]:
        """Truncate the partition and copy the spool back, frozen.

        A transaction whose snapshot is older than this one sees the emptied table; it must see what was put back.
        """
        empty = Query(f"TRUNCATE {partition.quoted}", {})
        return [_REST, Ask(empty, reading.count), Ask(Copy(partition, None, spool), reading.count)]

    def sweep_partition(self, partition: Partition, limit: int) -> Ask[int]:
        return Ask(Query(self._sweep_table(partition.quoted), {"limit": limit}), reading.count)

    TRANSACTIONS = (
        "coalesce((SELECT min(txid_current() - ((txid_current() - CAST(CAST(n.transactionid AS text) AS bigint)) "
        "& 4294967295)) FROM pg_locks AS w JOIN pg_locks AS n ON n.virtualtransaction = w.virtualtransaction "
        "WHERE n.locktype = 'transactionid' AND n.mode = 'ExclusiveLock' AND n.granted "
        "AND w.locktype = 'relation' AND w.relation = CAST(to_regclass('retrysafe_outbox') AS oid) "
        "AND w.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) "
        "AND w.mode NOT IN ('AccessShareLock', 'RowShareLock') AND w.pid IS DISTINCT FROM pg_backend_pid()), "
        "txid_snapshot_xmax(txid_current_snapshot())), txid_current()"
    )
    """Of those that have written into the table: each of them locks it to its end, whatever else the server does."""

    HOLDERS = (
        "SELECT h.name, CAST(h.seconds AS bigint) FROM ("
        "SELECT 'session ' || s.pid || ' of ' || coalesce(s.usename, '?') || ' in ' || s.datname || ' (' || "
        "concat_ws(', ', nullif(s.application_name, ''), CAST(s.client_addr AS text), s.state) || ')' AS name, "
        "extract(epoch FROM clock_timestamp() - s.xact_start) AS seconds, "
        "greatest(age(s.backend_xmin), age(s.backend_xid)) AS held FROM pg_stat_activity AS s "
        "WHERE s.usename IS NOT NULL AND coalesce(s.backend_type, 'client backend') = 'client backend' "
        "AND s.pid <> pg_backend_pid() UNION ALL "
        "SELECT 'prepared transaction ' || p.gid || ' of ' || p.owner || ' in ' || p.database, "
        "extract(epoch FROM clock_timestamp() - p.prepared), age(p.transaction) FROM pg_prepared_xacts AS p UNION ALL "
        "SELECT 'replication slot ' || r.slot_name, NULL, age(r.xmin) FROM pg_replication_slots AS r"
        ") AS h WHERE h.held > 0 AND (h.seconds > 60 OR (h.seconds IS NULL AND h.held > 100000)) "
        "ORDER BY h.held DESC LIMIT 3"
    )

    UNFROZEN = _UNFROZEN

    SILENCE = (
        ", set_config('idle_in_transaction_session_timeout', CAST(:silence AS text), true), "
        "CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL "  # from PostgreSQL 17 on
        "THEN set_config('transaction_timeout', '0', true) END"
    )

    ISOLATION = "SELECT current_setting('transaction_isolation')"


def _number(select: str) -> str:
    return select.replace("SELECT ", f"SELECT {_NUMBER}, ", 1)


def _share(answer: Rows) -> float:
    forgotten, seen = answer.rows[0]
    return int(forgotten) / int(seen) if seen else 0.0


_SERVER_ENCODING = (
    "The database has the encoding {}, in which not every character can be stored and read. Use one that is made with "
    "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0."
)
_CLIENT_ENCODING = (
    "Its connections have the client_encoding {}, in which not every character can be sent and read. Connect with "
    "client_encoding=utf8, and look for PGCLIENTENCODING and ALTER ROLE … SET client_encoding."
)


_IDLE = 30_000
"""Milliseconds of a lease, if none is given: work is expected to take so long."""
_CUT_OFF = (
    "{} ms: transactional work that asks the database nothing for that long is undone when it ends, and done again by "
    "every retry. Raise it for this user or database, or do slow work (calls of services) outside the transaction."
)


def _findings(answer: Rows) -> list[Finding]:
    values = (value.decode() if isinstance(value, bytes) else value for value in answer.rows[0])  # SQL_ASCII: bytes
    standby, fsync, commit, standbys, pages, server, client, idle = values
    found = [
        Finding("fact", "synchronous_commit", commit),
        Finding("fact", "synchronous_standby_names", standbys or "none: a failover may lose the last commits"),
    ]
    if standby == "true":
        found.append(
            Finding("refuse", "in_recovery", "The server is a standby, where nothing can be claimed: use the primary.")
        )
    if server != "UTF8":
        found.append(Finding("refuse", "server_encoding", _SERVER_ENCODING.format(server)))
    elif client != "UTF8":
        found.append(Finding("refuse", "client_encoding", _CLIENT_ENCODING.format(client)))
    if fsync != "on" or pages != "on":
        found.append(
            Finding(
                "warn", "fsync", f"fsync={fsync}, full_page_writes={pages}: a crash of the machine may lose records."
            )
        )
    if commit == "off":
        found.append(Finding("warn", "synchronous_commit", "off: a crash of the server may lose the last commits."))
    if 0 < int(idle or 0) < _IDLE:
        found.append(Finding("warn", "idle_in_transaction_session_timeout", _CUT_OFF.format(idle)))
    return found
