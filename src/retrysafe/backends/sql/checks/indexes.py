"""The indexes that the migrations create, so that one that is gone can be named and made again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_SETTLED = "state = 'completed' OR state = 'failed' OR state = 'released'"


class Index(NamedTuple):
    """One index: its table, its columns, and the condition of a partial one."""

    name: str
    table: str
    columns: str
    where: str = ""

    def create(self, how: str) -> str:
        """The statement that makes it, which begins with ``how``."""
        return f"{how} {self.name} ON {self.table} ({self.columns}){self.where and f' WHERE {self.where}'}"


_EVERYWHERE = (
    Index("retrysafe_outbox_bucket", "retrysafe_outbox", "bucket, id"),
    Index("retrysafe_outbox_lane", "retrysafe_outbox", "bucket, lane, id"),
    Index("retrysafe_outbox_attempts_bucket", "retrysafe_outbox_attempts", "bucket, lane"),
    Index("retrysafe_outbox_attempts_until", "retrysafe_outbox_attempts", "bucket, not_before"),
    Index("retrysafe_outbox_published_at", "retrysafe_outbox_published", "published"),
    Index("retrysafe_inbox_attempts_updated", "retrysafe_inbox_attempts", "updated"),
    Index("retrysafe_inbox_dead_at", "retrysafe_inbox_dead", "dead_at, key_hash"),
    Index("retrysafe_inbox_sequences_updated", "retrysafe_inbox_sequences", "updated"),
)
PARTIAL = (
    *_EVERYWHERE,
    Index("retrysafe_records_tombstone", "retrysafe_records", "tombstone_until", _SETTLED),
    Index("retrysafe_records_quota", "retrysafe_records", "quota, created", "quota IS NOT NULL"),
    Index(
        "retrysafe_records_unknown",
        "retrysafe_records",
        "updated, key_hash, boundary, operation, scope",
        "state = 'unknown'",
    ),
    Index("retrysafe_inbox_dead_redrive", "retrysafe_inbox_dead", "redrive", "redrive IS NOT NULL"),
)
"""Those of PostgreSQL and SQLite."""
WHOLE = (
    *_EVERYWHERE,
    Index("retrysafe_records_tombstone", "retrysafe_records", "state, tombstone_until"),
    Index("retrysafe_records_quota", "retrysafe_records", "quota, created"),
    Index("retrysafe_inbox_dead_redrive", "retrysafe_inbox_dead", "redrive"),
)
"""Those of MySQL, which has no partial indexes."""


def missing(expected: Iterable[Index], tables: Iterable[str], names: Iterable[str]) -> list[Index]:
    """The expected indexes of these tables that are not among these names.

    A table that is not there has no index to miss: a SQLite file gets the tables of a feature when it is first used.
    """
    made, there = set(tables), set(names)
    return [index for index in expected if index.table in made and index.name not in there]


def evidence(lost: list[Index]) -> str | None:
    """What a check says of missing indexes."""
    return f"Missing: {', '.join(index.name for index in lost)}." if lost else None
