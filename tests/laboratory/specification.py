"""A step's possible effects on a record, and its answers: the memory store's steps at an instant.

Nothing of the protocol is written down here a second time. What is added is what a history does not tell: at which
instant of the store's clock a step was judged. An answer with a record names it. A write that anybody saw later is
named by the ``updated`` of the version it made. Otherwise it lies between what was seen of the clock before the step
and after it, and only the instants at which a record's standing changes need to be tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from retrysafe.backends.memory.store import MemoryStore, Step
from retrysafe.protocol.records import ClaimRequest, Micros, Ownership, QuotaRefusal, Record
from retrysafe.protocol.transitions import RULES, Transition
from retrysafe.testing.time_travel import age
from tests.laboratory.histories import UNKNOWN, Operation

FOREVER: Final = 1 << 62
_STORE = MemoryStore()
_READING = ("read", "claim", "take")
"""Steps that answer with a record, or with None."""


class Traits(NamedTuple):
    """The peculiarities of a store and its clock.

    skew: by how many microseconds two answers may contradict each other about the time.
    vanishing: forgotten records may go by themselves, as where they expire natively.
    reads_back: steps whose answer is read in a second statement: a "no" does not say that nothing was written.
    recalled: fields that a takeover writes again as it has seen them, although a test may have moved them since.
    """

    skew: Micros = 0
    vanishing: bool = False
    reads_back: frozenset[str] = frozenset()
    recalled: frozenset[str] = frozenset()


class Bounds(NamedTuple):
    """Between which instants of the store's clock a step was judged."""

    least: Micros
    most: Micros

    def admits(self, now: Micros) -> bool:
        """Tell whether it may have been judged then."""
        return self.least <= now <= self.most


def step_of(operation: Operation) -> Step:
    """The step over records, as the memory store takes it."""
    kind, arguments = operation.kind, operation.arguments
    if kind == "elapse":
        key, micros = arguments
        return _only(list(age(_STORE, [key], micros)))
    if kind == "renew":
        return _only(_STORE.renew(arguments))
    if kind == "sweep":
        return _only(_STORE.sweep(1))
    if kind in ("claim", "take"):  # a quota counts keys, and this is about one
        want: ClaimRequest = arguments[0]
        arguments = (want._replace(quota=None), *arguments[1:])
    step: Step = getattr(_STORE, kind)(*arguments).request
    return step


def _only(asks: Sequence[Any]) -> Step:
    (ask,) = asks
    step: Step = ask.request
    return step


def is_passive(operation: Operation) -> bool:
    """Tell whether the answer says that the step has changed nothing, whatever the record was."""
    answer = operation.answer
    if answer is UNKNOWN or operation.kind in ("sweep", "elapse"):
        return False
    if operation.kind == "claim":
        want: ClaimRequest = operation.arguments[0]
        return not isinstance(answer, Record) or answer.attempt != want.attempt
    return operation.kind == "read" or not answer


