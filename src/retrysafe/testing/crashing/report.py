"""The result of exploring an operation, in words."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from retrysafe.testing.crashing.points import Call, Ended, Point

MOST_SHOWN = 5
WIDTH = 90
"""Characters of a call that are shown."""


class Violation(NamedTuple):
    """A point at which a promise was broken: what happened there, what is wrong, and what each process did."""

    point: Point
    boundary: Call | None
    """The call at which it happened; None after the last one."""
    problems: tuple[str, ...]
    processes: tuple[Ended, ...]

    def __str__(self) -> str:
        return "\n".join([self._headline(), *(f"    {line}" for line in self.problems), *self._story()])

    def _headline(self) -> str:
        where = (
            "after the last call"
            if self.boundary is None
            else f"{_short(self.boundary.label)}\n    {self.boundary.place}"
        )
        then = (
            "" if self.point.then is None else f", then the retry: {self.point.then.action} {self.point.then.boundary}"
        )
        return f"{self.point.action}, boundary {self.point.boundary}{then}: {where}"

    def _story(self) -> list[str]:
        lines, before = [], Counter[str]()
        for number, process in enumerate(self.processes, 1):
            lines.append(f"    process {number}:")
            made = 0
            for told in process.story:
                if process.at is not None and made == len(process.way):
                    lines.append(f"      * {self.point.action} at {_short(process.at.label)}")
                    made = -len(process.story)
                made += isinstance(told, Call)
                if isinstance(told, str):
                    lines.append(f"      = {told}")
                elif changes(told):
                    twice = "   <- a second time" if before[told.label] else ""
                    lines.append(f"      {_short(told.label)}   {told.place.short}{twice}")
                    before[told.label] += 1
            if process.at is not None and made >= 0:
                lines.append(f"      * {self.point.action} at {_short(process.at.label)}")
        return lines


def changes(call: Call) -> bool:
    return not call.label.removeprefix("store: ").upper().startswith(_HARMLESS)


_HARMLESS = ("SELECT ", "BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "SAVEPOINT", "SHOW ", "GET ", "FETCH", "CLOSE")


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


class Report(NamedTuple):
    """The result for an operation that was crashed at every one of its boundaries."""

    boundaries: tuple[Call, ...]
    """The calls of one uncrashed run that left the process, in order."""
    violations: tuple[Violation, ...]
    points: int
    """The number of single crashes, cancellations and stops that were tried."""
    pairs: int
    """The number of sampled pairs of crashes."""
    seed: int
    """The seed of the sample."""
    unknown: int
    """At how many points the operation was left unknown, for a probe or a person to settle."""
    unseen: tuple[str, ...]
    """Input and output that was not explored."""
    seconds: float

    @property
    def ok(self) -> bool:
        """True if every retry came to the same end as the run that did not crash."""
        return not self.violations

    def __str__(self) -> str:
        calls = (
            f"{number:>4}  {_short(one.label)}   {one.place.short}" for number, one in enumerate(self.boundaries, 1)
        )
        lines = [self._what_was_done(), *self._what_was_not(), *calls]
        for violation in self.violations[:MOST_SHOWN]:
            lines += ["", str(violation)]
        if len(self.violations) > MOST_SHOWN:
            lines += ["", f"… and {len(self.violations) - MOST_SHOWN} more points with violations."]
        return "\n".join(lines)

    def _what_was_done(self) -> str:
        verdict = "no violation" if self.ok else f"VIOLATED at {len(self.violations)} points"
        return (
            f"{verdict}; exhaustive for single crashes at {len(self.boundaries)} boundaries "
            f"({self.points} points), {self.pairs} pairs sampled with seed {self.seed}, in {self.seconds:.1f} s"
        )

    def _what_was_not(self) -> list[str]:
        lines = [f"not explored: {what}" for what in self.unseen]
        if self.unknown:
            lines.append(f"left unknown, for a probe or a person to settle, at {self.unknown} points")
        return lines
