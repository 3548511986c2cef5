"""The work of a load, what a target knows of the last one, and the rule that decides between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, Protocol

from retrysafe.errors import ConfigurationError, StaleToken

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

    @property
    def tagged(self) -> str:
        """The value of the column ``tag``."""
        return f"{self.mark.run}/{self.mark.fence}"


class Target(Protocol):
    """A place that loads are written to."""

    strategies: frozenset[str]
    """Names of those that it can keep."""

    def look(self, table: str, part: str) -> Mark | None:
        """The mark of the last load of a part."""
        ...

    def publish(self, work: Work) -> int:
        """Write rows and mark in one commit, on the condition that `may_publish` says so; return the number of rows."""
        ...


def may_publish(published: Mark | None, mine: Mark) -> bool:
    """Tell whether to write; False: it is there already, and only the reply was lost. Raises `StaleToken`."""
    if published is None or published.fence < mine.fence:
        return True
    if (published.fence, published.run) == (mine.fence, mine.run):
        return False
    raise StaleToken(
        f"Run {published.run!r} was published under fence {published.fence}; {mine.run!r} has {mine.fence}."
    )


def part_of(by: str | None, partition: Any) -> str:
    """The name of a partition, the same in every process."""
    if by is None:
        return "all"
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
