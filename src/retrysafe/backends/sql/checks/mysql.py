"""The checks of MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.backends.checks import Examination
from retrysafe.backends.sql.checks import indexes
from retrysafe.backends.sql.checks.indexes import rows_of
from retrysafe.protocol.checks import Check, Facts, Severity, find_fact, told
from retrysafe.protocol.requests import Program, ask

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend

_GUIDE = "how-to/run-on-mysql-or-mariadb.md"
_OURS = "table_schema = DATABASE() AND LEFT(table_name, 10) = 'retrysafe_'"
_TABLES = (
    "SELECT t.table_name, t.engine, EXISTS (SELECT 1 FROM information_schema.statistics AS s WHERE s.table_schema = "
    "t.table_schema AND s.table_name = t.table_name AND s.non_unique = 0) FROM information_schema.tables AS t "
    f"WHERE t.{_OURS.replace('table_name', 't.table_name')}"
)
_INDEXES = f"SELECT DISTINCT index_name FROM information_schema.statistics WHERE {_OURS}"
_MODES = "SELECT DATABASE(), @@sql_mode, @@innodb_lock_wait_timeout, @@innodb_doublewrite"


def _gather(backend: Backend) -> Program[dict[str, Any]]:
    facts: dict[str, Any] = {"tables": (yield from ask(rows_of(_TABLES)))}
    names = [row[0] for row in (yield from ask(rows_of(_INDEXES)))]
    modes = yield from ask(rows_of(_MODES))
    facts.update(zip(("database", "sql_mode", "lock_wait", "doublewrite"), modes[0], strict=True))
    facts["lost"] = indexes.missing(indexes.WHOLE, [row[0] for row in facts["tables"]], names)
    facts["keyless"] = ", ".join(name for name, _, unique in facts["tables"] if not unique)
    facts["other_engines"] = ", ".join(name for name, engine, _ in facts["tables"] if engine.lower() != "innodb")
    return facts


def _lenient(facts: Facts) -> str | None:
    mode = str(facts.get("sql_mode", "STRICT_TRANS_TABLES"))
    if "STRICT_TRANS_TABLES" in mode or "STRICT_ALL_TABLES" in mode:
        return None
    return f"sql_mode is {mode!r}: a value that does not fit is cut off without an error."


CHECKS = (
    Check(
        "mysql-version",
        "Is the server new enough?",
        Severity.ERROR,
        "Upgrade to MySQL 8.0.19 or MariaDB 10.6, or newer.",
        _GUIDE,
        told("version", "refuse"),
    ),
    Check(
        "mysql-read-only",
        "Is the server a primary?",
        Severity.ERROR,
        "Point store= at the primary, or  SET GLOBAL read_only = OFF;",
        _GUIDE,
        told("read_only"),
    ),
    Check(
        "mysql-rollback-on-timeout",
        "Does a lock timeout end one statement only?",
        Severity.ERROR,
        "innodb_rollback_on_timeout = OFF  in the server's configuration, and start it again",
        _GUIDE,
        told("innodb_rollback_on_timeout"),
    ),
    Check(
        "mysql-isolation",
        "Are results hidden until they are committed?",
        Severity.ERROR,
        "SET GLOBAL transaction_isolation = 'READ-COMMITTED';  (tx_isolation on older servers)",
        _GUIDE,
        told("isolation"),
    ),
    Check(
        "mysql-charset",
        "Can connections carry every character?",
        Severity.ERROR,
        "Connect with charset=utf8mb4.",
        _GUIDE,
        told("charset"),
    ),
    Check(
        "mysql-table-charset",
        "Can the tables store every character?",
        Severity.ERROR,
        "ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin; for each of them",
        _GUIDE,
        told("tables"),
    ),
    Check(
        "mysql-flush-log",
        "Is a commit on disk before it is acknowledged?",
        Severity.WARNING,
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1;",
        _GUIDE,
        told("innodb_flush_log_at_trx_commit"),
    ),
    Check(
        "mysql-sync-binlog",
        "Do replicas get every commit after a crash?",
        Severity.WARNING,
        "SET GLOBAL sync_binlog = 1;",
        _GUIDE,
        told("sync_binlog"),
    ),
    Check(
        "mysql-packet",
        "Can results of the largest size be sent?",
        Severity.WARNING,
        "SET GLOBAL max_allowed_packet = 67108864;",
        _GUIDE,
        told("max_allowed_packet"),
    ),
    Check(
        "mysql-engine",
        "Do the tables take part in transactions?",
        Severity.ERROR,
        "ALTER TABLE … ENGINE = InnoDB; for each of {other_engines}",
        _GUIDE,
        find_fact("other_engines", "Not InnoDB: {}."),
    ),
    Check(
        "mysql-unique-key",
        "Has every table the unique index by which one of two claims wins?",
        Severity.ERROR,
        "Find and remove the duplicates, then  ALTER TABLE retrysafe_records ADD PRIMARY KEY (key_hash);",
        "how-to/own-the-schema.md",
        find_fact("keyless", "No unique index on: {}."),
    ),
    Check(
        "mysql-indexes",
        "Are the indexes of the migrations there?",
        Severity.WARNING,
        "{program} doctor --store {store} --fix  (CREATE INDEX, for each of them, which InnoDB does online)",
        "how-to/own-the-schema.md",
        indexes.find_lost,
        indexes.repair_by("CREATE INDEX"),
    ),
    Check(
        "mysql-sql-mode",
        "Is a value that does not fit refused?",
        Severity.WARNING,
        "SET GLOBAL sql_mode = CONCAT(@@GLOBAL.sql_mode, ',STRICT_TRANS_TABLES');",
        _GUIDE,
        _lenient,
    ),
    Check(
        "mysql-doublewrite",
        "Does the server survive a torn page?",
        Severity.WARNING,
        "innodb_doublewrite = ON  in the server's configuration",
        _GUIDE,
        lambda facts: "innodb_doublewrite is off." if str(facts.get("doublewrite", 1)) in ("0", "OFF") else None,
    ),
)
EXAMINATION = Examination(CHECKS, _gather, None, lambda store: store.time())
