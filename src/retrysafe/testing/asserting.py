"""One effect and one answer, however often an operation is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from inspect import isawaitable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError, InProgress
from retrysafe.testing.duplicates import (
    Outcome,
    aconcurrently,
    aoutcome_of,
    concurrently,
    outcome_of,
    refuse_coroutine,
)

T = TypeVar("T")
Counted = Sized | Callable[[], int]
"""The count of effects: a collection whose length grows with them, or a function that returns their number."""
ACounted = Counted | Callable[[], Awaitable[int]]


def assert_once(operation: Callable[[], T], *, effects: Counted, copies: int = 1, retries: int = 2) -> T:
    """Call ``operation`` again and again, and assert that it had one effect and always the same answer; return that.

    Arguments:
        operation: the guarded call with its key, such as ``lambda: charge(order)``.
        effects: a list that the effects are added to, or a function that counts them; counted before and after.
        copies: how many calls begin together, on threads. Those that the boundary rejects with `InProgress` are
            right to be, as long as one of them is answered.
        retries: how many calls follow, one after another. They must all be answered.

    Raises `AssertionError` with what every call came to and after which one there was an effect too many, and
    `ConfigurationError` for a coroutine function, which `aassert_once` takes.
    """
    seen = _Seen(_name_of(operation), _count(effects))
    if copies > 1:
        seen.together(concurrently(operation, copies), _count(effects))
    for _ in range(retries + (copies == 1)):
        seen.alone(outcome_of(operation), _count(effects))
    answer: T = seen.judge()
    return answer


async def aassert_once(
    operation: Callable[[], Awaitable[T]], *, effects: ACounted, copies: int = 1, retries: int = 2
) -> T:
    """`assert_once` for async code: copies are tasks of the running loop, and the count of effects may be awaited."""
    seen = _Seen(_name_of(operation), await _acount(effects))
    if copies > 1:
        seen.together(await aconcurrently(operation, copies), await _acount(effects))
    for _ in range(retries + (copies == 1)):
        seen.alone(await aoutcome_of(operation), await _acount(effects))
    answer: T = seen.judge()
    return answer


def _count(effects: Counted) -> int:
    if isinstance(effects, Sized):
        return len(effects)
    found = effects()
    refuse_coroutine(found)
    return _check(found)


async def _acount(effects: ACounted) -> int:
    if isinstance(effects, Sized):
        return len(effects)
    found = effects()
    return _check(await found if isawaitable(found) else found)


def _check(found: Any) -> int:
    if not isinstance(found, int):
        raise ConfigurationError(f"effects= counted {found!r}; it returns how many effects there are, or has a length.")
    return found


def _name_of(operation: Callable[..., Any]) -> str:
    name = getattr(operation, "__qualname__", type(operation).__name__)
    return "the operation" if "<lambda>" in name else f"{name.rpartition('.')[2]}()"


# ---------------------------------------------------------------- the judgement


class _Call(NamedTuple):
    """One call, what it came to, and how many effects there were then: None while others were running too."""

    name: str
    outcome: Outcome[Any]
    effects: int | None

    def __str__(self) -> str:
        count = "" if self.effects is None else f"   [{_effects(self.effects)} by now]"
        return f"  {self.name} {self.outcome}{count}"


class _Seen:
    """Every call so far, and whether that is as it should be."""

    def __init__(self, operation: str, before: int) -> None:
        self._operation = operation
        self._before = before
        self._calls: list[_Call] = []
        self._copies = 0

    def together(self, outcomes: Sequence[Outcome[Any]], effects: int) -> None:
        """These calls ran at once."""
        self._copies = len(outcomes)
        for number, outcome in enumerate(outcomes, 1):
            counted = effects - self._before if number == len(outcomes) else None
            self._calls.append(_Call(f"copy {number}", outcome, counted))

    def alone(self, outcome: Outcome[Any], effects: int) -> None:
        """This call ran by itself."""
        name = f"call {len(self._calls) + 1}" if not self._copies else f"retry {len(self._calls) - self._copies + 1}"
        self._calls.append(_Call(name, outcome, effects - self._before))

    def judge(self) -> Any:
        """The one answer; else an `AssertionError` that says what is wrong."""
        wrong = [*self._too_many(), *self._missing_answers(), *self._differing()]
        answered = [call.outcome for call in self._calls if call.outcome.error is None]
        if not wrong:
            return answered[0].answer
        text = "\n".join([*wrong, *map(str, self._calls)])
        raise AssertionError(text) from next((call.outcome.error for call in self._calls if _is_wrong(call)), None)

    def _too_many(self) -> list[str]:
        total = self._calls[-1].effects
        if total == 1:
            return []
        return [f"{len(self._calls)} calls of {self._operation} had {_effects(total or 0)}, not one:"]

    def _missing_answers(self) -> list[str]:
        wrong = [f"{call.name} of {self._operation} {call.outcome}:" for call in self._calls if _is_wrong(call)]
        copies = self._calls[: self._copies]
        if copies and all(isinstance(call.outcome.error, InProgress) for call in copies):
            wrong.append(f"every copy of {self._operation} was rejected, so nobody ran it:")
        return wrong

    def _differing(self) -> list[str]:
        answered = [call for call in self._calls if call.outcome.error is None]
        for first, call in pairwise(answered):
            found = difference(first.outcome.answer, call.outcome.answer)
            if found:
                return [f"{call.name} of {self._operation} was answered differently than {first.name}: {found}:"]
        return []


def _is_wrong(call: _Call) -> bool:
    """A copy may be told that another one is in progress; nothing else may be raised."""
    rejected = call.name.startswith("copy") and isinstance(call.outcome.error, InProgress)
    return call.outcome.error is not None and not rejected


def _effects(count: int) -> str:
    return f"{count} effect{'' if count == 1 else 's'}"


def difference(one: Any, other: Any, where: str = "answer") -> str | None:
    """Find the first difference of two values, as a path, with the two parts; None when they are equal."""
    if one == other:
        return None
    if type(one) is type(other):
        for name, left, right in _parts(one, other):
            found = difference(left, right, where + name)
            if found:
                return found
    return f"{where} was {one!r}, then {other!r}"


_MISSING = type("Missing", (), {"__repr__": lambda self: "missing"})()


def _parts(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(one, Mapping):
        names = dict.fromkeys([*one, *other])
        return [(f"[{name!r}]", one.get(name, _MISSING), other.get(name, _MISSING)) for name in names]
    if isinstance(one, list | tuple) and len(one) == len(other):
        return [(f"[{i}]", *pair) for i, pair in enumerate(zip(one, other, strict=True))]
    if is_dataclass(one):
        return [(f".{field.name}", getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return []
