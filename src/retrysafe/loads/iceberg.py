"""Loads into Iceberg tables of a catalog: the mark is a property of the table, set in the transaction of the data.

Snapshots expire, properties stay. PyIceberg repeats a commit that met another one on the new state, unseen; told not
to, it takes a conflict for proof that nothing was committed, and deletes the files, also those of a commit whose reply
was lost. So the look is put into its repeat, where it reloads the table, and ends it by an error after which nothing
is deleted.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, EqualTo

from retrysafe.errors import StoreUnavailable
from retrysafe.loads.arrow import TRIES, arrow_of, mark_of, text_of
from retrysafe.loads.work import Mark, Work, judged


class _Landed(Exception):
    """The commit whose reply was lost is in the table."""


class IcebergTarget:
    """A catalog; a table is named with its namespace."""

    strategies = frozenset({"overwrite", "append_once"})

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def look(self, table: str, part: str) -> Mark | None:
        """The mark of the last load of a part."""
        return _found(self._catalog.load_table(table), part)

    def publish(self, work: Work) -> int:
        """Write rows and mark in one commit."""
        data: Any = None
        for _ in range(TRIES):
            table = self._catalog.load_table(work.table)
            found = _found(table, work.part)
            if not judged(found, work.mark):
                return found.counted if found else 0
            if data is None:
                data = arrow_of(work, table.schema().as_arrow())
            try:
                _write(table, data, work)
            except _Landed:
                pass
            except (CommitFailedException, ValidationException):
                continue  # of the same rows
            except OSError as error:
                raise StoreUnavailable(str(error)) from error
            return int(data.num_rows)
        raise StoreUnavailable(f"Others kept committing to {work.table}.", unsent=True)


def _write(table: Any, data: Any, work: Work) -> None:
    reload = table.refresh

    def refresh() -> Any:
        reload()
        if not judged(_found(table, work.part), work.mark):
            raise _Landed
        return table

    table.refresh = refresh
    mark = work.mark._replace(counted=data.num_rows)
    with table.transaction() as transaction:
        told = {"retrysafe.run": mark.run, "retrysafe.fence": str(mark.fence)}
        if work.strategy == "append_once":
            transaction.append(data, snapshot_properties=told)
        else:
            part = AlwaysTrue() if work.by is None else EqualTo(work.by, work.partition)
            transaction.overwrite(data, overwrite_filter=part, snapshot_properties=told)
        transaction.set_properties({_property(work.part): text_of(mark)})


def _property(part: str) -> str:
    return f"retrysafe.{part}"


def _found(table: Any, part: str) -> Mark | None:
    return mark_of(table.properties.get(_property(part)))
