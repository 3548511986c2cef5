"""``claim(result_type=)`` does for a block what the return annotation does for a function."""

from __future__ import annotations

import io
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from numbers import Number
from typing import IO, Annotated, Any, Literal, NamedTuple, NoReturn, NotRequired, Protocol, SupportsInt, TypedDict
from uuid import UUID

import pytest

from retrysafe import Boundary, Claim, ConfigurationError, ResultNotEncodable, ResultUnreadable
from tests.tables import each_row


class Size(Enum):
    SMALL = 1


@dataclass
class Receipt:
    number: int
    amount: Decimal


RECEIPT = Receipt(7, Decimal("12.50"))


@pytest.fixture
def boundary() -> Boundary[None]:
    return Boundary("shop", store="memory://", effects="external", observers=())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Receipt, RECEIPT),
        (Size, Size.SMALL),
        (list[Receipt], [RECEIPT]),
        (Receipt | None, RECEIPT),
        (Receipt | None, None),
    ],
)
def test_a_result_set_in_the_block_comes_back(boundary: Boundary[None], kind: type[object], value: object) -> None:
    for attempt in range(2):
        with boundary.claim("k", result_type=kind) as claim:
            assert claim.replayed == bool(attempt)
            if not claim.replayed:
                claim.result = value
        assert claim.result == value


def test_another_class_is_refused(boundary: Boundary[None]) -> None:
    with (
        pytest.raises(ResultNotEncodable, match="result_type="),
        boundary.claim("k", result_type=Size) as claim,
    ):
        claim.result = RECEIPT  # type: ignore[assignment]


def test_a_replay_that_names_no_type_is_refused(boundary: Boundary[None]) -> None:
    with boundary.claim("k", result_type=Receipt) as claim:
        claim.result = RECEIPT
    with (
        pytest.raises(ResultUnreadable, match="it is a Receipt, which the annotation None does not name"),
        boundary.claim("k"),
    ):
        pass


def test_a_person_resolves_with_the_same_type(boundary: Boundary[None]) -> None:
    with pytest.raises(ConnectionResetError), boundary.claim("k", result_type=Receipt):
        raise ConnectionResetError
    with pytest.raises(ConfigurationError, match="give result_type="):
        boundary.resolve("k", "completed", result=RECEIPT)
    assert boundary.resolve("k", "completed", result=RECEIPT, result_type=Receipt)
    with boundary.claim("k", result_type=Receipt) as claim:
        assert claim.replayed
    assert claim.result == RECEIPT


async def test_async(boundary: Boundary[None]) -> None:
    with pytest.raises(ConnectionResetError):
        async with boundary.claim("k", result_type=Receipt):
            raise ConnectionResetError
    assert await boundary.aresolve("k", "completed", result=RECEIPT, result_type=Receipt)
    async with boundary.claim("k", result_type=Receipt) as claim:
        assert claim.replayed
    assert claim.result == RECEIPT


def test_the_generic_classes_can_be_subscripted_when_annotations_are_evaluated() -> None:
    assert Claim[Receipt] != Claim[Receipt, None]
    assert Boundary[None]


class Plain:
    """No object of it can be stored."""


class Money(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int


class Shape(TypedDict):
    name: str


@dataclass
class Line:
    order: Plain


@dataclass
class Node:
    next: Node | None


class Priced(Protocol):
    price: int


class Listed(TypedDict):
    order: NotRequired[Plain]


class Counted(TypedDict):
    orders: list[int]


UNSTORABLE = [
    Plain, Plain | None, list[Plain], dict[str, Plain], tuple[int, Plain], Annotated[Plain, 1], Line, Money, Point,
    Iterator[int], Generator[int, None, None], AsyncIterator[int], Awaitable[int], Callable[[], int], IO[str],
    io.TextIOWrapper, type[int], Exception, Listed, Sequence[Plain], Mapping[str, Line],
]  # fmt: skip
STORABLE = [
    None, Any, object, int, str | None, list[dict[str, Decimal]], Mapping[str, int], Sequence[int], Iterable[int], UUID,
    datetime, Shape, Node, Priced, Number, Literal["a"], Hashable, NoReturn, tuple[int, ...], SupportsInt,
    Counted, Mapping[str, Counted],
]  # fmt: skip


@each_row("kind", UNSTORABLE, ids=str)
def test_a_result_that_can_never_be_stored_is_refused_at_decoration(kind: Any) -> None:
    boundary: Boundary = Boundary("unstorable", store="memory://", observers=(), shared=True)

    def make() -> Any:
        raise AssertionError("it must not run")

    async def amake() -> Any:
        raise AssertionError("it must not run")

    for function in (make, amake):
        function.__annotations__ = {"return": kind}
        with pytest.raises(ConfigurationError, match=r"return annotation of .*make names .*return a dataclass"):
            boundary.once(key=lambda: "k", operation="make")(function)
    with pytest.raises(ConfigurationError, match="result_type= names"):
        boundary.claim("k", result_type=kind)


@each_row("kind", STORABLE, ids=str)
def test_a_result_that_may_be_stored_is_not_refused(kind: Any) -> None:
    boundary: Boundary = Boundary("storable", store="memory://", observers=(), shared=True)

    def make() -> Any:
        return None

    make.__annotations__ = {"return": kind}
    assert boundary.once(key=lambda: "k", operation="make")(make)() is None
    with boundary.claim("k", operation="make", result_type=kind) as claim:
        assert claim.replayed


def test_an_annotation_that_names_what_comes_later_is_looked_at_before_the_effect() -> None:
    boundary: Boundary = Boundary("later", store="memory://", observers=())

    @boundary.once(key="key")
    def make(key: str) -> Later:
        raise AssertionError("it must not run")

    class Later:
        pass

    globals()["Later"] = Later
    try:
        with pytest.raises(ConfigurationError, match=r"names .*Later"):
            make("k")
    finally:
        del globals()["Later"]
