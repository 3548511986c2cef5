"""The slow checker: every order, every choice of what happened, every instant of the clock. No shortcut at all.

For histories of a few operations on a clock of a few hundred ticks. It shares the memory store's steps with the fast
one, and neither its search nor its choice of instants.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.protocol.records import Record
from tests.laboratory.histories import UNKNOWN, Operation
from tests.laboratory.specification import Specification, Traits


def is_linearizable(key: bytes, steps: Sequence[Operation], first: int, last: int) -> bool:
    """Tell whether any order explains a history between the instants ``first`` and ``last``."""
    specification = Specification(key, steps, Traits())
    ranges = [_range(steps, one, first, last) for one in steps]

    def after(number: int, states: frozenset[Record | None]) -> frozenset[Record | None]:
        answer = steps[number].answer
        instants = ranges[number]
        if isinstance(answer, Record) and answer.now not in instants:
            return frozenset()
        return frozenset(
            found for state in states for now in instants for found in specification.after_at(number, state, now)
        )

    def explained(left: frozenset[int], states: frozenset[Record | None]) -> bool:
        if not states:
            return False
        if all(steps[number].answer is UNKNOWN for number in left):
            return True
        return any(
            explained(left - {number}, after(number, states)) for number in left if _may_come_next(steps, number, left)
        )

    return explained(frozenset(range(len(steps))), frozenset([None]))


def _may_come_next(steps: Sequence[Operation], number: int, left: frozenset[int]) -> bool:
    ends = (steps[other].ended for other in left if other != number and steps[other].answer is not UNKNOWN)
    return all(end is None or end >= steps[number].begun for end in ends)


def _range(steps: Sequence[Operation], one: Operation, first: int, last: int) -> range:
    """All instants between what others saw of the clock before and after."""
    least, most = first, last
    for other in steps:
        if isinstance(other.answer, Record) and other.ended is not None:
            if other.ended < one.made:
                least = max(least, other.answer.now)
            if one.ended is not None and other.made > one.ended:
                most = min(most, other.answer.now)
    return range(least, most + 1)
