"""MySQL 8.0.19+ and MariaDB 10.6+: claims that do not wait, also inside the caller's transaction.

One text serves both servers: what only MySQL reads stands in ``/*!80019 … */``, what only MariaDB
reads in ``/*M!100600 … */``. Their clock is constant within a statement, so it is written where it
is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from retrysafe.backends.sql.statements import limit_by, quota_params, want_params
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import TABLE, allowed, any_of, columns
from retrysafe.backends.sql.transactions import in_its_transaction, mark_first, mark_of
from retrysafe.protocol.records import Allowance, ClaimRequest, EffectiveState, Finding, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask, Query, Rows
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import Transition

LARGEST_RESULT = 7 * 1024 * 1024
"""Bytes: sent in hexadecimal digits, it still fits MariaDB's default ``max_allowed_packet`` of 16 MiB."""

_PACKET = 16 * 1024 * 1024
_GATES = 0x10000
_BYTES = ("key", "fingerprint", "result", "quota", "payload")
_LOCKED = "55P03"
_AT_ONCE = "/*M!100600 SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ "
_ISOLATION = "/*!80019 @@transaction_isolation */ /*M!100600 @@tx_isolation */"
"""The isolation level of the session; at READ UNCOMMITTED a plain read shows what may be rolled back."""
_INDEX = "FORCE INDEX (retrysafe_records_tombstone)"
_FORGOTTEN = "f.state IN ('completed', 'failed', 'released') AND f.tombstone_until <= t.now"


