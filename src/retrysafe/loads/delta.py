"""Loads into Delta tables of a folder: the fence is an application's transaction in the commit of the data.

Delta compares the applications of commits that meet, and never their numbers. So each part is an application; its
version is read first, and the data is written by that very handle, so that a commit in between makes this one fail.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from retrysafe.loads.arrow import Lake, latest, mark_of, text_of
from retrysafe.loads.work import WHOLE, Mark, Merge, Work

_MARK, _PART = "retrysafe.mark", "retrysafe.part"


class DeltaTarget(Lake):
    """A folder of Delta tables, or its URL in an object store."""

    strategies = Lake.strategies | {"merge"}
    conflicts = (CommitFailedError,)

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")

    def locate(self, table: str) -> str:
        remote = "://" in self._folder
        return f"{table} into {self._folder if remote else os.path.realpath(self._folder)}"

    def open(self, table: str) -> DeltaTable:
        return DeltaTable(f"{self._folder}/{table}")

    def schema(self, table: DeltaTable) -> Any:
        return pa.schema(table.schema().to_arrow())

    def find(self, table: DeltaTable, part: str) -> Mark | None:
        version = table.transaction_version(_app(part))
        if version is None:
            return None
        marks = (mark_of(commit.get(_MARK)) for commit in table.history() if commit.get(_PART) == part)
        return next((mark for mark in marks if mark and mark.fence == version), Mark(version, "a run of long ago"))

    def beside(self, table: DeltaTable, part: str) -> int:
        """The version of the last load of another part, or the fence of the whole table."""
        if part != WHOLE:
            return table.transaction_version(_app(WHOLE)) or 0
        versions = (commit["version"] for commit in table.history() if commit.get(_PART) not in (None, WHOLE))
        return max(versions, default=0)

    def write(self, table: DeltaTable, data: Any, work: Work) -> None:
        properties = CommitProperties(
            custom_metadata={_MARK: text_of(work.mark), _PART: work.part},
            app_transactions=[Transaction(_app(work.part), work.mark.fence)],
        )
        if isinstance(work.strategy, Merge):
            before = table.version()
            _merge(table, latest(data, work.strategy, work), work.strategy, properties)
            if table.version() == before:  # nothing was newer, so there is no commit yet that has the mark
                write_deltalake(table, data.slice(0, 0), mode="append", commit_properties=properties)
            return
        if work.strategy == "append_once":
            write_deltalake(table, data, mode="append", commit_properties=properties)
        else:
            write_deltalake(
                table,
                data,
                mode="overwrite",
                predicate=_predicate(work.by, work.partition),
                commit_properties=properties,
            )


def _predicate(by: str | None, partition: Any) -> str:
    """The rows that are replaced; also for all of them: without it, Delta keeps those that others add meanwhile."""
    if by is None:
        return "true"
    name, value = by.replace('"', '""'), str(partition).replace("'", "''")
    return f"\"{name}\" = '{value}'"


def _merge(table: DeltaTable, data: Any, merge: Merge, properties: CommitProperties) -> None:
    same = " AND ".join(f'old."{name}" = new."{name}"' for name in merge.key)
    newer = merge.newer and f'old."{merge.newer}" IS NULL OR old."{merge.newer}" < new."{merge.newer}"'
    merger = table.merge(data, same, source_alias="new", target_alias="old", commit_properties=properties)
    merger.when_matched_update_all(newer).when_not_matched_insert_all().execute()


def _app(part: str) -> str:
    return f"retrysafe/{part}"
