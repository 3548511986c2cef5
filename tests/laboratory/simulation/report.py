"""The story of one schedule, told so that a person can follow it and run it again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from retrysafe.protocol.records import Micros, Record
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.judging import LIVENESS, Violation
from tests.laboratory.simulation.network import Injected
from tests.laboratory.simulation.plan import Fault, Plan, name_of
from tests.laboratory.simulation.world import Line

EPOCH = 1_000_000


class Report(NamedTuple):
    """The story of one schedule: its actors, its faults, events and sights, and the promises it broke."""

    seed: int
    plan: Plan
    cast: tuple[str, ...]
    """The actors, and their chosen properties, in words."""
    injected: tuple[Injected, ...]
    """Every fault, in order: with the seed and the plan, all that the schedule follows from."""
    actors: tuple[str, ...]
    """The actors that can be left out: workers, and those that tend the store."""
    without: frozenset[str]
    """Actors that were left out."""
    replayed: bool
    """True if the faults were given instead of drawn."""
    violations: tuple[Violation, ...]
    faults: Counter[Fault]
    seen: Counter[str]
    log: Sequence[Line]
    answered_after: Micros | None
    """The time between the end of faults and the last caller's answer; None when one has none."""
    store: str = ""
    """The ``--store`` of the command line, where the memory store was not meant."""

    @property
    def ok(self) -> bool:
        """True if every promise was kept."""
        return not self.violations

    @property
    def safety(self) -> tuple[Violation, ...]:
        """Broken promises about what must never happen."""
        return tuple(violation for violation in self.violations if violation.check not in LIVENESS)

    @property
    def liveness(self) -> tuple[Violation, ...]:
        """Broken promises about what must happen in the end, when faults have ended."""
        return tuple(violation for violation in self.violations if violation.check in LIVENESS)

    @property
    def command(self) -> str:
        """One line that plays this schedule again."""
        words = ["python", "-m", "tests.laboratory.simulation", "--seed", str(self.seed), "--plan", name_of(self.plan)]
        if self.store:
            words += ["--store", self.store]
        if self.replayed:
            words += ["--faults", " ".join(one.code for one in self.injected)]
        if self.without:
            words += ["--without", " ".join(sorted(self.without))]
        return shlex.join(words)

    def portable(self, store: str) -> Report:
        """The same for another process, with the ``--store`` that it came from."""
        log = [
            (when, who if isinstance(who, str) else who._replace(request=None), what) for when, who, what in self.log
        ]
        return self._replace(log=log, store=store)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}, plan {name_of(self.plan)}",
                *(f"  {line}" for line in self.cast),
                f"{len(self.injected)} faults",
                *(f"  {one}" for one in self.injected),
                "events",
                *(f"  {_line(line)}" for line in self.log),
                f"safety, at any time: {_told(self.safety)}",
                f"liveness, after the last fault: {_told(self.liveness)}",
                f"again:  {self.command}",
            ]
        )


def _told(violations: tuple[Violation, ...]) -> str:
    return "kept" if not violations else "\n".join(["", *(f"  {violation}" for violation in violations)])


def _line(line: Line) -> str:
    when, who, what = line
    if isinstance(who, str):
        return f"{when - EPOCH:>7} {who:<4} {what}"
    name = "" if who.named is None else who.named.attempt
    if who.kind == "take":
        name = f"(saw {name})"
    event = who.kind if who.event in (None, Transition.CLAIM) else who.event.value
    if not isinstance(what, Record):
        return f"{when - EPOCH:>7} {name:<4} {event}: no change"
    now = f"{what.state.value} by {what.attempt}, token {what.token - EPOCH}"
    return f"{when - EPOCH:>7} {name:<4} {event}: {now}"
