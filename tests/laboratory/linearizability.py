"""Explains a recorded history, or finds that it cannot: key by key, one step after the other, by the memory store.

    broken = check(history.operations())
    assert not broken, str(broken[0])

A history is linearizable if every step can be put at one instant between its beginning and its end so that, in that
order, the specification gives every answer that was heard. A step whose answer nobody heard may have happened at any
time since it began, or never. The search is that of Wing and Gong with the memory of Lowe ("Testing for
linearizability", 2017): an order of steps is tried until one explains all, and no set of steps that leaves the same
record is tried twice. A step that changes nothing is put where it first fits, which loses no explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retrysafe.protocol.records import Record
from tests.laboratory.histories import UNKNOWN, Operation
from tests.laboratory.specification import FOREVER, Specification, Traits, is_passive
from tests.laboratory.timeline import drawn, told_state

PLAIN = Traits()
_PATIENCE = 2_000
"""Nodes of a search while a counterexample is made smaller: an answer that is hard to do without is kept."""


class Reach(NamedTuple):
    """The reach of a search: to the end, else the order that explains most, and the record after it."""

    ok: bool
    order: tuple[int, ...]
    state: Record | None


class Counterexample(NamedTuple):
    """A key whose answers no order of its steps explains.

    ``operations`` are those up to the first answer that cannot be explained; ``needed`` tells which of their answers
    contradict each other: every other step may have happened or not, and no order explains even these alone.
    ``reach`` is how far the whole history could be explained.
    """

    key: bytes
    operations: tuple[Operation, ...]
    needed: tuple[bool, ...]
    reach: Reach

    def __str__(self) -> str:
        lines = [f"key {self.key.hex()[:16]}: no order of these steps gives the answers marked *"]
        lines += drawn(self.operations, self.needed)
        lines.append(f"The best explanation of all answers up to then takes {len(self.reach.order)} steps,")
        lines.append(f"and leaves the record {told_state(self.reach.state)}")
        return "\n".join(lines)


def check(operations: Iterable[Operation], traits: Traits = PLAIN) -> list[Counterexample]:
    """The keys whose histories cannot be explained, each with its smallest contradiction; none: all is well."""
    return [
        counterexample(key, history, traits)
        for key, history in by_key(operations).items()
        if not is_linearizable(key, history, traits)
    ]


def by_key(operations: Iterable[Operation]) -> dict[bytes, list[Operation]]:
    """The history of each key, in the order of beginnings; a sweep is part of each."""
    found: dict[bytes, list[Operation]] = {}
    sweeps: list[Operation] = []
    for operation in operations:
        (sweeps if operation.kind == "sweep" else found.setdefault(operation.key, [])).append(operation)
    return {key: sorted([*own, *sweeps], key=lambda one: one.begun) for key, own in found.items()}


def is_linearizable(key: bytes, operations: Sequence[Operation], traits: Traits = PLAIN) -> bool:
    """Tell whether one key's history can be explained."""
    return reach(key, operations, traits).ok


def reach(key: bytes, operations: Sequence[Operation], traits: Traits = PLAIN, *, most_nodes: int = FOREVER) -> Reach:
    """Search an order that explains one key's history; give up, as if it had one, after so many nodes."""
    steps = sorted(_as_heard(operations, traits), key=lambda one: one.begun)
    return _Search(key, steps, traits).run(most_nodes)


def _as_heard(operations: Iterable[Operation], traits: Traits) -> list[Operation]:
    """The steps and what their answers say for certain; a look that nobody heard says nothing."""
    found: list[Operation] = []
    for one in operations:
        if one.kind in traits.reads_back and one.answer is not UNKNOWN and (one.kind == "take" or not one.answer):
            if one.answer:
                found.append(one._replace(kind="read", arguments=(one.key,)))
            one = one._replace(answer=UNKNOWN)
        if one.answer is not UNKNOWN or one.kind != "read":
            found.append(one)
    return found