class MysqlStore(SqlStore):
    """Records in an InnoDB table.

    In a transaction, a duplicate of an uncommitted claim is told at once. On MariaDB its INSERT refuses
    to wait for the lock; on MySQL, which cannot be told so for one statement, the INSERT selects from the
    row of a gate that the first claim has locked, and skips it. Both undo nothing in the transaction.
    What is there is then read as committed last, not as of the transaction's snapshot. A savepoint made by
    the claim shows, when the record is settled, that the transaction is still the same one.
    """

    capabilities = Capabilities(
        name="mysql",
        transactions=True,
        waits_in_transaction=True,
        clock="the database server",
        durability="every commit with innodb_flush_log_at_trx_commit=1, the default",
        failover=(
            "nothing with group replication (MySQL) or Galera (MariaDB); the last commits of the old primary with "
            "asynchronous replicas, and with semi-synchronous ones whose wait timed out"
        ),
        cannot_survive=(
            "a failover to an asynchronous replica that had not received a committed record: it runs again",
            "innodb_flush_log_at_trx_commit other than 1, and a crash: the last commits may be gone",
            "sync_binlog other than 1, a crash of the machine and a failover: replicas may lack the last commits",
            "a restored backup: records since then are gone, and what they guarded may run again",
        ),
        choose_when=(
            "when your data is in MySQL or MariaDB: record, business write and outbox row commit together, "
            "and nothing else has to run"
        ),
        largest_result=LARGEST_RESULT,
        quotas=(
            "approximately: claims at the same moment do not see each other, and each of them may exceed the quota. "
            "With tx= a key counts as new if its first claim is not committed yet, or came after the snapshot of your "
            "transaction"
        ),
    )
    WHEREABOUTS = "SELECT @@hostname, @@port, @@datadir, DATABASE()"
    NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    BEGIN = "START TRANSACTION"
    CLAIMS_MANY = False
    OUTLASTS = (  # the cast is for MySQL: to it the greater one is a decimal, which the variable cannot be
        "SET SESSION wait_timeout = CAST(GREATEST(@@SESSION.wait_timeout, :seconds) AS UNSIGNED) "
        "/*M!100600 , SESSION idle_transaction_timeout = :seconds */"
    )
    HAS_SCHEMA = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'retrysafe_schema'"
    )
    MIGRATION_LOCK = Query("SELECT GET_LOCK(CONCAT('retrysafe ', LEFT(SHA2(DATABASE(), 256), 32)), 9)", {})
    MIGRATION_UNLOCK = Query(
        "SET @retrysafe = RELEASE_LOCK(CONCAT('retrysafe ', LEFT(SHA2(DATABASE(), 256), 32))), "
        "SESSION lock_wait_timeout = DEFAULT /*M!100600 , SESSION max_statement_time = DEFAULT */",
        {},
    )
    MIGRATION_BOUNDS = Query("SET SESSION lock_wait_timeout = 1 /*M!100600 , SESSION max_statement_time = 0 */", {})
    BLOCKERS = (
        "SELECT CONCAT('connection ', p.id, ' (user ', p.user, ' from ', p.host, ', in its transaction for ', "
        "TIMESTAMPDIFF(SECOND, t.trx_started, NOW()), ' s); to end it: KILL ', p.id) "
        "FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p "
        "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID() "
        "ORDER BY t.trx_started LIMIT 3"
    )

    def __init__(self) -> None:
        super().__init__()
        row = self.read_sql
        answer = f"{_ISOLATION} <> 'READ-UNCOMMITTED' AND {any_of((EffectiveState.COMPLETED, EffectiveState.FAILED))}"
        self._gated_insert_sql, self._gated_counted_insert_sql = (
            _AT_ONCE
            + self._insert(
                self.clock,
                "/*!80019 retrysafe_gates AS g WHERE g.gate = :gate FOR UPDATE SKIP LOCKED */",
                counted=counted,
            )
            for counted in (False, True)
        )
        self._free_insert_sql = self._insert(self.clock, counted=True)
        unknown = f"NOT EXISTS (SELECT 1 FROM {TABLE} AS k WHERE k.key_hash = {self.p('key')})"
        self._used_up_sql = {
            limited: self._usage(self.clock, limited, f"{unknown} AND NOT ({room})")
            for limited, room in self._room_sql.items()
        }
        self._own_sql = f"{row} AND r.attempt = {self.p('attempt')}"
        self._answer_sql = f"{_AT_ONCE}{row} AND {answer}"
        self._own_or_answer_sql = f"{row} AND (r.attempt = {self.p('attempt')} OR {answer})"
        self._current_sql = f"{row} FOR UPDATE NOWAIT"

    # ------------------------------------------------------------ asks

    def claim_query(self, request: ClaimRequest) -> Query:
        """Leased: read, insert, read again. In a transaction: insert at once or not at all, then read."""
        if not request.transactional:
            return super().claim_query(request)
        return mark_first(mark_of(request), self._at_once(request, self._gated_insert_sql, want_params(request)))

    def claim_query_with_quota(self, request: ClaimRequest, allowance: Allowance) -> Query:
        """Look whether there is room, then insert.

        Not in one statement: an INSERT locks what it selects, and two claims of a scope would wait for each other.
        """
        params = want_params(request) | quota_params(allowance)
        used_up = self.query(self._used_up_sql[limit_by(allowance)], params, writes=False)
        if request.transactional:
            insert = self._at_once(request, self._gated_counted_insert_sql, params)
            return mark_first(mark_of(request), used_up._replace(otherwise=insert))
        read = self.query(self.read_sql, params, writes=False)
        insert = self.query(self._free_insert_sql, params, read)
        return read._replace(otherwise=used_up._replace(otherwise=insert))

    def _at_once(self, request: ClaimRequest, insert_sql: str, params: Mapping[str, Any]) -> Query:
        """Insert in a transaction if that needs no waiting, and read what is there."""
        params = {**params, "gate": int.from_bytes(request.key[:2]) % _GATES}
        # The snapshot of the transaction may be old; only an answer in it is good for ever.
        answer = self.query(self._answer_sql, params, writes=False)._replace(refusals={_LOCKED: None})
        current = self.query(self._current_sql, params)._replace(refusals={_LOCKED: None})
        own = self.query(self._own_or_answer_sql, params, current, writes=False)._replace(refusals={_LOCKED: None})
        return self.query(insert_sql, params, own)._replace(refusals={_LOCKED: answer})

    def take(self, request: ClaimRequest, seen: Record) -> Ask[Record | None]:
        ask = super().take(request, seen)
        own = self.query(self._own_sql, want_params(request), writes=False)
        return Ask(ask.request._replace(written=own), ask.parse)

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        settle = super().settle(ownership, event, result)
        return in_its_transaction(mark_of(ownership), settle) if ownership.transactional else settle

    def renew_query(self, count: int, params: dict[str, Any]) -> Query:
        """Extend leases, in the order of the keys; then read which of them are alive."""
        names = {"key": "held_key", "attempt": "held_attempt", "token": "held_token"}
        names |= {"lease": "lease", "window": "kept", "memory": "remembered"}
        rows = " UNION ALL ".join(
            "SELECT " + ", ".join(f"{self.p(name, f'{name}{i}')} AS {column}" for name, column in names.items())
            for i in range(count)
        )
        held = " OR ".join(
            f"(r.key_hash = {self.p('key', f'key{i}')} AND r.attempt = :attempt{i} AND r.token = :token{i})"
            for i in range(count)
        )
        update = (
            f"UPDATE ({rows}) AS h STRAIGHT_JOIN {TABLE} AS r ON r.key_hash = h.held_key "
            f"SET r.lease_until = t.now + h.lease, r.updated = t.now, r.expires = t.now + h.kept, "
            f"r.tombstone_until = t.now + h.remembered, r.version = r.version + 1 "
            f"WHERE r.attempt = h.held_attempt AND r.token = h.held_token AND {allowed(Transition.RENEW)}"
        )
        still = f"SELECT r.key_hash FROM {TABLE} AS r WHERE ({held}) AND {allowed(Transition.RENEW)}"
        return self.query(update, params)._replace(written=self.query(still, params, writes=False))

    def examine(self) -> list[Ask[list[Finding]]]:
        """Refuse what breaks a claim; tell how durable a commit is."""
        settings = ", ".join(f"@@{name}" for name in _SETTINGS)
        sql = f"SELECT VERSION(), {settings}, {_ISOLATION}, {_CHARSETS}, {_TABLES_CHARSETS}"
        return [Ask(Query(sql, {}, writes=False), _findings)]

    # ------------------------------------------------------------ statements

    def query(
        self, sql: str, params: Mapping[str, Any], otherwise: Query | None = None, *, writes: bool = True
    ) -> Query:
        """The clock in its place; bytes as digits, which every driver sends alike."""
        digits = {name: value.hex() if isinstance(value, bytes) else value for name, value in params.items()}
        return Query(_spell(sql, self.clock, self.NOW), digits, otherwise, writes)

    def along(self, table: str, places: Mapping[str, str], start: str, index: str) -> tuple[str, str]:
        """Force MySQL to use the index."""
        at = " AND ".join(f"o.{name} = {value}" for name, value in places.items())
        return f"{table} AS o FORCE INDEX ({index}) WHERE {at} AND o.id >= {start}", "o.id"

    def upsert(self, key: str, columns: Iterable[str]) -> str:
        return self.on_conflict(key, ", ".join(f"{column} = VALUES({column})" for column in columns))

    def on_conflict(self, key: str, changes: str) -> str:
        return f"ON DUPLICATE KEY UPDATE {changes}"

    def insert_ignoring(self, key: str) -> tuple[str, str]:
        """MySQL's statement; with an update instead, some connections count an unchanged row as affected."""
        return "INSERT IGNORE INTO", ""

    def p(self, kind: str, name: str | None = None) -> str:
        """A parameter, made bytes again where it was bytes."""
        return f"UNHEX(:{name or kind})" if kind in _BYTES else f":{name or kind}"

    def _insert(self, clock: str, gate: str = "", *, counted: bool = False) -> str:
        insert, _, _ = super()._insert(clock, counted=counted).partition(" FROM ")
        return (
            f"{insert} FROM {gate or '/*!80019 DUAL */'} /*M!100600 DUAL */ "
            f"ON DUPLICATE KEY UPDATE {TABLE}.key_hash = {TABLE}.key_hash /*M!100600 RETURNING {columns()}, t.now */"
        )

    def _take(self, clock: str, gate: str) -> str:
        return super()._take(clock, gate).partition(" RETURNING ")[0]

    def _update(self, changes: str, clock: str, condition: str) -> str:
        return f"UPDATE {TABLE} AS r SET {changes} WHERE {condition}"

    def _sweep(self, clock: str) -> str:
        return self._delete(f"{_INDEX} WHERE {_FORGOTTEN} LIMIT :limit")

    def _delete(self, chosen: str) -> str:
        """Lock the records that no other transaction has locked, then delete them."""
        return (
            f"DELETE r FROM (SELECT f.key_hash FROM {TABLE} AS f {chosen} FOR UPDATE SKIP LOCKED) AS gone "
            f"STRAIGHT_JOIN {TABLE} AS r ON r.key_hash = gone.key_hash WHERE {allowed(Transition.SWEEP)}"
        )

    def _forgotten(self, clock: str) -> str:
        """In the order of the index: sorting would read every forgotten record."""
        return f"SELECT {columns('f.')}, t.now FROM {TABLE} AS f {_INDEX} WHERE {_FORGOTTEN} LIMIT :limit"

    def remove_sql(self, count: int) -> str:
        keys = ", ".join(self.p("key", f"key{i}") for i in range(count))
        seen = " OR ".join(
            f"(f.key_hash = {self.p('key', f'key{i}')} AND f.version = :version{i})" for i in range(count)
        )
        return self._delete(f"WHERE f.key_hash IN ({keys}) AND ({seen}) AND {_FORGOTTEN}")


