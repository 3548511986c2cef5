"""The parts of crash points: the calls that leave the process, and the actions on the process at one of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.short}  {self.text}" if self.file else "?"

    @property
    def short(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "?"


NOWHERE = Place("", 0, "")


class Call(NamedTuple):
    """One call that left the process: a boundary.

    ``label`` says what was called, without values that differ from run to run. ``outbound`` is set for a request
    that has an effect beyond the databases which are compared: there ``key`` is the idempotency key that it carried,
    and ``payload`` a digest of what it asked for.
    """

    label: str
    place: Place = NOWHERE
    outbound: bool = False
    key: str | None = None
    payload: str = ""

    def __str__(self) -> str:
        return self.label


class Action(StrEnum):
    """The action on the process at a boundary."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after, the reply lost"
    CANCEL = "cancelled"
    FREEZE = "frozen until its lease has lapsed"
    OVERLAP = "overtaken by a concurrent copy"


STOPS = frozenset({Action.FREEZE, Action.OVERLAP})
"""The process is stopped, and goes on when another one has come to its end."""


class Point(NamedTuple):
    """An action at a boundary, counted from 1; ``then`` is where the retry crashes in turn."""

    boundary: int
    action: Action
    then: Point | None = None


class Database(NamedTuple):
    """A database that was written to, and how to connect to it."""

    kind: str
    where: tuple[tuple[str, Any], ...]


class Ended(NamedTuple):
    """The end of one process of a point, in its own words, and its story until then."""

    story: tuple[Call | str, ...]
    """Its calls, as far as they may have been performed, and the end of each attempt."""
    at: Call | None = None
    """The call at which something happened to it."""
    way: tuple[Call, ...] = ()
    """The calls that it had made by then, or all."""
    outcome: str = ""
    """"done", or the type and message of the last error; empty when the process was killed."""
    settled: bool = False
    """True if that is an end: a result, or an answer which no retry changes."""
    problem: str = ""
    """The error of ``check``."""
    rows: dict[str, Any] | None = None
    """The tables as they were at the end."""
    unseen: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """The modules that it has imported, but for the user's own."""
    hung: bool = False

    @property
    def calls(self) -> list[Call]:
        return [told for told in self.story if isinstance(told, Call)]
