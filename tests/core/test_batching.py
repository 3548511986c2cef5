"""A batch that fails is split until the message at fault is alone; every lane keeps its order. Exhaustive by chance."""

from __future__ import annotations

from random import Random

import pytest

from retrysafe.messaging.inbox.batch_plan import Answer, Broken, plan
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome

HANDLED, FAILED = HandleResult(MessageOutcome.HANDLED), HandleResult(MessageOutcome.FAILED, 1.0)


def carried_out(
    lanes: list[int], poison: set[int], suspects: set[int], *, known: bool
) -> tuple[list[HandleResult], list[int], int]:
    """Return the outcome of each, the applied ones in their order, and the number of transactions."""
    applied: list[int] = []
    steps = plan(lanes, suspects)
    count = 0
    answer: Answer | None = None
    try:
        while True:
            part = next(steps) if answer is None else steps.send(answer)
            count += 1
            bad = [place for place in part.places if place in poison]
            if bad and not part.single:
                answer = Broken(bad[0] if known else None)
            elif bad:
                answer = [FAILED]
            else:
                applied += part.places
                answer = [HANDLED] * len(part.places)
    except StopIteration as stop:
        return stop.value, applied, count


@pytest.mark.fault(53)
@pytest.mark.parametrize("known", [True, False])
def test_all_but_the_poison_and_what_follows_it_in_its_lane_is_applied_once_in_order(known: bool) -> None:
    random = Random(f"batching {known}")
    for _ in range(400):
        size = random.randrange(1, 40)
        lanes = [random.randrange(6) for _ in range(size)]
        poison = {place for place in range(size) if random.random() < 0.1}
        suspects = {place for place in range(size) if random.random() < 0.1}
        handled, applied, _ = carried_out(lanes, poison, suspects, known=known)
        stopped: set[int] = set()
        for place, one in enumerate(handled):
            expected = (
                MessageOutcome.BEHIND
                if lanes[place] in stopped
                else MessageOutcome.FAILED
                if place in poison
                else MessageOutcome.HANDLED
            )
            assert one.became is expected
            if one.again is not None:
                stopped.add(lanes[place])
        assert applied == [place for place, one in enumerate(handled) if one.became is MessageOutcome.HANDLED]


def test_one_poison_of_many_costs_few_transactions() -> None:
    assert carried_out(list(range(500)), {250}, set(), known=True)[2] == 4
    assert carried_out(list(range(512)), {250}, set(), known=False)[2] == 2 * 9 + 1


def test_a_thousand_poisons_end() -> None:
    handled, applied, _ = carried_out(list(range(1000)), set(range(1000)), set(), known=True)
    assert ({one.became for one in handled}, applied) == ({MessageOutcome.FAILED}, [])