class Specification:
    """The possible records after each operation of one key's history."""

    def __init__(self, key: bytes, operations: Sequence[Operation], traits: Traits) -> None:
        self._key = key
        self._operations = operations
        self._vanishing = traits.vanishing
        self._skew = traits.skew
        self._recalled = traits.recalled
        self._steps = [step_of(operation) for operation in operations]
        self._bounds = bounds_of(operations, traits.skew)
        self._written: dict[tuple[str, int], set[Micros]] = {}
        self._tokens: dict[str, set[int]] = {}
        self._leases: dict[tuple[str, int], set[Micros]] = {}
        self._named = [_named(operation) for operation in operations]
        for seen in _seen(operations):
            self._tokens.setdefault(seen.attempt, set()).add(seen.token)
            if isinstance(seen, Record):
                self._written.setdefault((seen.attempt, seen.version), set()).add(seen.updated)
                self._leases.setdefault((seen.attempt, seen.token), set()).add(seen.lease_until)
        self._elapsed = _sums(one.arguments[1] for one in operations if one.kind == "elapse")

    def after(self, number: int, state: Record | None) -> set[Record | None]:
        """The states in which the operation may have left the record, with the answer it had."""
        if self._operations[number].answer is UNKNOWN and self._misses(number, state):
            return {state}
        found: set[Record | None] = set()
        for now in self.instants(number, state):
            found.update(self.after_at(number, state, now))
        return found

    def after_at(self, number: int, state: Record | None, now: Micros) -> Iterator[Record | None]:
        """The same when it was judged at one instant."""
        operation = self._operations[number]
        for before in self._before(state, now):
            records = {} if before is None else {self._key: before}
            answer = self._steps[number](records, now)
            after = records.get(self._key)
            if operation.kind in ("sweep", "elapse"):
                yield from {before, after}  # it may have been full, or have skipped what was locked
                if operation.kind == "elapse" and before is not None and after is not None:
                    yield after._replace(created=before.created)  # of work under way, which it names to its steps
            elif isinstance(operation.answer, QuotaRefusal):
                yield from () if before is not None else (before,)  # by a quota: it writes nothing
            elif operation.answer is UNKNOWN or self._agree(operation, answer, before):
                yield after

    def _agree(self, operation: Operation, answer: Any, before: Record | None) -> bool:
        """Tell whether an answer is the one that was heard; the time of a look is no part of it."""
        heard = operation.answer
        if operation.kind == "claim" and heard is None:
            return before is not None  # another claim was on its way
        if isinstance(heard, Record):
            apart = {name: getattr(heard, name) for name in ("now", *self._recalled)}
            return isinstance(answer, Record) and answer._replace(**apart) == heard
        return bool(answer == heard)

    def _before(self, state: Record | None, now: Micros) -> Iterator[Record | None]:
        yield state
        if state is None or not self._vanishing:
            return
        if state.effective_state_at(now + self._skew) in RULES[Transition.SWEEP].sources:
            yield None

    def bounds(self, number: int) -> Bounds:
        """Between which instants the operation was judged."""
        return self._bounds[number]

    def instants(self, number: int, state: Record | None) -> set[Micros]:
        """The instants that need to be tried: all others give the same as one of these."""
        bounds, operation = self._bounds[number], self._operations[number]
        if operation.kind == "elapse" or self._misses(number, state):
            return {bounds.least}
        if isinstance(operation.answer, Record) and not bounds.admits(operation.answer.now):
            return set()
        told = self._told(number, state)
        if told is None:
            told = {*bounds, *self._renewed(operation), *self._begun(operation)}
            for instant in () if state is None else (state.lease_until, state.expires, state.tombstone_until):
                told |= {instant - 1, instant, instant - self._skew}
        return {now for now in told if bounds.admits(now)}

    def _told(self, number: int, state: Record | None) -> set[Micros] | None:
        """The instants that answers tell of; None when they tell of none."""
        operation = self._operations[number]
        answer = operation.answer
        if is_passive(operation):
            return {answer.now} if isinstance(answer, Record) else None
        if isinstance(answer, Record):
            return {answer.now, answer.updated}
        if operation.kind == "sweep":
            return None
        if operation.kind == "claim":
            return None
        if state is None:
            return None
        attempt = operation.arguments[0].attempt if operation.kind == "take" else state.attempt
        seen = self._written.get((attempt, state.version + 1))
        return None if seen is None else {updated + elapsed for updated in seen for elapsed in self._elapsed}

    def _begun(self, operation: Operation) -> set[Micros]:
        """Return when its attempt may have begun, by tokens: one may be this step's, and then is its instant."""
        if operation.kind not in ("claim", "take"):
            return set()
        return self._tokens.get(operation.arguments[0].attempt, set())

    def _renewed(self, operation: Operation) -> set[Micros]:
        """Return when its attempt may have begun, by tokens; one may be of this step, and then is its instant."""
        if operation.kind != "renew":
            return set()
        ownership: Ownership = operation.arguments[0]
        length = ownership.clocks.lease + ownership.clocks.margin
        ends = self._leases.get((ownership.attempt, ownership.token), ())
        return {end - length + elapsed for end in ends for elapsed in self._elapsed}

    def _misses(self, number: int, state: Record | None) -> bool:
        """Tell whether the step names another record than this one, so that no instant makes a difference."""
        named = self._named[number]
        if named is None or self._vanishing:
            return False
        attempt, guarded, by = named
        return state is None or (attempt, guarded) != (state.attempt, getattr(state, by))


def _named(operation: Operation) -> tuple[str, int, str] | None:
    """The attempt that a conditional write names, and its token or the version."""
    if operation.kind in ("settle", "renew"):
        ownership: Ownership = operation.arguments[0]
        return ownership.attempt, ownership.token, "token"
    if operation.kind in ("take", "resolve"):
        seen: Record = operation.arguments[operation.kind == "take"]
        return seen.attempt, seen.version, "version"
    return None


def _seen(operations: Iterable[Operation]) -> Iterator[Record | Ownership]:
    """Everything that anybody knew of a record."""
    for operation in operations:
        for value in (operation.answer, *operation.arguments):
            if isinstance(value, (Record, Ownership)):
                yield value


def _sums(parts: Iterable[Micros]) -> set[Micros]:
    """Everything that some of the parts add up to."""
    sums = {0}
    for part in parts:
        sums |= {known + part for known in sums}
    return sums


def bounds_of(operations: Sequence[Operation], skew: Micros) -> list[Bounds]:
    """The clock goes forward: what was seen of it before a step was made, and after it was answered, bounds it."""
    looks = [one for one in operations if one.kind in _READING and isinstance(one.answer, Record)]
    before = sorted((one.ended, one.answer.now) for one in looks if one.ended is not None)
    after = sorted((one.made, one.answer.now) for one in looks)
    highest, lowest = _running(before, max), _running(after[::-1], min)[::-1]
    found: list[Bounds] = []
    for one in operations:
        earlier = bisect_left(before, (one.made, -1))
        later = len(after) if one.ended is None else bisect_left(after, (one.ended + 1, -1))
        least = highest[earlier - 1] - skew if earlier else 0
        found.append(Bounds(least, lowest[later] + skew if later < len(after) else FOREVER))
    return found


def _running(pairs: Sequence[tuple[int, Micros]], choose: Any) -> list[Micros]:
    chosen: list[Micros] = []
    for _, now in pairs:
        chosen.append(choose(chosen[-1], now) if chosen else now)
    return chosen
