"""Legal histories made illegal, one answer or one operation at a time; by chance, some remain legal.

Each mutation is a thing that a broken store would do. It is given a history and returns another, or None when there is
nothing in it to break that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from retrysafe.protocol.records import EffectiveState, Ownership, Record, State, StoredResult
from retrysafe.protocol.transitions import Transition
from tests.laboratory.histories import UNKNOWN, Operation

Operations = list[Operation]
Mutation = Callable[[Random, Operations], Operations | None]
MUTATIONS: dict[str, Mutation] = {}


def mutation(mutate: Mutation) -> Mutation:
    """Register a mutation under its name."""
    MUTATIONS[mutate.__name__.replace("_", " ")] = mutate
    return mutate


def _pick(chance: Random, operations: Operations, wanted: Callable[[Operation], bool]) -> int | None:
    numbers = [number for number, one in enumerate(operations) if one.answer is not UNKNOWN and wanted(one)]
    return chance.choice(numbers) if numbers else None


def _answered(operations: Operations, number: int, answer: Any) -> Operations:
    return [one._replace(answer=answer) if at == number else one for at, one in enumerate(operations)]


def _changed(
    chance: Random,
    operations: Operations,
    wanted: Callable[[Operation], bool],
    change: Callable[[Operation], Any],
) -> Operations | None:
    """Another answer for one of those that are wanted."""
    number = _pick(chance, operations, wanted)
    return None if number is None else _answered(operations, number, change(operations[number]))


def _shows(*states: State) -> Callable[[Operation], bool]:
    return lambda one: isinstance(one.answer, Record) and (not states or one.answer.state in states)


def _won(one: Operation) -> bool:
    return (
        one.kind in ("claim", "take")
        and isinstance(one.answer, Record)
        and one.answer.attempt == one.arguments[0].attempt
    )


def _says(kind: str, answer: Any) -> Callable[[Operation], bool]:
    return lambda one: one.kind == kind and one.answer == answer


@mutation
def two_answers_swapped(chance: Random, operations: Operations) -> Operations | None:
    first = _pick(chance, operations, lambda one: one.kind not in ("sweep", "elapse"))
    if first is None:
        return None
    kind, answer = operations[first].kind, operations[first].answer
    second = _pick(chance, operations, lambda one: one.kind == kind and one.answer != answer)
    if second is None:
        return None
    other = operations[second].answer
    return _answered(_answered(operations, first, other), second, answer)


@mutation
def a_winner_dropped(chance: Random, operations: Operations) -> Operations | None:
    number = _pick(chance, operations, _won)
    return None if number is None else operations[:number] + operations[number + 1 :]


@mutation
def two_winners_of_one_token(chance: Random, operations: Operations) -> Operations | None:
    number = _pick(chance, operations, _won)
    if number is None:
        return None
    one = operations[number]
    want = one.arguments[0]._replace(attempt="twin")
    twin = one._replace(
        actor="twin", arguments=(want, *one.arguments[1:]), answer=one.answer._replace(attempt=want.attempt)
    )
    return [*operations[: number + 1], twin, *operations[number + 1 :]]


@mutation
def a_loser_told_that_it_won(chance: Random, operations: Operations) -> Operations | None:
    lost = lambda one: one.kind == "claim" and isinstance(one.answer, Record) and not _won(one)  # noqa: E731
    return _changed(
        chance, operations, lost, lambda one: one.answer._replace(attempt=one.arguments[0].attempt, state=State.RUNNING)
    )


@mutation
def a_stale_settle_returns_true(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _says("settle", False), lambda one: True)


@mutation
def a_settle_that_happened_returns_false(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _says("settle", True), lambda one: False)


@mutation
def a_lost_completion(chance: Random, operations: Operations) -> Operations | None:
    number = _pick(
        chance,
        operations,
        lambda one: one.kind == "settle" and one.answer is True and one.arguments[1] is Transition.COMPLETE,
    )
    return None if number is None else operations[:number] + operations[number + 1 :]


@mutation
def a_completion_acknowledged_but_not_made(chance: Random, operations: Operations) -> Operations | None:
    """A completion of the owner, put in before a look that shows its record running still."""
    number = _pick(chance, operations, _shows(State.RUNNING))
    if number is None:
        return None
    look, seen = operations[number], operations[number].answer
    want_clocks = next(one.arguments[0].clocks for one in operations if one.kind in ("claim", "take"))
    ownership = Ownership(seen.key, seen.attempt, seen.token, want_clocks, False)
    owns = any(_won(one) and one.answer.token == seen.token and (one.ended or 0) < look.begun for one in operations)
    if not owns:
        return None
    settle = Operation(
        "twin", "settle", look.key, (ownership, Transition.COMPLETE, None), look.made, look.made, look.made, True
    )
    later = [
        one._replace(made=one.made + 2, begun=one.begun + 2, ended=None if one.ended is None else one.ended + 2)
        if one.begun >= look.begun
        else one
        for one in operations
    ]
    return [*later[:number], settle, *later[number:]]


@mutation
def a_replay_with_another_result(chance: Random, operations: Operations) -> Operations | None:
    other = StoredResult(b"another", "text/plain", 1)
    return _changed(
        chance, operations, _shows(State.COMPLETED, State.FAILED), lambda one: one.answer._replace(result=other)
    )


def _older(operations: Operations, number: int) -> Record | None:
    """A record that was seen before the step and had been replaced by then."""
    now = operations[number]
    shown: Record = now.answer
    before = [
        one.answer
        for one in operations
        if isinstance(one.answer, Record) and (one.ended or 0) < now.begun and one.answer.version < shown.version
    ]
    return before[-1] if before else None


def _looks_back(chance: Random, operations: Operations, *, at_its_time: bool) -> Operations | None:
    number = _pick(chance, operations, lambda one: one.kind == "read" and isinstance(one.answer, Record))
    older = None if number is None else _older(operations, number)
    if number is None or older is None:
        return None
    now = older.now if at_its_time else operations[number].answer.now
    return _answered(operations, number, older._replace(now=now))


@mutation
def a_read_that_goes_back_in_time(chance: Random, operations: Operations) -> Operations | None:
    return _looks_back(chance, operations, at_its_time=True)


@mutation
def a_read_of_a_replica_that_lags(chance: Random, operations: Operations) -> Operations | None:
    return _looks_back(chance, operations, at_its_time=False)


@mutation
def an_unfenced_write(chance: Random, operations: Operations) -> Operations | None:
    """A settled record shows the attempt of somebody who had lost it."""
    settled = _pick(chance, operations, _shows(State.COMPLETED, State.FAILED, State.RELEASED, State.UNKNOWN))
    if settled is None:
        return None
    shown: Record = operations[settled].answer
    others = [one.answer for one in operations if _won(one) and one.answer.token < shown.token]
    if not others:
        return None
    stale = chance.choice(others)
    return _answered(operations, settled, shown._replace(attempt=stale.attempt, token=stale.token))


@mutation
def a_takeover_before_the_lease_lapsed(chance: Random, operations: Operations) -> Operations | None:
    """Let another actor see a running record, and take it at that very moment."""
    number = _pick(
        chance,
        operations,
        lambda one: (
            isinstance(one.answer, Record)
            and one.answer.effective_state is EffectiveState.RUNNING
            and one.ended is not None
        ),
    )
    wants = [one.arguments[0] for one in operations if one.kind == "claim"]
    if number is None or not wants:
        return None
    one, seen = operations[number], operations[number].answer
    want, now = wants[0]._replace(attempt="twin"), seen.now
    taken = seen._replace(
        attempt="twin",
        token=max(seen.token + 1, now),
        attempts=seen.attempts + 1,
        lease_until=now + want.clocks.lease,
        updated=now,
        expires=now + want.clocks.window,
        tombstone_until=now + want.clocks.memory,
        version=seen.version + 1,
    )
    take = Operation("twin", "take", one.key, (want, seen), one.ended, one.ended, one.ended, taken)
    return [*operations[: number + 1], take, *operations[number + 1 :]]


@mutation
def time_that_did_not_pass(chance: Random, operations: Operations) -> Operations | None:
    """Leases lapsed although nothing let time pass."""
    number = _pick(chance, operations, lambda one: one.kind == "elapse")
    return None if number is None else operations[:number] + operations[number + 1 :]


@mutation
def a_lapsed_lease_renewed(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _says("renew", set()), lambda one: {one.key})


@mutation
def a_live_lease_not_renewed(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, lambda one: one.kind == "renew" and bool(one.answer), lambda one: set())


@mutation
def a_resolution_of_what_had_changed(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _says("resolve", False), lambda one: True)


@mutation
def a_resolution_that_is_denied(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _says("resolve", True), lambda one: False)


@mutation
def a_record_that_vanished(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, lambda one: one.kind == "read" and one.answer is not None, lambda one: None)


@mutation
def a_token_that_comes_again(chance: Random, operations: Operations) -> Operations | None:
    taken = lambda one: one.kind == "take" and isinstance(one.answer, Record)  # noqa: E731
    return _changed(chance, operations, taken, lambda one: one.answer._replace(token=one.arguments[1].token))


@mutation
def a_takeover_without_a_count(chance: Random, operations: Operations) -> Operations | None:
    taken = lambda one: one.kind == "take" and isinstance(one.answer, Record) and one.answer.attempts > 1  # noqa: E731
    return _changed(chance, operations, taken, lambda one: one.answer._replace(attempts=1))


@mutation
def a_fingerprint_overwritten(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _shows(), lambda one: one.answer._replace(fingerprint=b"other"))


@mutation
def a_window_cut_short(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _shows(), lambda one: one.answer._replace(expires=one.answer.expires - 1))


@mutation
def a_write_that_counts_no_version(chance: Random, operations: Operations) -> Operations | None:
    return _changed(chance, operations, _shows(), lambda one: one.answer._replace(version=one.answer.version - 1))


@mutation
def a_lease_extended_by_nobody(chance: Random, operations: Operations) -> Operations | None:
    return _changed(
        chance,
        operations,
        _shows(State.RUNNING),
        lambda one: one.answer._replace(lease_until=one.answer.lease_until + 7),
    )


@mutation
def an_answer_before_its_cause(chance: Random, operations: Operations) -> Operations | None:
    """A look is moved to before the claim that it shows."""
    number = _pick(chance, operations, lambda one: one.kind == "read" and isinstance(one.answer, Record))
    if number is None:
        return None
    shown: Record = operations[number].answer
    causes = [one for one in operations if _won(one) and one.answer.token == shown.token]
    if not causes:
        return None
    before = causes[0].begun - 1
    moved = operations[number]._replace(made=before, begun=before, ended=before)
    return sorted([*operations[:number], moved, *operations[number + 1 :]], key=lambda one: one.begun)


@mutation
def a_clock_that_goes_back(chance: Random, operations: Operations) -> Operations | None:
    number = _pick(chance, operations, lambda one: one.kind == "read" and isinstance(one.answer, Record))
    if number is None:
        return None
    shown: Record = operations[number].answer
    return _answered(operations, number, shown._replace(now=shown.updated - 5))


def mutants(chance: Random, operations: Sequence[Operation]) -> dict[str, Operations]:
    """One mutant of each kind, where the history has what it takes."""
    made = {name: mutate(chance, list(operations)) for name, mutate in MUTATIONS.items()}
    return {name: mutant for name, mutant in made.items() if mutant is not None and mutant != list(operations)}
