"""Alerts straight from PostgreSQL, for teams without metrics: queries whose rows need a person.

They are named after the alerts of `retrysafe.observability.alerts`, and have the same runbooks. They only read, and
each says what it costs: it reads a bounded number of rows, or needs an index of its own for that. Some alerts are about
events that leave no row; `WITHOUT_ROWS` says which, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.backends.migrations import load
from retrysafe.backends.sql.outbox import FOREVER
from retrysafe.observability.alerts import ALERTS, Alert

_NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
_CLOCK = f"(SELECT {_NOW} AS now) AS t"
_MOST = 100_000
"""Rows of an outbox or inbox, and unknown keys, that a query reads and counts, at most."""
_SAMPLE = 10_000
"""Keys that a query about all keys looks at. They are the first by their hashes, and so a random sample."""
_SCHEMA = load("postgresql")[-1].version


class TableQuery(NamedTuple):
    """A query whose rows are an alert.

    sql: the statement, without a semicolon.
    blind: which cases of the alert it does not see; "" if it sees all of them.
    needs: the statement that makes the index without which it reads the whole table of records; "" if it reads a
        bounded number of rows as it is.
    """

    sql: str
    blind: str = ""
    needs: str = ""


def _settings(*names: str) -> str:
    """Settings as this session has them, and as roles and the database set them for others."""
    among = ", ".join(f"'{name}'" for name in names)
    return (
        f"(SELECT name, setting, 'the server' AS set_by FROM pg_settings WHERE name IN ({among})\n"
        "    UNION ALL SELECT split_part(c, '=', 1), split_part(c, '=', 2),\n"
        "        CASE WHEN d.setrole = 0 THEN 'the database' ELSE 'role ' || pg_get_userbyid(d.setrole) END\n"
        "    FROM pg_db_role_setting AS d, unnest(d.setconfig) AS c\n"
        "    WHERE d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))\n"
        f"    AND split_part(c, '=', 1) IN ({among})) AS s"
    )


QUERIES = {
    "RetrysafeOutcomesUnknown": TableQuery(
        "SELECT boundary, operation, count(*) AS keys FROM (SELECT boundary, operation FROM retrysafe_records\n"
        f"    WHERE state = 'unknown' LIMIT {_MOST}) AS r GROUP BY boundary, operation",
        blind="an attempt that died and has not been retried since: RetrysafeLeasesLost has it",
    ),
    "RetrysafeRunsStranded": TableQuery(
        "SELECT r.boundary, r.operation, count(*) AS runs, max(t.now - r.updated) / 1000000 AS seconds\n"
        "FROM (SELECT DISTINCT key_hash, generation FROM (SELECT key_hash, generation FROM retrysafe_steps\n"
        f"    ORDER BY kept_until DESC LIMIT {_MOST}) AS l) AS s, {_CLOCK},\n"
        "    LATERAL (SELECT * FROM retrysafe_records WHERE key_hash = s.key_hash LIMIT 1) AS r\n"
        "WHERE r.created = s.generation AND t.now - r.updated > 3600000000\n"
        "AND (r.state = 'released' AND r.expires > t.now\n"
        "    OR r.state = 'running' AND r.effects = 'keyed' AND r.lease_until < t.now)\n"
        "GROUP BY r.boundary, r.operation",
        blind=f"runs behind the latest {_MOST:,} steps",
    ),
    "RetrysafeLeasesLost": TableQuery(
        f"SELECT boundary, operation, effects, count(*) AS keys, max(t.now - lease_until) / 1000000 AS seconds\n"
        f"FROM retrysafe_records, {_CLOCK}\n"
        f"WHERE state = 'running' AND lease_until < (SELECT {_NOW} - 60000000)\n"
        "GROUP BY boundary, operation, effects",
        blind="an attempt whose key another one has taken over since",
        needs="CREATE INDEX CONCURRENTLY retrysafe_records_running ON retrysafe_records (lease_until) "
        "WHERE state = 'running'",
    ),
    "RetrysafeStoreFailing": TableQuery(
        f"SELECT 'the schema has version ' || max(version) || ' of {_SCHEMA}' AS fault FROM retrysafe_schema\n"
        f"HAVING max(version) < {_SCHEMA}\n"
        "UNION ALL SELECT 'the server is a standby' WHERE pg_is_in_recovery()\n"
        "UNION ALL SELECT 'default_transaction_read_only of ' || s.set_by || ' is on'\n"
        f"FROM {_settings('default_transaction_read_only')} WHERE s.setting = 'on'",
        blind="claims that fail for any other reason, since one that fails writes nothing. A query of this file that "
        "cannot be run is such a reason",
    ),
    "RetrysafeStoreSlow": TableQuery(
        "SELECT pid, now() - query_start AS waits, pg_blocking_pids(pid) AS for\n"
        "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'\n"
        "AND query LIKE '%retrysafe\\_%' AND now() - query_start > interval '1 second'",
        blind="a store that is slow without a lock, as by its disk or the network; and, run by a role without "
        "pg_read_all_stats (which pg_monitor has), sessions of other roles",
    ),
    "RetrysafeNewKeysJump": TableQuery(
        f"SELECT * FROM (SELECT r.boundary, count(*) FILTER (WHERE r.created > t.now - 300000000) AS new,\n"
        "    count(*) FILTER (WHERE r.created BETWEEN t.now - 2100000000 AND t.now - 1800000000) AS before,\n"
        "    bool_or(r.created < t.now - 2100000000) AS was_in_use\n"
        "    FROM (SELECT boundary, created, tombstone_until FROM retrysafe_records\n"
        f"        ORDER BY key_hash LIMIT {_SAMPLE}) AS r, {_CLOCK}\n"
        "    WHERE r.tombstone_until - r.created > 2100000000 GROUP BY r.boundary) AS b,\n"
        f"    (SELECT greatest(1, sum(greatest(0, reltuples)) / {_SAMPLE}) AS part FROM pg_class WHERE relkind = 'r'\n"
        "    AND (oid = to_regclass('retrysafe_records')\n"
        "        OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass('retrysafe_records'))))) AS c\n"
        "WHERE b.new >= 50 AND b.new > 3 * b.before AND b.new * c.part > 300 AND b.was_in_use",
        blind=f"boundaries whose keys are kept for less than 35 minutes; and, of more than {_SAMPLE:,} keys, a jump to "
        "fewer than one in 200 of all keys within five minutes",
    ),
    "RetrysafeSettingsWeak": TableQuery(
        f"SELECT s.name, s.setting, s.set_by FROM {_settings('fsync', 'full_page_writes', 'synchronous_commit')}\n"
        "WHERE s.setting = 'off'",
        blind="a setting that an application makes for its session, and code in a guarded request",
    ),
    "RetrysafeOutboxLate": TableQuery(
        "SELECT o.topic, count(*) AS messages, max(t.now - o.created) / 1000000 AS seconds\n"
        f"FROM {_CLOCK}, (SELECT * FROM retrysafe_outbox ORDER BY id LIMIT {_MOST}) AS o\n"
        "WHERE t.now - o.created > 60000000\n"
        "AND NOT EXISTS (SELECT 1 FROM retrysafe_outbox_paused AS p WHERE p.topic = o.topic)\n"
        "AND NOT EXISTS (SELECT 1 FROM retrysafe_outbox_attempts AS a WHERE a.bucket = o.bucket AND a.lane = o.lane\n"
        "    AND a.id <= o.id AND a.not_before > t.now)\n"
        "GROUP BY o.topic",
    ),
    "RetrysafeOutboxDeep": TableQuery(
        f"SELECT count(*) AS messages FROM (SELECT 1 FROM retrysafe_outbox LIMIT {_MOST}) AS o\n"
        "HAVING count(*) > 10000",
    ),
    "RetrysafeRelayFailing": TableQuery(
        "SELECT r.name, (t.now - r.last_seen_at) / 1000000 AS silent_seconds\n"
        f"FROM retrysafe_outbox_relays AS r, {_CLOCK} WHERE t.now - r.last_seen_at > 60000000",
        blind="a relay that runs and fails: RetrysafeOutboxLate has what it leaves behind",
    ),
    "RetrysafeDestinationStalled": TableQuery(
        "SELECT o.topic, max(a.error) AS error, count(*) AS messages, max(t.now - o.created) / 1000000 AS seconds\n"
        f"FROM {_CLOCK}, (SELECT * FROM retrysafe_outbox_attempts WHERE error <> '' AND not_before < {FOREVER}\n"
        f"    LIMIT {_MOST}) AS a,\n"
        "    LATERAL (SELECT topic, created FROM retrysafe_outbox WHERE id = a.id LIMIT 1) AS o\n"
        "WHERE t.now - o.created > 600000000\n"
        "AND NOT EXISTS (SELECT 1 FROM retrysafe_outbox_paused AS p WHERE p.topic = o.topic)\n"
        "GROUP BY o.topic",
        blind="a topic that a relay leaves alone as a whole: RetrysafeOutboxLate has it",
    ),
    "RetrysafeMessagesGivenUp": TableQuery(
        "SELECT topic, count(*) AS messages\n"
        f"FROM (SELECT topic FROM retrysafe_outbox_dead LIMIT {_MOST}) AS d GROUP BY topic\n"
        "UNION ALL SELECT o.topic, count(*)\n"
        f"FROM (SELECT id FROM retrysafe_outbox_attempts WHERE not_before >= {FOREVER} LIMIT {_MOST}) AS a,\n"
        "    LATERAL (SELECT topic FROM retrysafe_outbox WHERE id = a.id LIMIT 1) AS o GROUP BY o.topic",
    ),
    "RetrysafeDeadLetters": TableQuery(
        "SELECT boundary, consumer, count(*) AS messages FROM (SELECT boundary, consumer FROM retrysafe_inbox_dead\n"
        f"    WHERE redrive IS NULL LIMIT {_MOST}) AS d GROUP BY boundary, consumer",
    ),
    "RetrysafeConsumerBehind": TableQuery(
        "SELECT a.consumer, a.what, count(*) AS messages, max(t.now - a.at) / 1000000 AS seconds\n"
        f"FROM {_CLOCK}, ((SELECT consumer, 'failed, and has not come again' AS what, updated AS at\n"
        "    FROM retrysafe_inbox_attempts\n"
        f"    WHERE updated BETWEEN (SELECT {_NOW} - 86400000000) AND (SELECT {_NOW} - 900000000) AND started > 0\n"
        f"    LIMIT {_MOST})\n"
        "    UNION ALL (SELECT consumer, 'was redriven, and is not handled', redrive FROM retrysafe_inbox_dead\n"
        f"    WHERE redrive < (SELECT {_NOW} - 900000000) LIMIT {_MOST})) AS a\n"
        "GROUP BY a.consumer, a.what",
        blind="what waits at the broker and was not tried yet, which only the broker knows",
    ),
}
"""By the alert's name."""
WITHOUT_ROWS = {
    "RetrysafeResultsNotStored": "The store did not take the outcome, so no row has it. The attempt's key lapses, or "
    "becomes unknown: RetrysafeLeasesLost and RetrysafeOutcomesUnknown have it.",
    "RetrysafeResultsUnreadable": "A row says with which key its result was encrypted, and not which keys a process "
    "has.",
    "RetrysafeKeysReused": "A call that is refused writes nothing.",
    "RetrysafeRetryStorm": "A replay writes nothing.",
    "RetrysafeConflictsMany": "A call that meets another attempt writes nothing.",
    "RetrysafeDoctorFindings": "What `check_at_start` finds is told and logged, and writes no row.",
    "RetrysafeConsumerFailing": "A consumer that cannot reach its broker or its database writes nothing, and none of "
    "the tables lists consumers.",
    "RetrysafeWebhooksRefused": "A webhook that is refused writes nothing.",
    "RetrysafeClientGivesUp": "The journal of requests is a file of the application's machine: `retrysafe requests "
    "list` reads it.",
}
"""The alerts that no query of the tables can give, and why."""


def remarks(query: TableQuery) -> Iterator[str]:
    """Yield remarks on a query, beside its alert."""
    if query.blind:
        yield f"It does not see {query.blind}."
    if query.needs:
        yield f"It reads the whole table of records, unless this index is there: {query.needs};"
        yield "The index of a table that has partitions is made without CONCURRENTLY, and claims wait meanwhile."


def statements() -> Iterator[str]:
    """The lines of a file of SQL: each query behind what its rows mean, and at the end the alerts without one."""
    for alert in ALERTS:
        if alert.name in QUERIES:
            yield from _statement(alert, QUERIES[alert.name])
            yield ""
    yield "-- Not in this file, because the tables cannot tell:"
    for name, reason in WITHOUT_ROWS.items():
        yield f"-- {name}: {reason}"


def _statement(alert: Alert, query: TableQuery) -> Iterator[str]:
    yield f"-- {alert.name} ({alert.severity}): {alert.summary}"
    yield f"-- {alert.commands[0]}"
    yield f"-- {alert.runbook}"
    yield from (f"-- {remark}" for remark in remarks(query))
    yield from f"{query.sql};".splitlines()
