"""`assert_once` and its duplicates: what they let through, and what they say of the rest."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, InProgress, reject, wait
from retrysafe.testing import Outcome, aassert_once, aconcurrently, assert_once, concurrently
from retrysafe.testing.asserting import difference
from tests.tables import each_row


class Shop:
    """Charges by a guarded function, on memory."""

    def __init__(self, **terms: Any) -> None:
        self.charges: list[str] = []
        self.boundary = Boundary("shop", store="memory://", observers=(), **terms)
        self.charge = self.boundary.once(key="order", operation="charge")(self._charge)
        self.acharge = self.boundary.once(key="order", operation="acharge")(self._acharge)

    def _charge(self, order: str) -> dict[str, Any]:
        self.charges.append(order)
        return {"order": order, "number": len(self.charges)}

    async def _acharge(self, order: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return self._charge(order)

    def forgetful(self, order: str) -> dict[str, Any]:
        """The same without a guard."""
        return self._charge(order)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_one_effect_and_one_answer_pass(shop: Shop) -> None:
    assert assert_once(lambda: shop.charge("A-1"), effects=shop.charges) == {"order": "A-1", "number": 1}
    assert shop.charges == ["A-1"]


def test_effects_from_before_do_not_count(shop: Shop) -> None:
    shop.charge("A-1")
    assert assert_once(lambda: shop.charge("A-2"), effects=lambda: len(shop.charges))["number"] == 2


def test_the_call_that_had_another_effect_is_named(shop: Shop) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_once(lambda: shop.forgetful("A-1"), effects=shop.charges)
    assert str(caught.value).splitlines() == [
        "3 calls of the operation had 3 effects, not one:",
        "call 2 of the operation was answered differently than call 1: answer['number'] was 1, then 2:",
        "  call 1 answered {'order': 'A-1', 'number': 1}   [1 effect by now]",
        "  call 2 answered {'order': 'A-1', 'number': 2}   [2 effects by now]",
        "  call 3 answered {'order': 'A-1', 'number': 3}   [3 effects by now]",
    ]


def test_no_effect_is_not_one() -> None:
    def nothing() -> None:
        """Does nothing."""

    with pytest.raises(AssertionError, match=r"3 calls of nothing\(\) had 0 effects, not one"):
        assert_once(nothing, effects=[])


def test_a_retry_that_raises_is_told_and_chained() -> None:
    effects: list[int] = []

    def fragile() -> None:
        effects.append(1)
        if len(effects) == 1:
            return
        effects.pop()
        raise TimeoutError("too late")

    with pytest.raises(AssertionError, match=r"call 2 of fragile\(\) raised TimeoutError: too late") as caught:
        assert_once(fragile, effects=effects)
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_answers_that_differ_are_told_although_the_effect_is_one() -> None:
    effects: list[int] = []

    def answering() -> int:
        effects[:] = [1]
        return answers.pop()

    answers = [3, 2, 2]
    with pytest.raises(
        AssertionError, match=r"call 3 of answering\(\) was answered differently than call 2: answer was 2, then 3"
    ):
        assert_once(answering, effects=effects)


def test_as_many_calls_as_were_asked_for(shop: Shop) -> None:
    calls: list[int] = []

    def charge() -> object:
        calls.append(1)
        return shop.charge("A-1")

    assert_once(charge, effects=shop.charges, retries=5)
    assert len(calls) == 6


@each_row("concurrency", [reject(), wait(20)], ids=["reject", "wait"])
def test_copies_at_once_have_one_effect(concurrency: Any) -> None:
    shop = Shop(concurrency=concurrency)
    assert assert_once(lambda: shop.charge("A-1"), effects=shop.charges, copies=8) == {"order": "A-1", "number": 1}


def test_copies_without_a_guard_are_caught(shop: Shop) -> None:
    with pytest.raises(AssertionError, match=r"9 calls of the operation had 9 effects, not one:") as caught:
        assert_once(lambda: shop.forgetful("A-1"), effects=shop.charges, copies=8, retries=1)
    text = str(caught.value)
    assert "copy 8 answered" in text
    assert "[8 effects by now]" in text
    assert "retry 1 answered" in text


def test_copies_that_are_all_rejected_have_had_no_effect(shop: Shop) -> None:
    with (
        shop.boundary.claim("A-1", operation="busy"),
        pytest.raises(AssertionError, match="every copy of the operation was rejected"),
    ):
        assert_once(lambda: _claimed(shop), effects=shop.charges, copies=2)


def _claimed(shop: Shop) -> None:
    with shop.boundary.claim("A-1", operation="busy"):
        shop.charges.append("A-1")


def test_a_retry_may_not_be_rejected() -> None:
    def busy() -> None:
        raise InProgress("still")

    with pytest.raises(AssertionError, match=r"call 1 of busy\(\) raised InProgress"):
        assert_once(busy, effects=[])


async def test_async_code_is_called_as_often(shop: Shop) -> None:
    async def counted() -> int:
        return len(shop.charges)

    assert (await aassert_once(lambda: shop.acharge("A-1"), effects=counted, copies=8))["number"] == 1
    assert await aassert_once(lambda: shop.acharge("A-2"), effects=shop.charges)

    async def forgetful() -> object:
        return shop.forgetful("A-3")

    with pytest.raises(AssertionError, match=r"4 calls of forgetful\(\) had 4 effects"):
        await aassert_once(forgetful, effects=shop.charges, copies=2)


def test_an_answer_that_nobody_awaits_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="nothing has run"):
        assert_once(lambda: shop.acharge("A-1"), effects=shop.charges)
    with pytest.raises(ConfigurationError, match="nothing has run"):
        concurrently(lambda: shop.acharge("A-1"))


def test_an_effect_count_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="counted 'many'"):
        assert_once(lambda: None, effects=lambda: "many")  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------- duplicates


def test_copies_run_at_the_same_time() -> None:
    together = threading.Barrier(8)
    assert concurrently(lambda: together.wait(60) >= 0, copies=8) == [Outcome(True, None)] * 8


def test_no_copy_begins_before_all_are_there() -> None:
    def there() -> int:
        return sum(thread.name.startswith("duplicate") for thread in threading.enumerate())

    assert concurrently(there, copies=8) == [Outcome(8, None)] * 8


def test_tasks_run_at_the_same_time() -> None:
    async def course() -> list[Outcome[bool]]:
        here: set[int] = set()
        all_here = asyncio.Event()

        async def one() -> bool:
            here.add(len(here))
            if len(here) == 5:
                all_here.set()
            return await asyncio.wait_for(all_here.wait(), 60)

        return await aconcurrently(one, copies=5)

    assert asyncio.run(course()) == [Outcome(True, None)] * 5


def test_an_error_of_a_copy_is_its_outcome() -> None:
    def failing() -> None:
        raise ValueError("no")

    outcomes = concurrently(failing, copies=2)
    assert [str(outcome) for outcome in outcomes] == ["raised ValueError: no"] * 2


def test_copies_know_the_context_of_the_test() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    tenant.set("somebody")
    assert concurrently(tenant.get, copies=2) == [Outcome("somebody", None)] * 2


def test_one_copy_is_no_duplicate() -> None:
    with pytest.raises(ConfigurationError, match="at least 2"):
        concurrently(lambda: None, copies=1)


# ---------------------------------------------------------------- differences


@dataclass
class Receipt:
    """An answer with parts."""

    lines: list[dict[str, int]]


def test_a_difference_is_named_by_its_path() -> None:
    assert difference(Receipt([{"a": 1}]), Receipt([{"a": 1}])) is None
    assert difference(Receipt([{"a": 1}]), Receipt([{"a": 2}])) == "answer.lines[0]['a'] was 1, then 2"
    assert difference({"a": 1}, {"b": 1}) == "answer['a'] was 1, then missing"
    assert difference([1], [1, 2]) == "answer was [1], then [1, 2]"
    assert difference(1, "1") == "answer was 1, then '1'"
