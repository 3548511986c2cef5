"""`redelivered`: every message at least once, some again, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from retrysafe import ConfigurationError
from retrysafe.testing import redelivered
from tests.tables import each_row

SEEDS = range(300)
MESSAGES = [f"message {number}" for number in range(7)]


def firsts(deliveries: list[str]) -> list[str]:
    """The messages in the order in which they came first."""
    return list(dict.fromkeys(deliveries))


@each_row("out_of_order", [False, True])
def test_every_message_comes_and_one_comes_again(out_of_order: bool) -> None:
    for seed in SEEDS:
        times = Counter(redelivered(MESSAGES, seed=seed, out_of_order=out_of_order))
        assert times.keys() == set(MESSAGES)
        assert max(times.values()) >= 2


def test_a_single_message_comes_again() -> None:
    assert all(len(redelivered(["one"], seed=seed)) >= 2 for seed in SEEDS)


def test_without_chance_nothing_comes_again() -> None:
    assert redelivered(MESSAGES, seed=1, chance=0) == MESSAGES
    assert redelivered([], seed=1) == []


def test_first_deliveries_keep_their_order_unless_asked() -> None:
    assert all(firsts(redelivered(MESSAGES, seed=seed)) == MESSAGES for seed in SEEDS)
    assert sum(firsts(redelivered(MESSAGES, seed=seed, out_of_order=True)) != MESSAGES for seed in SEEDS) > 290


def test_a_redelivery_comes_late_sometimes() -> None:
    found = [redelivered(MESSAGES, seed=seed) for seed in SEEDS]
    late = [one for one in found if any(len(set(one[i : len(one)])) > 1 and one[i] in one[i + 2 :] for i in range(7))]
    assert len(late) > 100
    assert any(max(Counter(one).values()) > 2 for one in found)


def test_the_same_seed_gives_the_same_deliveries() -> None:
    assert redelivered(MESSAGES, seed="s") == redelivered(MESSAGES, seed="s") == redelivered(MESSAGES, seed=Random("s"))
    assert len({tuple(redelivered(MESSAGES, seed=seed)) for seed in SEEDS}) > 200


def test_messages_may_be_of_any_kind() -> None:
    messages = [{"id": 1}, {"id": 2}]
    assert all(message in messages for message in redelivered(messages, seed=3, out_of_order=True))


@each_row("chance", [-0.1, 1, 2.0])
def test_an_impossible_chance_is_refused(chance: float) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to below 1"):
        redelivered(MESSAGES, seed=1, chance=chance)
