"""A failing schedule cut down: the fewest faults and actors with which the same promise is still broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.laboratory.simulation.judging import Check
from tests.laboratory.simulation.network import Injected
from tests.laboratory.simulation.report import Report
from tests.laboratory.simulation.schedule import Script

Replay = Callable[[Script], Report]
MOST_RUNS = 2000
"""The largest number of schedules that a shrinking may run."""


def shrink(report: Report, replay: Replay) -> Report:
    """The smallest schedule found in which the first promise that ``report`` broke is broken.

    ``replay`` runs the report's seed with other faults and without some actors. Where not even all of its own faults
    break the promise again, which would be a defect of the simulation, the report itself is returned.
    """
    search = _Search(replay, report.violations[0].check)
    if not search.fails(Script(report.injected, report.without)):
        return report
    search.drop_actors(report.actors)
    search.drop_faults()
    search.drop_actors(report.actors)
    assert search.best is not None
    return search.best


class _Search:
    def __init__(self, replay: Replay, check: Check) -> None:
        self._replay = replay
        self._check = check
        self._runs = 0
        self.best: Report | None = None
        self.script = Script(())

    def fails(self, script: Script) -> bool:
        """Tell whether a schedule still breaks the promise; then it is the best so far."""
        if self._runs >= MOST_RUNS:
            return False
        self._runs += 1
        report = self._replay(script)
        if not any(violation.check is self._check for violation in report.violations):
            return False
        self.best = report
        self.script = Script(report.injected, script.without)  # without faults that met nobody
        return True

    def drop_actors(self, names: Sequence[str]) -> None:
        """Leave out every actor that is not needed."""
        for name in names:
            if name not in self.script.without:
                faults = tuple(one for one in self.script.faults if one.actor != name)
                self.fails(Script(faults, self.script.without | {name}))

    def drop_faults(self) -> None:
        """Delta debugging: leave out ever smaller parts, until no single fault can go."""
        parts = 2
        while self.script.faults:
            size = -(-len(self.script.faults) // parts)
            if any(self.fails(self._without(start, size)) for start in range(0, len(self.script.faults), size)):
                parts = max(parts - 1, 2)
            elif size == 1:
                return
            else:
                parts = min(parts * 2, len(self.script.faults))

    def _without(self, start: int, size: int) -> Script:
        faults: tuple[Injected, ...] = self.script.faults
        return Script(faults[:start] + faults[start + size :], self.script.without)
