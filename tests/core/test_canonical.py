"""Canonical bytes of values and of JSON text: what is equal, what differs, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.protocol.canonical import NotCanonical, of_json, of_value
from tests.tables import each_row

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.binary(max_size=5)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.dates()
    | st.timedeltas()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcé", max_size=2), inner, max_size=3),
    max_leaves=10,
)


def typed(value: Any) -> Any:
    """A model of what the canonical form tells apart: the type of every leaf and its value."""
    if isinstance(value, list):
        return ("list", tuple(map(typed, value)))
    if isinstance(value, dict):
        return ("dict", frozenset((name, typed(member)) for name, member in value.items()))
    return (type(value).__name__, value)


@given(one=VALUES, other=VALUES)
def test_bytes_are_equal_exactly_when_the_values_are(one: Any, other: Any) -> None:
    assert (of_value(one) == of_value(other)) == (typed(one) == typed(other))


@given(st.dictionaries(st.text("abcd", max_size=3), VALUES, max_size=5))
def test_the_order_of_members_does_not_matter(value: dict[str, Any]) -> None:
    assert of_value(value) == of_value(dict(reversed(value.items())))


@given(st.lists(VALUES, min_size=2, max_size=4))
def test_the_order_of_elements_matters(value: list[Any]) -> None:
    swapped = list(reversed(value))
    assert (of_value(value) == of_value(swapped)) == (typed(value) == typed(swapped))


NEIGHBOURS = [
    (["ab", "c"], ["a", "bc"]),
    ([["a"], "b"], ["a", ["b"]]),
    ({"a": "b"}, {"ab": ""}),
    ([1, 2], [12]),
    ([], [[]]),
    ([None], []),
    ("1", 1),
    (1, True),
    (1, 1.0),
    (0.1, 0.1 + 2**-56),
    (b"a", "a"),
    ({"a": None}, {}),
    (Decimal("0.1"), 0.1),
    ({1, 2}, [1, 2]),
    (date(2026, 1, 1), datetime(2026, 1, 1)),
    ("é", "e\u0301"),
]


@each_row(("one", "other"), NEIGHBOURS)
def test_values_that_are_easily_confused_differ(one: Any, other: Any) -> None:
    assert of_value(one) != of_value(other)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Order:
    id: int
    lines: list[str]


@dataclass
class OrderOtherWayRound:
    lines: list[str]
    id: int


class Name(str):
    __slots__ = ()


class Model(pydantic.BaseModel):
    id: int = 1


TWINS = [
    (Decimal("1.0"), Decimal(1)),
    (Decimal(100), Decimal("1E+2")),
    (Decimal("-0"), Decimal(0)),
    (-0.0, 0.0),
    ((1, 2), [1, 2]),
    ({2, 1}, {1, 2}),
    (frozenset({1}), {1}),
    (Order(1, ["a"]), OrderOtherWayRound(["a"], 1)),
    (Order(1, ["a"]), {"lines": ["a"], "id": 1}),
    (Model(), {"id": 1}),
    (Name("a"), "a"),
    (timedelta(seconds=90), timedelta(minutes=1, seconds=30)),
]


@each_row(("one", "other"), TWINS)
def test_two_ways_to_write_one_value_are_the_same(one: Any, other: Any) -> None:
    assert of_value(one) == of_value(other)


def test_members_of_an_enum_differ() -> None:
    assert of_value(Colour.RED) != of_value(Colour.BLUE)
    assert of_value(Colour.RED) != of_value("red")


@each_row("value", [UUID(int=1), time(12, 30), datetime(2026, 1, 1, tzinfo=timezone.utc), {"a": (1,)}])  # noqa: UP017
def test_other_values_have_a_form_that_is_stable(value: Any) -> None:
    assert of_value(value) == of_value(value)


@pytest.mark.fault(67)
@each_row(
    "value",
    [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity"), object(), Order, bytearray(b"a"), [object()]],
    ids=lambda value: type(value).__name__,
)
def test_values_without_a_canonical_form_are_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        of_value(value)


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@each_row("value", ["\ud800", _endless(), 10**5000], ids=["surrogate", "endless", "huge int"])
def test_values_that_break_the_rendering_are_refused_in_the_same_way(value: Any) -> None:
    try:
        of_value(value)
    except NotCanonical:
        return
    except Exception as error:  # noqa: BLE001 - the defect
        pytest.fail(f"{type(error).__name__} instead of NotCanonical")


# ---------------------------------------------------------------- JSON text


@given(JSON_VALUES)
def test_white_space_and_member_order_do_not_matter(value: Any) -> None:
    """spring-modulith #556: a fingerprint over re-serialised JSON changes with the field order."""
    plain = json.dumps(value).encode()
    spaced = json.dumps(value, indent=3, ensure_ascii=False, sort_keys=True).encode()
    assert of_json(plain) == of_json(spaced)


@given(one=JSON_VALUES, other=JSON_VALUES)
def test_different_json_values_differ(one: Any, other: Any) -> None:
    same = of_json(json.dumps(one).encode()) == of_json(json.dumps(other).encode())
    assert same == (typed(one) == typed(other))


SAME_TEXTS = [
    (b"1", b"1.0"),
    (b"1e2", b"100"),
    (b"-0", b"0"),
    (b'"\\u0041"', b'"A"'),
    (b'{"a":1,"b":2}', b' { "b" : 2.0 , "a" : 1 } '),
]


@each_row(("one", "other"), SAME_TEXTS)
def test_two_texts_of_one_value_are_the_same(one: bytes, other: bytes) -> None:
    assert of_json(one) == of_json(other)


def test_numbers_are_exact() -> None:
    assert of_json(b"0.1") != of_json(b"0.1000000000000000055")
    assert of_json(b"9007199254740993") != of_json(b"9007199254740992")
    assert of_json(b"1") != of_json(b'"1"')


def test_json_text_and_value_are_kept_apart() -> None:
    assert of_json(b"null") != of_value(None)


REFUSED = {
    "empty": b"",
    "duplicate members": b'{"a":1,"a":1}',
    "nested duplicate members": b'[{"b":{"a":1,"a":2}}]',
    "NaN": b"NaN",
    "Infinity": b"[-Infinity]",
    "not UTF-8": b'"\xff"',
    "lone surrogate": b'"\\ud800"',
    "byte order mark": b"\xef\xbb\xbf1",
    "cut off": b'{"a":',
    "two values": b"1 2",
    "too deep": b"[" * 100_000,
}


@pytest.mark.fault(67, 68)
@each_row("name", REFUSED)
def test_text_without_one_meaning_is_refused(name: str) -> None:
    with pytest.raises(NotCanonical):
        of_json(REFUSED[name])


def test_an_exponent_beyond_all_measure_is_refused_in_the_same_way() -> None:
    with pytest.raises(NotCanonical):
        of_json(b"1e9999999999999999999999")
