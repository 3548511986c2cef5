"""Loads into Delta tables of a folder: the fence is an application's transaction in the commit of the data.

Delta compares the applications of commits that meet, and never their numbers. So each part is an application; its
version is read first, and the data is written by that very handle, so that a commit in between makes this one fail.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from retrysafe.errors import StoreUnavailable
from retrysafe.loads.arrow import TRIES, arrow_of, mark_of, text_of
from retrysafe.loads.work import Mark, Work, judged

_MARK = "retrysafe.mark"


class DeltaTarget:
    """A folder of Delta tables, or its URL in an object store."""

    strategies = frozenset({"overwrite", "append_once"})

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")

    def look(self, table: str, part: str) -> Mark | None:
        """The mark of the last load of a part."""
        return _found(self._open(table), part)

    def publish(self, work: Work) -> int:
        """Write rows and fence in one commit."""
        data: Any = None
        for _ in range(TRIES):
            table = self._open(work.table)
            found = _found(table, work.part)
            if not judged(found, work.mark):
                return found.counted if found else 0
            if data is None:
                data = arrow_of(work, pa.schema(table.schema().to_arrow()))
            try:
                self._write(table, data, work)
            except CommitFailedError:
                continue  # of another part, or a later run of this one
            except (OSError, DeltaError) as error:
                raise StoreUnavailable(str(error)) from error
            return int(data.num_rows)
        raise StoreUnavailable(f"Others kept committing to {work.table}.", unsent=True)

    def _open(self, table: str) -> DeltaTable:
        return DeltaTable(f"{self._folder}/{table}")

    def _write(self, table: DeltaTable, data: Any, work: Work) -> None:
        mark = work.mark._replace(counted=data.num_rows)
        properties = CommitProperties(
            custom_metadata={_MARK: text_of(mark), "retrysafe.part": work.part},
            app_transactions=[Transaction(_app(work.part), mark.fence)],
        )
        mode: Any = "append" if work.strategy == "append_once" else "overwrite"
        value = (
            work.partition if isinstance(work.partition, int) else "'" + str(work.partition).replace("'", "''") + "'"
        )
        predicate = None if work.by is None else f"{work.by} = {value}"
        write_deltalake(table, data, mode=mode, predicate=predicate, commit_properties=properties)


def _app(part: str) -> str:
    return f"retrysafe/{part}"


def _found(table: DeltaTable, part: str) -> Mark | None:
    version = table.transaction_version(_app(part))
    if version is None:
        return None
    marks = (mark_of(commit.get(_MARK)) for commit in table.history() if commit.get("retrysafe.part") == part)
    return next((mark for mark in marks if mark and mark.fence == version), Mark(version, "a run that is forgotten"))
