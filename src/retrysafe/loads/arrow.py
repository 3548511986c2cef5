"""Rows as Arrow tables, for lakes; and the text of a mark in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from retrysafe.errors import ConfigurationError
from retrysafe.loads.work import Mark, Work

TRIES = 5
"""The number of looks at a table that others commit to at the same time."""


def arrow_of(work: Work, schema: Any) -> Any:
    """The rows of a load with the types of the table, checked and tagged."""
    rows, tag = work.rows(), work.tag
    if isinstance(rows, str):
        raise ConfigurationError("rows= gives SQL, which a lake does not read: give tuples, dicts or an Arrow table.")
    if tag is not None and tag not in schema.names:
        raise ConfigurationError(f"{work.table} has no column {tag!r}: add it, or write tag=None.")
    names = [name for name in schema.names if name != tag]
    if not hasattr(rows, "to_batches"):
        every = [row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows]
        rows = pa.Table.from_pylist(every, schema=pa.schema([schema.field(name) for name in names]))
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


def text_of(mark: Mark) -> str:
    """A mark as text."""
    return json.dumps(mark)


def mark_of(text: str | None) -> Mark | None:
    """The mark of a text."""
    return None if text is None else Mark(*json.loads(text))
