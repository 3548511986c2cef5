"""SQL Server, without a server to set up wrongly: facts that fail its checks, and the check of what was never run."""

from __future__ import annotations

from typing import Any

UNMADE: dict[str, dict[str, Any]] = {
    "store-never-run": {"never_run": True},
    "mssql-version": {"findings": [("refuse", "version", "The server is 12.0.6024.")]},
    "mssql-read-only": {"findings": [("refuse", "read_only", "The database is read-only.")]},
    "mssql-delayed-durability": {"findings": [("warn", "delayed_durability", "ALLOWED: the last commits may go.")]},
}
