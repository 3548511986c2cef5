"""The checker itself: it accepts every legal history, and rejects those that a broken store would leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from retrysafe.protocol.records import ClaimRequest, Clocks, Ownership, Record, State
from retrysafe.protocol.transitions import Transition
from tests.histories import naive
from tests.histories.generating import KEY, Shape, generate
from tests.histories.mutating import MUTATIONS, mutants
from tests.laboratory.histories import UNKNOWN, Operation
from tests.laboratory.linearizability import check, counterexample, is_linearizable
from tests.proving.effort import effort
from tests.proving.proofs import Proof

SHAPES = {
    "as stores are used": Shape(),
    "long": Shape(operations=60),
    "much at once": Shape(operations=30, actors=7, span=60),
    "half of the answers lost": Shape(operations=30, lost=0.5),
    "short clocks": Shape(operations=30, clocks=Clocks(lease=5, window=20, memory=40), sweeps=0.2, elapses=0.1),
}

Prove = Callable[[Proof], None]


@pytest.mark.one_of("seconds of a core", of=3)
@pytest.mark.parametrize("name", SHAPES)
def test_legal_histories_are_explained(name: str, chance: Random, proof: Prove) -> None:
    histories, lost, operations = effort(60, 5_000), 0, 0
    for _ in range(histories):
        made = generate(chance, SHAPES[name])
        broken = check(made.operations)
        assert not broken, str(broken[0])
        lost += made.lost
        operations += len(made.operations)
    for fault, count in (("legal history", histories), ("operation in them", operations), ("answer lost", lost)):
        proof(Proof("histories: the checker", "", "", fault, count))


CAUGHT_AT_LEAST = effort(0.4, 0.6)
"""Of each kind, of which seven to ten in ten are illegal: the others are legal by chance, as the naive checker finds on
small histories. A short run has a dozen of some kinds, and must not fail by chance."""


@pytest.mark.one_of("seconds of a core", of=3)
def test_mutated_histories_are_rejected(chance: Random, proof: Prove) -> None:
    caught, made = Counter[str](), Counter[str]()
    for _ in range(effort(60, 2_000)):
        for name, mutant in mutants(chance, generate(chance).operations).items():
            made[name] += 1
            caught[name] += not is_linearizable(KEY, mutant)
    assert set(made) == set(MUTATIONS)
    assert {
        name: f"{caught[name]} of {made[name]}" for name in made if caught[name] < CAUGHT_AT_LEAST * made[name]
    } == {}
    for fault, count in (("mutated history", made.total()), ("mutated history, rejected", caught.total())):
        proof(Proof("histories: the checker", "", "", fault, count))


SMALL = Shape(
    operations=5, actors=2, clocks=Clocks(lease=4, window=8, memory=10), span=4, lost=0.15, elapses=0.1, sweeps=0.1
)


@pytest.mark.one_of("seconds of a core", of=3)
def test_the_naive_checker_finds_the_same(chance: Random, proof: Prove) -> None:
    """It tries every order and every instant, so what it explains is legal, and what it does not is not."""
    legal = illegal = 0
    for _ in range(effort(12, 600)):
        history = generate(chance, SMALL).operations
        for name, steps in {"unchanged": history, **mutants(chance, history)}.items():
            last = max(one.ended or one.begun for one in steps) // 1000
            first = min([SMALL.epoch - 11, *(one.answer.now for one in steps if isinstance(one.answer, Record))])
            expected = naive.is_linearizable(KEY, steps, first, last + 15)
            assert is_linearizable(KEY, steps) == expected, f"{name}: {steps}"
            assert expected or name != "unchanged"
            legal, illegal = legal + expected, illegal + (not expected)
    assert min(legal, illegal) > effort(12, 600)
    for fault, count in (("legal", legal), ("illegal", illegal)):
        proof(Proof("histories: the checker", "", "", f"small history, {fault} by exhaustive search", count))


def test_a_counterexample_is_small_and_proves_as_much(chance: Random) -> None:
    """Its operations alone cannot be explained, with only the marked answers; a handful of them are marked."""
    sizes = []
    for _ in range(effort(2, 40)):
        made = list(mutants(chance, generate(chance).operations).values())
        for mutant in chance.sample(made, min(4, len(made))):
            if is_linearizable(KEY, mutant):
                continue
            found = counterexample(KEY, mutant)
            assert not is_linearizable(KEY, found.operations)
            assert [one.answer is not UNKNOWN for one in found.operations] == list(found.needed)
            sizes.append(sum(found.needed))
    assert sorted(sizes)[len(sizes) // 2] <= 4
    assert max(sizes) <= 12


def test_knowledge_of_a_step_is_kept_although_it_changed_nothing() -> None:
    """An operator had seen the record as it was before the renewal, whatever became of the operator's decision."""
    clocks = Clocks(lease=60, window=500, memory=600)
    owner = Ownership(KEY, "a", 1_000_005, clocks, transactional=False)
    want = ClaimRequest(KEY, "b", "", "o", b"p", "a", "external", clocks)
    settled = (State.COMPLETED, "a", owner.token, 1, "external", 1_000_004, 999_944, 1_000_086, 1_000_586, 1_000_686)
    record = Record(KEY, "b", "", "o", b"p", *settled, owner.token + 1, None, 1_000_204)
    history = [
        Operation("worker", "claim", KEY, (want,), 0, 0, None, UNKNOWN),
        Operation("tester", "elapse", KEY, (KEY, 61), 46_000, 46_000, None, UNKNOWN),
        Operation("worker", "settle", KEY, (owner, Transition.COMPLETE, None), 71_000, 71_000, None, UNKNOWN),
        Operation("worker", "renew", KEY, (owner,), 226_000, 226_000, 246_000, {KEY}),
        Operation(
            "operator",
            "resolve",
            KEY,
            (record, Transition.RESOLVE_RELEASED, None, clocks),
            242_000,
            242_000,
            None,
            UNKNOWN,
        ),
    ]
    assert not is_linearizable(KEY, history)
    assert not is_linearizable(KEY, counterexample(KEY, history).operations)


def _first_claim(chance: Random) -> list[Operation]:
    while True:
        history = generate(chance, Shape(operations=12, lost=0)).operations
        stale = [number for number, one in enumerate(history) if one.kind == "settle" and one.answer is False]
        if stale:
            number = stale[0]
            return [*history[:number], history[number]._replace(answer=True), *history[number + 1 :]]


def test_a_counterexample_reads_as_a_time_line(chance: Random) -> None:
    mutant = _first_claim(chance)
    while is_linearizable(KEY, mutant):
        mutant = _first_claim(chance)
    (found,) = check(mutant)
    story = str(found).splitlines()
    assert story[0] == "key 6b6579: no order of these steps gives the answers marked *"
    assert len(story) == len(found.operations) + 3
    assert any(line.startswith(f"{number:>3}*|") for number, line in enumerate(story[1:], 1))
    assert story[-2].startswith("The best explanation of all answers up to then takes ")
    assert story[-1].startswith("and leaves the record ")
