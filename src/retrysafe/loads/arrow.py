"""Loads into lakes: rows as Arrow tables, and commits that are tried again after those of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.loads.work import Mark, Merge, Work, may_publish

_TRIES = 5


class Lake:
    """A target whose commits are optimistic: its writers look, write by what they saw, and fail if it has changed."""

    strategies = frozenset({"overwrite", "append_once"})
    keeps_late = False
    conflicts: ClassVar[tuple[type[Exception], ...]]
    """The errors of a commit that met another one."""

    def open(self, table: str) -> Any:
        """A table as it is now."""
        raise NotImplementedError

    def find(self, table: Any, part: str) -> Mark | None:
        """The mark of a part in what was opened."""
        raise NotImplementedError

    def beside(self, table: Any, part: str) -> int:
        """The number of loads that overlap with a part, in what was opened."""
        raise NotImplementedError

    def schema(self, table: Any) -> Any:
        """The Arrow schema of a table."""
        raise NotImplementedError

    def write(self, table: Any, data: Any, work: Work) -> None:
        """Write rows and mark in one commit, by what was opened."""
        raise NotImplementedError

    def look(self, table: str, part: str) -> tuple[Mark | None, int]:
        opened = self.open(table)
        return self.find(opened, part), self.beside(opened, part)

    def count_late(self, work: Work) -> int:
        """None: they have no place here."""
        return 0

    def publish(self, work: Work) -> int:
        """Write rows and mark in one commit, unless a later run has."""
        data = _arrow(work, self.schema(self.open(work.table)))
        work = work._replace(mark=work.mark._replace(counted=data.num_rows))
        for _ in range(_TRIES):
            table = self.open(work.table)
            found = self.find(table, work.part)
            if not may_publish(found, self.beside(table, work.part), work):
                return found.counted if found else 0
            try:
                self.write(table, data, work)
            except self.conflicts:
                continue
            except OSError as error:
                raise StoreUnavailable(str(error)) from error
            return work.mark.counted
        raise StoreUnavailable(f"Others kept committing to {work.table}.", unsent=True)


def _arrow(work: Work, schema: Any) -> Any:
    """The rows of a load with the types of the table, tagged and checked."""
    rows, tag = work.read(), work.tag
    if isinstance(rows, str):
        raise ConfigurationError("rows= gives SQL, which a lake does not read: give tuples, dicts or an Arrow table.")
    if tag is not None and tag not in schema.names:
        raise ConfigurationError(f"{work.table} has no column {tag!r}: add it, or write tag=None.")
    names = [name for name in schema.names if name != tag]
    if not hasattr(rows, "to_batches"):
        every = [_row(work, names, row) for row in rows]
        rows = pa.Table.from_pylist(every, schema=pa.schema([schema.field(name) for name in names]))
    elif sorted(rows.schema.names) != sorted(names):
        raise work.unfit(names, ", ".join(rows.schema.names))
    if tag is not None:
        rows = rows.append_column(tag, pa.array([work.tagged] * rows.num_rows, schema.field(tag).type))
    rows = rows.select(schema.names).cast(schema)
    if work.by is not None:
        others = {str(value) for value in rows.column(work.by).unique().to_pylist()} - {str(work.partition)}
        if others:
            raise ConfigurationError(
                f"There are rows with {work.by} = {', '.join(sorted(others)):.80}: they would stay when "
                f"{work.partition!r} is loaded again. Nothing was loaded."
            )
    if work.check is not None and work.check(rows) is False:
        raise ValueError(f"check= refused run {work.mark.run!r} of {work.table}. Nothing was loaded.")
    return rows


def _row(work: Work, names: list[str], row: Any) -> Mapping[str, Any]:
    """A row by the names of its columns: Arrow would take those that are missing for NULL, and leave others out."""
    if not isinstance(row, Mapping):
        if isinstance(row, str) or len(row) != len(names):
            raise work.unfit_row(names, row)
        return dict(zip(names, row, strict=True))
    if sorted(row) != sorted(names):
        raise work.unfit(names, ", ".join(row))
    return row


def latest(rows: Any, merge: Merge, work: Work) -> Any:
    """The row of each key that is the newest."""
    work.refuse_merge(merge, rows.schema.names)
    key, places = list(merge.key), pa.array(range(rows.num_rows), pa.int64())
    found = rows.append_column("retrysafe_place", places)
    if merge.newer is not None:
        found = found.sort_by([(merge.newer, "descending")])
    found = found.group_by(key, use_threads=False).aggregate([("retrysafe_place", "first")])
    without = any(rows.column(name).null_count for name in [*key, *([merge.newer] if merge.newer else [])])
    if without or (merge.newer is None and found.num_rows < rows.num_rows):
        raise ConfigurationError(
            f"The rows have a key {', '.join(key)} with NULL in it, or twice without newer= to choose by; or NULL in "
            "the column newer=. Nothing was loaded."
        )
    return rows.take(found.column("retrysafe_place_first"))


def text_of(mark: Mark) -> str:
    """A mark as text."""
    return json.dumps(mark)


def mark_of(text: str | None) -> Mark | None:
    """The mark of a text."""
    return None if text is None else Mark(*json.loads(text))
