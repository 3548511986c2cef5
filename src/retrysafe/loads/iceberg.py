"""Loads into Iceberg tables of a catalog: the mark is a property of the table, set in the transaction of the data.

Snapshots expire, properties stay. PyIceberg repeats a commit that met another one on the new state, unseen; told not
to, it takes a conflict for proof that nothing was committed, and deletes the files, also those of a commit whose reply
was lost. So the look is put into its repeat, where it reloads the table, and ends it by an error after which nothing
is deleted.
"""

from __future__ import annotations

import json
from typing import Any

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, EqualTo

from retrysafe.errors import ConfigurationError
from retrysafe.loads.arrow import Lake, mark_of, text_of
from retrysafe.loads.work import WHOLE, Mark, Work, may_publish

_REPEATS = ("commit.retry.num-retries", "commit.retry.total-timeout-ms")
"""The properties of a table that allow PyIceberg's repeat."""


class _Landed(Exception):
    """The commit whose reply was lost is in the table."""


class IcebergTarget(Lake):
    """A catalog; a table is named with its namespace."""

    conflicts = (CommitFailedException, ValidationException)

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def locate(self, table: str) -> str:
        return f"{table} into {self.open(table).location()}"

    def open(self, table: str) -> Any:
        opened = self._catalog.load_table(table)
        if off := [name for name in _REPEATS if int(opened.properties.get(name, 1)) < 1]:
            raise ConfigurationError(
                f"{table} has {off[0]}={opened.properties[off[0]]}: PyIceberg then deletes the files of a commit that "
                f"was made and whose reply was lost. In a transaction of the table call remove_properties({off[0]!r}). "
                "Nothing was loaded."
            )
        return opened

    def schema(self, table: Any) -> Any:
        return table.schema().as_arrow()

    def find(self, table: Any, part: str) -> Mark | None:
        return mark_of(table.properties.get(_property(part)))

    def beside(self, table: Any, part: str) -> int:
        """The sum of the fences."""
        if part != WHOLE:
            whole = self.find(table, WHOLE)
            return whole.fence if whole else 0
        named = [name for name in table.properties if name.startswith(_property("")) and name != _property(WHOLE)]
        return sum(Mark(*json.loads(table.properties[name])).fence for name in named)

    def write(self, table: Any, data: Any, work: Work) -> None:
        reload = table.refresh

        def refresh() -> Any:
            reload()
            if not may_publish(self.find(table, work.part), self.beside(table, work.part), work):
                raise _Landed
            return table

        table.refresh = refresh
        try:
            with table.transaction() as transaction:
                told = {"retrysafe.run": work.mark.run, "retrysafe.fence": str(work.mark.fence)}
                if work.strategy == "append_once":
                    transaction.append(data, snapshot_properties=told)
                else:
                    equal: Any = EqualTo  # by its types it takes names of arguments that it has not
                    part = AlwaysTrue() if work.by is None else equal(work.by, work.partition)
                    transaction.overwrite(data, overwrite_filter=part, snapshot_properties=told)
                transaction.set_properties({_property(work.part): text_of(work.mark)})
        except _Landed:
            return


def _property(part: str) -> str:
    return f"retrysafe.{part}"