class _Search:
    """One search. States are numbered, sets of steps are bits."""

    def __init__(self, key: bytes, steps: Sequence[Operation], traits: Traits) -> None:
        self._steps = steps
        self._specification = Specification(key, steps, traits)
        self._heard = [one.answer is not UNKNOWN for one in steps]
        self._passive = [is_passive(one) for one in steps]
        ends = [(one.ended, number) for number, one in enumerate(steps) if self._heard[number]]
        self._ends = sorted((end, number) for end, number in ends if end is not None)
        self._required = sum(1 << number for _, number in self._ends)
        self._states: list[Record | None] = [None]
        self._numbers: dict[Record | None, int] = {None: 0}
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def run(self, most_nodes: int = FOREVER) -> Reach:
        """Depth first, remembering the way of the deepest; gives up, as if all were well, after so many nodes."""
        came_from: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, ...]] | None] = {(0, 0): None}
        stack, best, most = [(0, 0)], (0, 0), -1
        while stack:
            node = stack.pop()
            done, state, order = self._absorbed(*node)
            settled = (done & self._required).bit_count()
            if settled > most or (done & self._required) == self._required:
                if node != (done, state):
                    came_from.setdefault((done, state), (node, order))
                best, most = (done, state), settled
            if done & self._required == self._required or len(came_from) > most_nodes:
                return Reach(True, self._way(came_from, best), self._states[state])
            for number in self._enabled(done):
                for after in self._after(number, state):
                    if after == state and not self._heard[number]:
                        continue  # it may as well not have happened
                    reached = (done | 1 << number, after)
                    if reached not in came_from:
                        came_from[reached] = (node, (*order, number))
                        stack.append(reached)
        return Reach(False, self._way(came_from, best), self._states[best[1]])

    def _absorbed(self, done: int, state: int) -> tuple[int, int, tuple[int, ...]]:
        """Put every step that changes nothing and fits now; it can do no harm, and would only come later."""
        order: list[int] = []
        again = True
        while again:
            again = False
            for number in self._enabled(done):
                if self._passive[number] and state in self._after(number, state):
                    done |= 1 << number
                    order.append(number)
                    again = True
        return done, state, tuple(order)

    def _enabled(self, done: int) -> list[int]:
        """The steps that may come next: those that began before any other that is left had ended."""
        horizon = next((end for end, number in self._ends if not done >> number & 1), None)
        found: list[int] = []
        for number, one in enumerate(self._steps):
            if horizon is not None and one.begun > horizon:
                break
            if not done >> number & 1:
                found.append(number)
        return found

    def _after(self, number: int, state: int) -> tuple[int, ...]:
        known = self._known.get((number, state))
        if known is None:
            found = self._specification.after(number, self._states[state])
            known = self._known[number, state] = tuple(self._number(one) for one in found)
        return known

    def _number(self, state: Record | None) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _way(
        self,
        came_from: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, ...]] | None],
        node: tuple[int, int],
    ) -> tuple[int, ...]:
        way: tuple[int, ...] = ()
        while (before := came_from[node]) is not None:
            node, order = before
            way = (*order, *way)
        return way


# ---------------------------------------------------------------- the smallest contradiction


def counterexample(key: bytes, operations: Sequence[Operation], traits: Traits = PLAIN) -> Counterexample:
    """Reduce a history that cannot be explained to what contradicts itself.

    Cut at the first answer that cannot be explained, then leave out looks and forget answers while nothing explains
    the rest: a step whose answer is forgotten may have happened or not, so what is left proves as much.
    """
    steps = _cut(key, operations, traits)
    reached = reach(key, steps, traits)
    number = 0
    while number < len(steps):
        one = steps[number]
        weaker = [*steps[:number], *steps[number + 1 :]]
        if one.answer is not UNKNOWN and not is_passive(one):
            weaker.insert(number, one._replace(answer=UNKNOWN, ended=None))
        if one.answer is not UNKNOWN and not reach(key, weaker, traits, most_nodes=_PATIENCE).ok:
            number += len(weaker) == len(steps)
            steps = weaker
        else:
            number += 1
    steps = _without_idle(key, steps, traits)
    needed = tuple(one.answer is not UNKNOWN for one in steps)
    return Counterexample(key, tuple(steps), needed, reached)


def _cut(key: bytes, operations: Sequence[Operation], traits: Traits) -> list[Operation]:
    """The history up to the first answer with which it cannot be explained."""
    ends = sorted(one.ended for one in operations if one.ended is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if is_linearizable(key, _until(operations, ends[middle]), traits):
            low = middle + 1
        else:
            high = middle
    return _until(operations, ends[high]) if ends else list(operations)


def _until(operations: Sequence[Operation], end: int) -> list[Operation]:
    """Return the operations known at an instant: later answers had not been heard, later steps had not begun."""
    return [
        one if one.ended is not None and one.ended <= end else one._replace(answer=UNKNOWN, ended=None)
        for one in operations
        if one.begun <= end
    ]


def _without_idle(key: bytes, steps: Sequence[Operation], traits: Traits) -> list[Operation]:
    """Leave out the steps without an answer that could never have changed anything, unless what they knew is needed.

    A step tells by its arguments what had been seen of the record before it, whatever became of it.
    """
    search = _Search(key, sorted(_as_heard(steps, traits), key=lambda one: one.begun), traits)
    search.run(_PATIENCE)
    idle = {
        one
        for number, one in enumerate(search._steps)
        if not search._heard[number]
        and all(after == (state,) for (known, state), after in search._known.items() if known == number)
    }
    for one in [one for one in steps if one.answer is UNKNOWN and (one in idle or one.kind == "read")]:
        fewer = [other for other in steps if other is not one]
        if not reach(key, fewer, traits, most_nodes=_PATIENCE).ok:
            steps = fewer
    return [*steps]
