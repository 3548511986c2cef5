"""The work of a load, what a target knows of the last one, and the rule that decides between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, Protocol

from retrysafe.errors import ConfigurationError, StaleToken

WHOLE = "all"
"""The part of a load that has no ``by``."""

Bound = int | datetime
"""The end of what a source has: a number or an instant."""


class Merge(NamedTuple):
    """The strategy that writes rows over those with their key.

    key: the columns of a primary key or a unique constraint.
    newer: a column that only grows: a row with the same or a higher value stays.
    """

    key: Sequence[str]
    newer: str | None = None


class Window(NamedTuple):
    """The part of a source that is to be loaded next: from ``low``, None at first, up to ``high``."""

    low: Bound | None
    high: Bound
    fence: int = 0
    """That of the load before."""


class Late(NamedTuple):
    """The place of rows that come after their window: those whose ``by`` is below its ``low`` go to ``table``.

    It has the columns of the table that is loaded, and no unique key: a row may be late more than once.
    """

    table: str
    by: str


Strategy = Literal["overwrite", "append_once"] | Merge


class Mark(NamedTuple):
    """The mark that a load leaves in its target, in the commit of its data."""

    fence: int
    run: str
    counted: int = 0
    version: int | None = None
    high: str | None = None


class Work(NamedTuple):
    """One load of a part of a table."""

    table: str
    part: str
    by: str | None
    partition: Any
    rows: Callable[[], Any]
    strategy: Strategy
    check: Callable[[Any], Any] | None
    tag: str | None
    mark: Mark
    late: Late | None = None
    low: Bound | None = None
    beside: int | None = None
    """The number of loads that overlap, as it was at the beginning; a `Merge` writes beside them."""

    @property
    def tagged(self) -> str:
        """The value of the column ``tag``."""
        return f"{self.mark.run}/{self.mark.fence}"

    def read(self) -> Any:
        """Call for the rows."""
        rows = self.rows()
        if rows is None:
            raise ConfigurationError("rows= has given None: no rows are an empty list. Nothing was loaded.")
        return rows.read_all() if hasattr(rows, "read_all") else rows  # an Arrow reader iterates over batches

    def refuse_merge(self, merge: Merge, given: Iterable[str]) -> None:
        """Refuse a `Merge` by columns that the rows have not."""
        names = {name.casefold() for name in given}
        missing = [name for name in (*merge.key, merge.newer) if name is not None and name.casefold() not in names]
        if missing:
            raise ConfigurationError(
                f"Merge names {', '.join(missing)}; rows of {self.table} have {', '.join(given)}. Nothing was loaded."
            )

    def unfit(self, names: Iterable[str], given: str) -> ConfigurationError:
        """The refusal of rows that have not the columns of the table."""
        return ConfigurationError(
            f"{self.table} has the columns {', '.join(names)}; rows= gives {given}. Nothing was loaded. Change rows=, "
            "or the table."
        )

    def unfit_row(self, names: Iterable[str], row: Any) -> ConfigurationError:
        """The refusal of a row that has not a value for each column."""
        if isinstance(row, str):
            return self.unfit(
                names, f"the text {row!r:.80} for a row; of a frame give to_dict('records') or to_arrow()"
            )
        return self.unfit(names, f"a row of {len(row)} values")


class Target(Protocol):
    """A place that loads are written to."""

    strategies: frozenset[str]
    """Names of those that it can keep."""
    keeps_late: bool
    """True if it has a place for late rows."""

    def locate(self, table: str) -> str:
        """A table and its place, as no other table is named in any process."""
        ...

    def look(self, table: str, part: str) -> tuple[Mark | None, int]:
        """The mark of the last load of a part, and a number that loads change which overlap with it.

        `WHOLE` overlaps with all parts, and they with it.
        """
        ...

    def publish(self, work: Work) -> int:
        """Write rows and mark in one commit, on the condition that `may_publish` says so; return the number of rows."""
        ...

    def count_late(self, work: Work) -> int:
        """Count the late rows of a load that was published."""
        ...


def may_publish(published: Mark | None, beside: int, work: Work) -> bool:
    """Tell whether to write; False: it is there already, and only the reply was lost. Raises `StaleToken`."""
    mine = work.mark
    if published is not None and published.fence >= mine.fence:
        if (published.fence, published.run) == (mine.fence, mine.run):
            return False
        raise StaleToken(
            f"Run {published.run!r} was published under fence {published.fence}; {mine.run!r} has {mine.fence}. "
            "To load again, give another run=."
        )
    if work.beside not in (None, beside):
        loaded = f"A part of {work.table}" if work.part == WHOLE else f"All of {work.table}"
        raise StaleToken(f"{loaded} was loaded since run {mine.run!r} began. To load again, give another run=.")
    return True


def in_scope(name: str, scope: str) -> str:
    """A run, or a part that a run alone has, among those of other tenants."""
    return f"{name} of {scope}" if scope else name


def part_of(by: str | None, partition: Any) -> str:
    """The name of a partition, the same in every process."""
    if by is None:
        return WHOLE
    if isinstance(partition, bool) or not isinstance(partition, str | int | date):
        raise ConfigurationError(
            f"partition={partition!r}: give text, a whole number, a date or an instant, whose text is the same "
            "in every session. Nothing was loaded."
        )
    if isinstance(partition, datetime) and partition.tzinfo is None:
        raise ConfigurationError(f"partition={partition!r} has no time zone. Nothing was loaded.")
    return f"{by}={partition.isoformat() if isinstance(partition, date) else partition}"


def text_of_bound(bound: Bound) -> str:
    """A bound as it is kept."""
    if isinstance(bound, bool) or not isinstance(bound, int | datetime):
        raise ConfigurationError(f"{bound!r} is no bound of a window, which is a whole number or a datetime.")
    return bound.isoformat() if isinstance(bound, datetime) else str(bound)


def read(bound: str) -> Bound:
    """A bound that was kept."""
    return int(bound) if bound.lstrip("-").isdigit() else datetime.fromisoformat(bound)
