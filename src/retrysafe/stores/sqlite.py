"""SQLite: writers are serial, so opening a transaction for writing is the lock."""

from __future__ import annotations

from retrysafe.ports import Capabilities
from retrysafe.stores.sql import SqlStore


class SqliteStore(SqlStore):
    """Records in a SQLite file. SQLite's clock has millisecond steps."""

    capabilities = Capabilities(
        name="sqlite",
        transactions=True,
        waits_in_transaction=False,
        clock="the machine that holds the file",
        durability="every commit with synchronous=FULL, our default; NORMAL may lose the last commits at power loss",
    )
    NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000"
    GREATEST = "max"
    BEGIN = "BEGIN IMMEDIATE"
    HAS_SCHEMA = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'retrysafe_schema'"
