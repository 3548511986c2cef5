"""SQL Server 2016 or newer, and Azure SQL: written from their documentation and parsed, never run against a server.

A statement that changes records returns what it changed (OUTPUT): a session's NOCOUNT may hide the number of rows.
Every read of records asks for READCOMMITTEDLOCK: the versions that READ_COMMITTED_SNAPSHOT and SNAPSHOT show, which are
the default of Azure SQL, may be older than a commit that a retry has to see.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import KEPT, TABLE, allowed, columns
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.records import ClaimRequest, Finding, Ownership, QuotaRefusal, Record
from retrysafe.protocol.requests import Ask, Query, Rows
from retrysafe.protocol.store import Capabilities
from retrysafe.protocol.transitions import Transition

MOST_RENEWED = 300
"""Leases that one statement extends: it has six parameters for each, and the server takes 2,100."""
_BYTES = {"key": "binary(32)", "quota": "binary(16)", "fingerprint": "varbinary(max)", "result": "varbinary(max)"}
_TAKEN = "23505"
_HELD = -1
"""The answer of sp_getapplock where another transaction holds the lock."""
_NOW = "DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME())"
_READ = f"{TABLE} AS r WITH (READCOMMITTEDLOCK, ROWLOCK)"
_SKIPPING = f"{TABLE} AS r WITH (READCOMMITTEDLOCK, ROWLOCK, READPAST)"
_REMOVED = f"{TABLE} AS r WITH (UPDLOCK, READCOMMITTEDLOCK, ROWLOCK, READPAST)"
_INSERT = f"INSERT INTO {TABLE} "
_ROW = f"{columns('inserted.')}, inserted.updated"
# reading a table opens the transaction in a session with IMPLICIT_TRANSACTIONS, and without one there is no such lock
_GATE = (
    "DECLARE @got int; SELECT @got = max(version) FROM retrysafe_schema; EXEC @got = sp_getapplock @Resource = :gate, "
    "@LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 0; SELECT @got AS got WHERE @got < 0"
)


class SqlserverStore(SqlStore):
    """Records in a table of SQL Server.

    In a transaction, an application lock held to its end gates the claim, so that a duplicate of an uncommitted claim
    is told at once. No claim locks a range of keys, on which claims of other keys would wait: the unique key alone
    decides, and the error of the one that comes second is an answer.
    """

    capabilities = Capabilities(
        name="mssql",
        transactions=True,
        waits_in_transaction=True,
        clock="the database server",
        durability="every commit, unless delayed durability is allowed or forced",
        failover="nothing with synchronous-commit replicas; the last commits of the old primary with asynchronous ones",
        cannot_survive=(
            "a failover to an asynchronous replica that had not received a committed record: it runs again",
            "delayed durability, and a crash of the server: the last commits may be gone",
            "a restored backup: records since then are gone, and what they guarded may run again",
        ),
        choose_when=(
            "when your data is in SQL Server or Azure SQL, and you have run `retrysafe conformance store` on it: "
            "record and business write commit together"
        ),
        quotas=(
            "approximately: claims at the same moment may not see each other, and each of them may exceed the quota; "
            "keys of transactions that are undone are counted until then"
        ),
        never_run=True,
    )
    WHEREABOUTS = f"SELECT CAST(@@SERVERNAME AS nvarchar(256)), DB_NAME(), SCHEMA_NAME(), OBJECT_ID('{TABLE}')"
    NOW = _NOW
    STAMP = "CURRENT_TRANSACTION_ID()"
    BEGIN = "BEGIN TRANSACTION"
    SAVEPOINT = "SAVE TRANSACTION retrysafe"
    ROLLBACK_TO_SAVEPOINT = "ROLLBACK TRANSACTION retrysafe"
    ROLLBACK = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION"
    CLAIMS_MANY = False
    KEEPS_MESSAGES = False
    READ, SCANNED = _READ, _SKIPPING
    COUNTED = f"{TABLE} AS q WITH (READUNCOMMITTED)"
    HAS_SCHEMA = "SELECT 1 WHERE OBJECT_ID('retrysafe_schema') IS NOT NULL"
    MIGRATION_LOCK = Query(
        "DECLARE @got int; EXEC @got = sp_getapplock @Resource = 'retrysafe', @LockMode = 'Exclusive', "
        "@LockOwner = 'Transaction', @LockTimeout = 9000; SELECT CASE WHEN @got < 0 THEN 0 ELSE 1 END AS got",
        {},
    )
    MIGRATION_BOUNDS = Query("SET LOCK_TIMEOUT 1000", {})
    MIGRATION_UNLOCK = Query("SET LOCK_TIMEOUT -1", {})

    # ------------------------------------------------------------ asks

    def claim(self, request: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        """In a transaction behind the lock of the key; the gate answers with a row only if that was not given."""
        ask = super().claim(request)
        if not request.transactional:
            return ask
        gate = Query(_GATE, {**ask.request.params, "gate": f"retrysafe {request.key.hex()}"}, ask.request)
        return Ask(gate, lambda answer: ask.parse(_behind_gate(answer)))

    def renew(self, ownerships: Sequence[Ownership]) -> list[Ask[set[bytes]]]:
        """Extend leases, so many in one statement as it takes parameters for, sorted by key."""
        ordered = sorted(ownerships)
        parts = (ordered[start : start + MOST_RENEWED] for start in range(0, len(ordered), MOST_RENEWED))
        return [ask for part in parts for ask in super(SqlserverStore, self).renew(part)]

    def renew_query(self, count: int, params: dict[str, Any]) -> Query:
        names = ("key", "attempt", "token", "lease", "window", "memory")
        rows = ", ".join(f"({', '.join(self.p(name, f'{name}{i}') for name in names)})" for i in range(count))
        return self.query(
            "UPDATE r SET lease_until = t.now + h.lease, updated = t.now, expires = t.now + h.kept, "
            "tombstone_until = t.now + h.remembered, version = r.version + 1 OUTPUT inserted.key_hash "
            f"FROM {TABLE} AS r WITH (ROWLOCK) INNER JOIN (VALUES {rows}) "
            "AS h (held_key, held_attempt, held_token, lease, kept, remembered) ON r.key_hash = h.held_key "
            f"CROSS JOIN {self.clock} WHERE r.attempt = h.held_attempt AND r.token = h.held_token "
            f"AND {allowed(Transition.RENEW)}",
            params,
        )

    def examine(self) -> list[Ask[list[Finding]]]:
        """Refuse a server that is too old, and a replica; tell how durable a commit is."""
        sql = (
            "SELECT CAST(SERVERPROPERTY('EngineEdition') AS int), "
            "CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), "
            "CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(128)), d.delayed_durability_desc "
            "FROM sys.databases AS d WHERE d.database_id = DB_ID()"
        )
        return [Ask(Query(sql, {}, writes=False), _findings)]

    # ------------------------------------------------------------ statements

    def query(
        self, sql: str, params: Mapping[str, Any], otherwise: Query | None = None, *, writes: bool = True
    ) -> Query:
        """Spell what the dialects share; bytes are digits, since pymssql sends some of them as text."""
        digits = {name: value.hex() if isinstance(value, bytes) else value for name, value in params.items()}
        refusals = {_TAKEN: otherwise} if sql.startswith(_INSERT) else {}
        return Query(_spell(sql), digits, otherwise, writes, refusals=refusals)

    def p(self, kind: str, name: str | None = None) -> str:
        """A parameter, made bytes again where it was bytes."""
        return f"CONVERT({_BYTES[kind]}, :{name or kind}, 2)" if kind in _BYTES else f":{name or kind}"

    def _insert(self, clock: str, gate: str = "", *, counted: bool = False) -> str:
        names, _, values = super()._insert(clock, counted=counted).partition(" SELECT ")
        there = f"SELECT 1 FROM {_READ} WHERE r.key_hash = {self.p('key')}"
        return (
            f"{names} OUTPUT {_ROW} SELECT {values.partition(' FROM ')[0]} FROM {clock}{gate or ' WHERE true'} "
            f"AND NOT EXISTS ({there})"
        )

    def _take(self, clock: str, gate: str) -> str:
        greatest = "CASE WHEN r.token + 1 > t.now THEN r.token + 1 ELSE t.now END"
        take = super()._take(clock, gate).partition(" RETURNING ")[0]
        return take.replace("greatest(r.token + 1, t.now)", greatest).replace("inserted.version", _ROW)

    def _update(self, changes: str, clock: str, condition: str) -> str:
        return (
            f"UPDATE r SET {changes} OUTPUT inserted.version FROM {TABLE} AS r WITH (ROWLOCK) CROSS JOIN {clock} "
            f"WHERE {condition}"
        )

    def _room(self, limited: tuple[bool, bool]) -> str:
        """With an order, without which T-SQL skips no rows."""
        return super()._room(limited).replace(f"{KEPT} LIMIT", f"{KEPT} ORDER BY q.created LIMIT")

    def _sweep(self, clock: str) -> str:
        return f"DELETE TOP (:limit) FROM r OUTPUT deleted.version FROM {_REMOVED} WHERE {self.is_forgotten_now()}"

    def remove_sql(self, count: int) -> str:
        rows = ", ".join(f"({self.p('key', f'key{i}')}, :version{i})" for i in range(count))
        return (
            f"DELETE FROM r OUTPUT deleted.version FROM {_REMOVED} INNER JOIN (VALUES {rows}) "
            "AS seen (seen_key, seen_version) ON r.key_hash = seen.seen_key AND r.version = seen.seen_version "
            f"WHERE {self.is_forgotten_now()}"
        )


_LIMIT = re.compile(r" LIMIT ([^\s)]+)(?: OFFSET ([^\s)]+))?")


@lru_cache(maxsize=512)
def _spell(sql: str) -> str:
    sql = re.sub(r"\bWHERE true\b", "WHERE 1 = 1", sql)
    return _LIMIT.sub(lambda found: f" OFFSET {found[2] or 0} ROWS FETCH NEXT {found[1]} ROWS ONLY", sql)


def _behind_gate(answer: Rows) -> Rows:
    """The answer to the claim; without rows if another transaction holds the gate."""
    got, *record = answer.rows[0] if answer.rows else (_HELD,)
    if record:
        return answer
    if got != _HELD:
        raise StoreUnavailable(f"sp_getapplock gave no lock: {got}")
    return Rows([], 0)


# ---------------------------------------------------------------- settings

_OLDEST = 13
"""SQL Server 2016: DATEDIFF_BIG and CURRENT_TRANSACTION_ID."""
_OF_AZURE = frozenset({5, 8, 9, 11})
"""Editions whose version says nothing of their age."""


def _findings(answer: Rows) -> list[Finding]:
    edition, version, updateability, durability = answer.rows[0]
    found = [Finding("fact", "version", version), Finding("fact", "delayed_durability", durability)]
    if int(edition) not in _OF_AZURE and int(version.partition(".")[0]) < _OLDEST:
        found.append(
            Finding("refuse", "version", f"The server is {version}; {_OLDEST} (2016) is the oldest that works.")
        )
    if updateability != "READ_WRITE":
        found.append(Finding("refuse", "read_only", "The database is read-only, as a replica is: use the primary."))
    if durability != "DISABLED":
        text = f"{durability}: a crash of the server may lose the last commits; DISABLED keeps them."
        found.append(Finding("warn", "delayed_durability", text))
    return found
