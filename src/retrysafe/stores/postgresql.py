"""PostgreSQL: claims that never block, also inside the caller's transaction."""

from __future__ import annotations

from typing import ClassVar

from retrysafe.core.transitions import Event
from retrysafe.ports import Ask, Capabilities, Query, Rows
from retrysafe.stores.sql import TABLE, SqlStore, allowed, columns
from retrysafe.types import Finding, Want

_LOCK = "pg_try_advisory_xact_lock(('x' || encode(substr(CAST(:key AS bytea), 1, 8), 'hex'))::bit(64)::bigint)"


class PostgresqlStore(SqlStore):
    """Records in a PostgreSQL table (13 or later).

    In a transaction, an advisory lock held to its end gates the claim, so that a duplicate of an
    uncommitted claim is told at once instead of blocking. A leased claim commits at once and has no
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
            "your data is in PostgreSQL: record, business write and outbox row commit together, "
            "and nothing else has to run"
        ),
    )
    NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
    CASTS: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("key", "fingerprint", "result"), "bytea"),
        **dict.fromkeys(("boundary", "scope", "operation", "attempt", "effects", "media_type"), "text"),
        **dict.fromkeys(("lease", "window", "memory", "token", "version", "limit"), "bigint"),
        **dict.fromkeys(("attempts", "codec_version"), "integer"),
    }
    STAMP = "pg_current_xact_id()"
    GATE = f" AND {_LOCK}"
    SKIP_LOCKED = " FOR UPDATE OF r SKIP LOCKED"
    HAS_SCHEMA = "SELECT CAST(to_regclass('retrysafe_schema') AS text)"
    MIGRATION_LOCK = "SELECT pg_advisory_xact_lock(7303014801234711)"

    def __init__(self) -> None:
        super().__init__()
        self._gated_claim_sql = self._claim(gated=True)
        self._claim_sql = self._claim(gated=False)

    def _claim(self, *, gated: bool) -> str:
        """Insert if there is no record, and return the record there is, in one statement."""
        lock, go = (_LOCK, "gate.open") if gated else ("true", "true")
        insert = self._insert("t, gate", f" WHERE {go}").rsplit(" RETURNING ", 1)[0]
        return (
            f"WITH t AS MATERIALIZED (SELECT {self.NOW} AS now), "
            f"old AS MATERIALIZED (SELECT {columns('r.')} FROM {TABLE} AS r WHERE r.key_hash = {self.p('key')}), "
            f"gate AS MATERIALIZED (SELECT {lock} AS open WHERE NOT EXISTS (SELECT 1 FROM old)), "
            f"new AS ({insert} RETURNING {columns()}) "
            f"SELECT {columns('f.')}, t.now FROM t "
            f"LEFT JOIN (SELECT * FROM new UNION ALL SELECT * FROM old) AS f ON true "
            f"WHERE f.key_hash IS NOT NULL OR NOT coalesce((SELECT open FROM gate), true)"
        )

    def claim_query(self, want: Want) -> Query:
        """One statement; no row means that a rival committed first, and a new statement will see it."""
        params = self._want_params(want)
        sql = self._gated_claim_sql if want.transactional else self._claim_sql
        return Query(sql, params, Query(self.read_sql, params, writes=False))

    def _sweep(self, clock: str) -> str:
        return self._delete(
            f"FROM {TABLE} AS r, {clock} WHERE {allowed(Event.SWEEP)} ORDER BY r.forget LIMIT {self.p('limit')}"
        )

    def remove_sql(self, count: int) -> str:
        """Remove ``count`` records if they are forgotten and as they were seen, by key and version."""
        rows = ", ".join(f"({self.p('key', f'key{i}')}, {self.p('version', f'version{i}')})" for i in range(count))
        return self._delete(
            f"FROM {TABLE} AS r, {self.clock} WHERE (r.key_hash, r.version) IN (VALUES {rows}) "
            f"AND {allowed(Event.SWEEP)}"
        )

    def _delete(self, chosen: str) -> str:
        """Lock what was chosen, then delete it by its place in the table, which no one can change meanwhile.

        Without the lock, a key that is claimed between the two would be deleted: a DELETE that had to wait for
        the claim looks at the new version of the row again, but not at what a subquery said about the old one.
        By place it is three times as quick as by key.
        """
        return (
            f"WITH doomed AS MATERIALIZED (SELECT r.tableoid AS part, r.ctid AS place {chosen}{self.SKIP_LOCKED}) "
            f"DELETE FROM {TABLE} AS r WHERE r.ctid = ANY (ARRAY(SELECT place FROM doomed)) "
            f"AND (r.tableoid, r.ctid) IN (SELECT part, place FROM doomed)"
        )

    def examine(self) -> list[Ask[list[Finding]]]:
        """Refuse a standby; tell how durable a commit is."""
        names = ("fsync", "synchronous_commit", "synchronous_standby_names", "full_page_writes")
        settings = ", ".join(f"current_setting('{name}')" for name in names)
        sql = f"SELECT CAST(pg_is_in_recovery() AS text), {settings}"
        return [Ask(Query(sql, {}, writes=False), _findings)]

    ISOLATION = "SELECT current_setting('transaction_isolation')"


def _findings(answer: Rows) -> list[Finding]:
    standby, fsync, commit, standbys, pages = answer.rows[0]
    found = [
        Finding("fact", "synchronous_commit", commit),
        Finding("fact", "synchronous_standby_names", standbys or "none: a failover may lose the last commits"),
    ]
    if standby == "true":
        found.append(
            Finding("refuse", "in_recovery", "The server is a standby, where nothing can be claimed: use the primary.")
        )
    if fsync != "on" or pages != "on":
        found.append(
            Finding(
                "warn", "fsync", f"fsync={fsync}, full_page_writes={pages}: a crash of the machine may lose records."
            )
        )
    if commit == "off":
        found.append(Finding("warn", "synchronous_commit", "off: a crash of the server may lose the last commits."))
    return found
