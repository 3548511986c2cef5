"""SQL stores: statements built from the transition table; a dialect overrides what its database needs.

Instants are BIGINT microseconds since the Unix epoch on the database's clock, so there is no time
zone anywhere. Every statement reads that clock once, as ``t.now``.
"""

from __future__ import annotations

from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import COLUMNS, TABLE, allowed, any_of, columns

__all__ = ["COLUMNS", "TABLE", "SqlStore", "allowed", "any_of", "columns"]
