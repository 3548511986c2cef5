"""The checks of SQL Server: what the store's own examination finds."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.protocol.checks import Check, Severity, told

_GUIDE = "how-to/run-on-sql-server.md"
CHECKS = (
    Check(
        "mssql-version",
        "Is the server new enough?",
        Severity.ERROR,
        "Upgrade to SQL Server 2016 or newer.",
        _GUIDE,
        told("version", "refuse"),
    ),
    Check(
        "mssql-read-only",
        "Can the database be written to?",
        Severity.ERROR,
        "Point store= at the primary, or  ALTER DATABASE … SET READ_WRITE;",
        _GUIDE,
        told("read_only"),
    ),
    Check(
        "mssql-delayed-durability",
        "Is a commit on disk before it is acknowledged?",
        Severity.WARNING,
        "ALTER DATABASE … SET DELAYED_DURABILITY = DISABLED;",
        _GUIDE,
        told("delayed_durability"),
    ),
)
EXAMINATION = Examination(CHECKS, no_facts, None, lambda store: store.time())
