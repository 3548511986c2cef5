"""Alerts straight from PostgreSQL, for teams without metrics: queries whose rows mean that somebody should look.

They are named after the alerts of `retrysafe.observability.alerts`, and have the same runbooks. They only read; each
costs the same however large the table of records is, and reads no more than 100,000 rows of an outbox.
"""

from __future__ import annotations

from collections.abc import Iterator

from retrysafe.backends.sql.outbox import FOREVER
from retrysafe.observability.alerts import ALERTS

_NOW = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"

QUERIES = {
    "RetrysafeOutcomesUnknown": "SELECT boundary, operation, count(*) AS keys FROM retrysafe_records\n"
    "WHERE state = 'unknown' GROUP BY boundary, operation",
    "RetrysafeStoreSlow": "SELECT pid, now() - query_start AS waits, pg_blocking_pids(pid) AS for\n"
    "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'\n"
    "AND query LIKE '%retrysafe\\_%' AND now() - query_start > interval '1 second'",
    "RetrysafeOutboxLate": "SELECT o.topic, count(*) AS messages, max(t.now - o.created) / 1000000 AS seconds\n"
    f"FROM (SELECT {_NOW} AS now) AS t, (SELECT * FROM retrysafe_outbox ORDER BY id LIMIT 100000) AS o\n"
    "WHERE t.now - o.created > 60000000\n"
    "AND NOT EXISTS (SELECT 1 FROM retrysafe_outbox_paused AS p WHERE p.topic = o.topic)\n"
    "AND NOT EXISTS (SELECT 1 FROM retrysafe_outbox_attempts AS a WHERE a.bucket = o.bucket AND a.lane = o.lane\n"
    "    AND a.id <= o.id AND a.not_before > t.now)\n"
    "GROUP BY o.topic",
    "RetrysafeOutboxDeep": "SELECT count(*) AS messages FROM (SELECT 1 FROM retrysafe_outbox LIMIT 100000) AS o\n"
    "HAVING count(*) > 10000",
    "RetrysafeRelayFailing": "SELECT r.name, (t.now - r.last_seen_at) / 1000000 AS silent_seconds\n"
    f"FROM retrysafe_outbox_relays AS r, (SELECT {_NOW} AS now) AS t WHERE t.now - r.last_seen_at > 60000000",
    "RetrysafeMessagesGivenUp": "SELECT topic, count(*) AS messages FROM retrysafe_outbox_dead GROUP BY topic\n"
    "UNION ALL SELECT o.topic, count(*) FROM retrysafe_outbox_attempts AS a JOIN retrysafe_outbox AS o ON o.id = a.id\n"
    f"WHERE a.not_before >= {FOREVER} GROUP BY o.topic",
    "RetrysafeDeadLetters": "SELECT boundary, consumer, count(*) AS messages FROM retrysafe_inbox_dead\n"
    "WHERE redrive IS NULL GROUP BY boundary, consumer",
}
"""By the alert's name."""


def statements() -> Iterator[str]:
    """The lines of a file of SQL: each query behind what its rows mean."""
    for alert in ALERTS:
        if alert.name in QUERIES:
            yield f"-- {alert.name} ({alert.severity}): {alert.summary}"
            yield f"-- {alert.commands[0]}"
            yield f"-- {alert.runbook}"
            yield from f"{QUERIES[alert.name]};".splitlines()
            yield ""
