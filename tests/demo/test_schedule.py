"""The schedule of faults, over many seeds."""

from __future__ import annotations

import itertools

import pytest

from retrysafe_demo.schedule import LAST, REPEATABLE, Fault, schedule
from tests.tables import each_row

SEEDS = range(-50, 450)


def ids(count: int) -> list[str]:
    return [f"INV-{number}" for number in range(count)]


@pytest.mark.parametrize("count", [4, 5, 7, 8, 40, 120])
def test_every_kind_of_fault_strikes_whatever_the_seed(count: int) -> None:
    for seed in SEEDS:
        assert set(itertools.chain(*schedule(seed, ids(count)).values())) == set(Fault), seed


@each_row("count", [1, 2, 3])
def test_with_few_payments_all_that_can_follow_each_other_strike(count: int) -> None:
    for seed in SEEDS:
        struck = set(itertools.chain(*schedule(seed, ids(count)).values()))
        assert struck >= set(REPEATABLE), seed
        assert len(struck & set(LAST)) == count, seed


@pytest.mark.parametrize("count", [1, 5, 120])
def test_a_payment_is_settled_after_its_last_fault(count: int) -> None:
    for seed in SEEDS:
        for faults in schedule(seed, ids(count)).values():
            assert not set(faults[:-1]) & set(LAST), seed


def test_it_is_a_pure_function_of_seed_and_payments() -> None:
    assert schedule(7, ids(120)) == schedule(7, iter(ids(120)))
    assert len({str(sorted(schedule(seed, ids(120)).items())) for seed in SEEDS}) == len(SEEDS)


def test_it_stays_the_same_from_release_to_release() -> None:
    faults = {name: [fault.name for fault in found] for name, found in schedule(7, ids(4)).items()}
    assert faults == PINNED


PINNED = {
    "INV-0": ["TIMEOUT", "PAUSE_BEFORE_CHARGE"],
    "INV-1": ["KILL_BEFORE_CHARGE", "CONCURRENT"],
    "INV-2": ["LOST_REPLY", "PAUSE_AFTER_CHARGE"],
    "INV-3": ["KILL_AFTER_CHARGE", "KILL_BEFORE_ANSWER"],
}