@lru_cache(maxsize=512)
def _spell(sql: str, clock: str, now: str) -> str:
    return sql.replace(f", {clock}", "").replace("t.now", now)


# ---------------------------------------------------------------- settings

_SETTINGS = (
    "innodb_rollback_on_timeout",
    "read_only",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "max_allowed_packet",
)
_CHARSETS = "CONCAT_WS(' ', @@character_set_client, @@character_set_connection, @@character_set_results)"
_TABLES_CHARSETS = (
    "(SELECT GROUP_CONCAT(DISTINCT c.table_name ORDER BY c.table_name SEPARATOR ', ') FROM information_schema.columns "
    "AS c WHERE c.table_schema = DATABASE() AND LEFT(c.table_name, 10) = 'retrysafe_' "
    "AND c.table_name <> 'retrysafe_schema' AND c.character_set_name <> 'utf8mb4')"
)
_OLDEST = {True: (10, 6, 0), False: (8, 0, 19)}


def _findings(answer: Rows) -> list[Finding]:
    version, rollback, read_only, flush, log_bin, sync, packet, isolation, charsets, tables = answer.rows[0]
    found = [Finding("fact", "version", version), Finding("fact", "innodb_flush_log_at_trx_commit", str(flush))]
    name, number, oldest = _version(version)
    if number < oldest:
        needed = ".".join(map(str, oldest))
        found.append(
            Finding("refuse", "version", f"The server is {name} {version}; {needed} is the oldest that works.")
        )
    if int(rollback):
        found.append(Finding("refuse", "innodb_rollback_on_timeout", _ROLLBACK))
    if isolation == "READ-UNCOMMITTED":
        found.append(Finding("refuse", "isolation", "READ UNCOMMITTED shows results that may be rolled back."))
    if int(read_only):
        found.append(Finding("refuse", "read_only", "The server is read-only, as a replica is: use the primary."))
    found += _charset_findings(_text(charsets), _text(tables))
    if int(flush) != 1:
        text = f"{flush}: a crash of the server or its machine may lose the last commits; 1 keeps them."
        found.append(Finding("warn", "innodb_flush_log_at_trx_commit", text))
    if int(log_bin) and int(sync) != 1:
        text = f"{sync}: after a crash of the machine, replicas may lack the last commits; 1 keeps them."
        found.append(Finding("warn", "sync_binlog", text))
    if int(packet) < _PACKET:
        text = (
            f"{packet}: a result of more than {int(packet) // 2 - 8192} bytes cannot be stored; set {_PACKET} or more."
        )
        found.append(Finding("warn", "max_allowed_packet", text))
    return found


def _charset_findings(charsets: str, tables: str | None) -> list[Finding]:
    """Refuse what does not take every character."""
    found: list[Finding] = []
    if set(charsets.split()) != {"utf8mb4"}:
        text = f"Its connections have the character sets {charsets} (client, connection, results), not utf8mb4: "
        found.append(Finding("refuse", "charset", f"{text}connect with charset=utf8mb4."))
    if tables is not None:
        text = f"Columns of {tables} have a character set other than utf8mb4. Convert each table: "
        found.append(Finding("refuse", "tables", f"{text}ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE …."))
    return found


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


_ROLLBACK = (
    "innodb_rollback_on_timeout is ON: a duplicate that finds a lock would lose the whole transaction it is in. "
    "Set it OFF, the default."
)


def _version(text: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The kind of server, its version, and the oldest of its kind that works."""
    mariadb = "mariadb" in text.lower()
    numbers = re.findall(r"(\d+)\.(\d+)\.(\d+)", text)
    found = numbers[-1] if mariadb and text.startswith("5.5.5-") else numbers[0]  # an old prefix for replication
    return "MariaDB" if mariadb else "MySQL", tuple(map(int, found)), _OLDEST[mariadb]
