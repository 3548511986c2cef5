"""The checks of PostgreSQL by doctor; `PostgresqlStore.examine` finds what a boundary refuses too, or warns of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrysafe.backends.checks import Examination
from retrysafe.backends.sql.checks import indexes
from retrysafe.backends.sql.checks.indexes import rows_of
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.backends.sql.table import TABLE
from retrysafe.protocol.checks import Check, Facts, Severity, find_fact, told
from retrysafe.protocol.requests import Program, Query, ask

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend

_GUIDE = "how-to/deploy.md"
_STORES = "reference/stores.md"
_MILLISECONDS = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")
_SETTINGS = (*_MILLISECONDS, "default_transaction_isolation", "default_transaction_read_only")
_FACTS = (
    "SELECT current_database(), (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'), "
    "current_setting('synchronous_standby_names'), "
    "CAST(current_schema() AS text), (SELECT CAST(n.nspname AS text) FROM pg_class AS c JOIN pg_namespace AS n "
    f"ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{TABLE}')), "
    + ", ".join(f"(SELECT setting FROM pg_settings WHERE name = '{name}')" for name in _SETTINGS)
)
_TABLES = (
    "SELECT c.relname, CAST(c.relpersistence AS text), EXISTS (SELECT 1 FROM pg_index AS i "
    "WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL) FROM pg_class AS c "
    "WHERE c.relkind IN ('r', 'p') AND starts_with(CAST(c.relname AS text), 'retrysafe_') "
    "AND pg_table_is_visible(c.oid)"
)
_DENIED = (
    "SELECT string_agg(name, ', ' ORDER BY name), denied, quote_ident(current_user) FROM ("
    "SELECT CAST(c.relname AS text) AS name, string_agg(needed, ', ' ORDER BY place) AS denied FROM pg_class AS c, "
    "unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS n (needed, place) "
    "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND starts_with(CAST(c.relname AS text), 'retrysafe_') "
    "AND c.relname <> 'retrysafe_schema' AND pg_table_is_visible(c.oid) AND NOT has_table_privilege(c.oid, needed) "
    "GROUP BY 1) AS t GROUP BY denied ORDER BY denied"
)
_SLOTS = (
    "SELECT CAST(slot_name AS text), active, coalesce(wal_status, ''), "
    "(SELECT setting FROM pg_settings WHERE name = 'max_slot_wal_keep_size') FROM pg_replication_slots "
    "WHERE database = current_database() AND plugin = 'pgoutput' ORDER BY slot_name"
)
_PID = Query("SELECT pg_backend_pid()", {}, writes=False)


def _gather(backend: Backend) -> Program[dict[str, Any]]:
    row = yield from ask(rows_of(_FACTS))
    names = ("database", "replicas", "standbys", "working_schema", "tables_schema", *_SETTINGS)
    facts: dict[str, Any] = dict(zip(names, row[0], strict=True))
    facts["tables"] = yield from ask(rows_of(_TABLES))
    denied = yield from ask(rows_of(_DENIED))
    facts["user"] = denied[0][2] if denied else ""
    facts["denied_tables"] = ", ".join(tables for tables, _, _ in denied)
    facts["denied"] = "; ".join(f"{privileges} on {tables}" for tables, privileges, _ in denied)
    facts["slots"] = yield from ask(rows_of(_SLOTS))
    facts["holders"] = yield from ask(rows_of(PostgresqlStore.HOLDERS))  # pyright: ignore[reportArgumentType]
    keyless = [name for name, _, unique in facts["tables"] if not unique and "_records_p" not in name]
    facts["keyless"] = ", ".join(keyless)
    facts["unlogged"] = ", ".join(name for name, kept, _ in facts["tables"] if kept == "u")
    lost = yield from indexes.find_lost_on_postgresql(backend.store, [row[0] for row in facts["tables"]])
    facts.update(lost=lost.indexes, making=lost.statements)
    return facts


def _look_for_pooler(backend: Backend) -> Mapping[str, Any]:
    """Look for evidence that sessions of the server change hands between transactions.

    One connection that asks twice hears from two server processes; or a second connection hears from the process that
    the first one, still open, was served by.
    """
    one, other = backend.new_client(), backend.new_client()
    try:
        first = {one(_PID).rows[0][0] for _ in range(2)}
        second = other(_PID).rows[0][0]
    finally:
        one.close()
        other.close()
    return {"pooled": len(first) > 1 or second in first}


def _asynchronous(facts: Facts) -> str | None:
    if not facts.get("replicas") or facts["standbys"]:
        return None
    return f"{facts['replicas']} replica(s) stream, and synchronous_standby_names is empty."


def _idle(facts: Facts) -> str | None:
    limit, longest = int(facts.get("idle_in_transaction_session_timeout") or 0), max(facts["leases"], default=0.0)
    if not limit or limit / 1000 >= longest:
        return None
    return (
        f"idle_in_transaction_session_timeout is {limit} ms, and a lease {longest:g} s: work that calls nothing for "
        "longer loses its transaction while its lease still runs."
    )


def _statement(facts: Facts) -> str | None:
    limit = int(facts.get("statement_timeout") or 0)
    return f"statement_timeout is {limit} ms." if 0 < limit < 1000 else None


def _read_only(facts: Facts) -> str | None:
    return "default_transaction_read_only is on." if facts.get("default_transaction_read_only") == "on" else None


def _serializable(facts: Facts) -> str | None:
    level = facts.get("default_transaction_isolation", "read committed")
    return f"default_transaction_isolation is {level}." if level in ("serializable", "repeatable read") else None


def _find_shared(facts: Facts) -> str | None:
    first, own = facts.get("working_schema"), facts.get("tables_schema")
    if not own or first == own:
        return None
    return f"Its search_path begins with {first}, and retrysafe's tables are in {own}, for all who connect."


def _find_unbounded(facts: Facts) -> str | None:
    found = [name for name, _, _, limit in facts.get("slots", ()) if limit == "-1"]
    return f"Without a bound, until the disk is full, for: {', '.join(found)}." if found else None


def _find_unread(facts: Facts) -> str | None:
    found = [
        f"{name} ({state})" if state in ("unreserved", "lost") else name
        for name, active, state, _ in facts.get("slots", ())
        if not active
    ]
    return f"Nobody reads from: {', '.join(found)}. The log is kept for it." if found else None


def _find_holders(facts: Facts) -> str | None:
    found = [f"{name}{'' if seconds is None else f', for {seconds} s'}" for name, seconds in facts.get("holders", ())]
    return f"What was removed cannot be cleaned up because of: {'; '.join(found)}." if found else None


CHECKS = (
    Check(
        "postgresql-standby",
        "Is the server a primary?",
        Severity.ERROR,
        "Point store= at the primary, for example with target_session_attrs=read-write.",
        _GUIDE,
        told("in_recovery"),
    ),
    Check(
        "postgresql-encoding",
        "Can every character be stored?",
        Severity.ERROR,
        "Use a database made with  CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0;",
        _STORES,
        told("server_encoding"),
    ),
    Check(
        "postgresql-client-encoding",
        "Can every character be sent?",
        Severity.ERROR,
        "ALTER DATABASE {database} RESET client_encoding; and unset PGCLIENTENCODING",
        _STORES,
        told("client_encoding"),
    ),
    Check(
        "postgresql-fsync",
        "Is a commit on disk before it is acknowledged?",
        Severity.ERROR,
        "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();",
        _GUIDE,
        told("fsync"),
    ),
    Check(
        "postgresql-synchronous-commit",
        "Does a commit wait for its log record?",
        Severity.WARNING,
        "ALTER DATABASE {database} SET synchronous_commit = on;",
        _GUIDE,
        told("synchronous_commit"),
    ),
    Check(
        "postgresql-asynchronous-replica",
        "Would a failover keep every commit?",
        Severity.WARNING,
        "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();",
        "explanation/which-store.md",
        _asynchronous,
    ),
    Check(
        "postgresql-idle-transaction-timeout",
        "Do transactions live as long as the leases of the work in them?",
        Severity.WARNING,
        "ALTER DATABASE {database} SET idle_in_transaction_session_timeout = 0; or a longer time than every lease=",
        "explanation/three-clocks.md",
        _idle,
    ),
    Check(
        "postgresql-statement-timeout",
        "Has a claim a second to wait for another one?",
        Severity.WARNING,
        "ALTER DATABASE {database} SET statement_timeout = '5s';",
        _GUIDE,
        _statement,
    ),
    Check(
        "postgresql-read-only",
        "Do transactions write by default?",
        Severity.ERROR,
        "ALTER DATABASE {database} RESET default_transaction_read_only;",
        _GUIDE,
        _read_only,
    ),
    Check(
        "postgresql-privileges",
        "May the user of store= read and write the tables?",
        Severity.ERROR,
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {denied_tables} TO {user};",
        _GUIDE,
        find_fact("denied", "It may not: {}."),
    ),
    Check(
        "postgresql-isolation",
        "Is READ COMMITTED the default level of isolation?",
        Severity.WARNING,
        "ALTER DATABASE {database} SET default_transaction_isolation = 'read committed'; and raise the level where a "
        "transaction of yours needs it",
        "explanation/transactional-or-leased.md",
        _serializable,
    ),
    Check(
        "postgresql-search-path",
        "Are retrysafe's tables in the schema that its connections work in?",
        Severity.WARNING,
        "If each tenant has a schema, give every boundary a scope= that names the tenant; if not, put the schema of "
        "retrysafe's tables first in the search_path of store=, or waive this",
        "how-to/tenants-and-scope.md",
        _find_shared,
    ),
    Check(
        "postgresql-unique-key",
        "Has every table the unique index by which one of two claims wins?",
        Severity.ERROR,
        "Find and remove the duplicates, then  ALTER TABLE retrysafe_records ADD PRIMARY KEY (key_hash);",
        "how-to/own-the-schema.md",
        find_fact("keyless", "No valid unique index on: {}."),
    ),
    Check(
        "postgresql-unlogged",
        "Do the tables survive a crash of the server?",
        Severity.ERROR,
        "ALTER TABLE … SET LOGGED; for each of {unlogged}",
        "how-to/own-the-schema.md",
        find_fact("unlogged", "Unlogged: {}. A crash of the server empties them."),
    ),
    Check(
        "postgresql-indexes",
        "Are the indexes of the migrations there, and valid?",
        Severity.WARNING,
        "{program} doctor --store {store} --fix  (CREATE INDEX CONCURRENTLY, for each of them, "
        "with partitions on each partition first)",
        "how-to/own-the-schema.md",
        indexes.find_lost,
        lambda facts: facts["making"],
    ),
    Check(
        "postgresql-slot-limit",
        "Is the log bounded that is kept for replication slots of this database?",
        Severity.WARNING,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'; SELECT pg_reload_conf();  A relay with cdc= makes a "
        "slot anew that has lost its log, and publishes what is in the table.",
        "how-to/cdc.md",
        _find_unbounded,
    ),
    Check(
        "postgresql-slot-reader",
        "Does a reader keep up with each replication slot of this database?",
        Severity.WARNING,
        "Start what reads from it, as  retrysafe relay --cdc --store {address}, or, after the last relay with --cdc,  "
        "retrysafe cdc drop --store {address}",
        "how-to/cdc.md",
        _find_unread,
    ),
    Check(
        "postgresql-held-cleanup",
        "Is no transaction open for more than a minute, so that what was removed is cleaned up?",
        Severity.WARNING,
        "End it (SELECT pg_terminate_backend(pid); ROLLBACK PREPARED 'gid'; SELECT pg_drop_replication_slot('name');), "
        "and let long reports read from a replica",
        "how-to/relay.md",
        _find_holders,
    ),
    Check(
        "postgresql-pooler",
        "Does a connection keep its session?",
        Severity.WARNING,
        "Connect to PostgreSQL itself for what listens, or set pool_mode = session in PgBouncer; with transaction "
        "pooling, LISTEN, SET and advisory locks of a session do not work.",
        "how-to/pools-pgbouncer-forks.md",
        find_fact(
            "pooled",
            "A server process served two connections at a time, or one connection by two processes: a pooler in "
            "transaction mode stands in front.",
        ),
    ),
)
EXAMINATION = Examination(CHECKS, _gather, _look_for_pooler, lambda store: store.time())
