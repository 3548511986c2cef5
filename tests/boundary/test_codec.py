"""The codec: what a retry gets is equal to what the first caller got."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from retrysafe import JSONCodec, ResultNotEncodable, ResultUnreadable, StoredResult
from tests.tables import each_row

CODEC = JSONCodec()


class Colour(Enum):
    RED = "r"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    colour: Colour = Colour.RED
    notes: dict[str, Line] = field(default_factory=dict)
    next: Order | None = None


class Model(BaseModel):
    id: int = Field(alias="ID")
    amount: Decimal
    lines: list[Colour]


LINE = Line("a", Decimal("1.10"))
ORDER = Order(UUID(int=7), [LINE, LINE], datetime(2026, 1, 2, tzinfo=UTC), notes={"n": LINE})


def round_trip(value: Any, annotation: Any = None) -> Any:
    return CODEC.decode(CODEC.encode(value, annotation), annotation)


@each_row(
    ("value", "annotation"),
    [
        (None, None),
        (True, bool),
        (1.5, float),
        (-0.0, float),
        ("é\u0000\U0001f600", str),
        (2**200, int),
        (datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2))), None),
        (datetime(2026, 3, 29, 2, 30), None),
        (date(2026, 1, 1), None),
        (time(1, 2, 3, 4), None),
        (timedelta(days=-1, microseconds=1), None),
        (Decimal("1.10"), None),
        (Decimal("-0"), None),
        (UUID(int=1), None),
        (b"\x00\xff", None),
        ((1, (2, [3])), None),
        ({1, 2}, None),
        (frozenset({("a", 1)}), None),
        ({"$": 1, "a": {"$": ["uuid", "x"]}}, None),
        ({1: "a", (2, 3): b"b", None: 0}, None),
        ({}, None),
        (Colour.RED, Colour),
        (Level.HIGH, Level),
        (ORDER, Order),
        (Order(UUID(int=8), [], datetime(2026, 1, 1), next=ORDER), Order),
        ([LINE], list[Line]),
        ({"a": [LINE]}, dict[str, list[Line]]),
        ((LINE, 1), tuple[Line, int]),
        ((LINE, LINE), tuple[Line, ...]),
        (LINE, Line | None),
        (None, Line | None),
        (LINE, Annotated[Line, "note"]),
        ({Colour.RED: LINE}, dict[Colour, Line]),
        (Model(ID=1, amount=Decimal("2.50"), lines=[Colour.RED]), Model),
        ([Model(ID=1, amount=Decimal("2.50"), lines=[])], list[Model]),
    ],
)
def test_round_trip(value: Any, annotation: Any) -> None:
    decoded = round_trip(value, annotation)
    assert decoded == value
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value) or isinstance(value, set | frozenset)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    | st.binary() | st.decimals(allow_nan=False, allow_infinity=False) | st.uuids() | st.datetimes() | st.timedeltas(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("$"), inner) | st.tuples(inner, inner),
    max_leaves=10,
)  # fmt: skip


@given(JSON.filter(lambda value: "\\ud" not in json.dumps(value, default=repr)))
def test_any_plain_value_comes_back_equal(value: Any) -> None:
    assert round_trip(value) == value


class Plain:
    """Neither a dataclass, an enum nor a model."""


@pytest.mark.fault(67)
@each_row(
    ("value", "annotation", "complaint"),
    [
        (float("nan"), None, "nan"),
        ([float("inf")], None, "inf"),
        (Plain(), Plain, "neither a dataclass"),
        (LINE, None, "annotation names exactly that class"),
        (LINE, dict, "annotation names exactly that class"),
        ([LINE], list, "annotation names exactly that class"),
        (Colour.RED, str, "annotation names exactly that class"),
        ({"a": object()}, None, "object"),
    ],
)
def test_results_that_could_not_come_back_equal_are_refused(value: Any, annotation: Any, complaint: str) -> None:
    with pytest.raises(ResultNotEncodable, match=complaint):
        CODEC.encode(value, annotation)


@pytest.mark.fault(71)
def test_a_stored_name_is_never_imported() -> None:
    body = json.dumps({"$": ["object", "os.system", {"command": "true"}]}).encode()
    with pytest.raises(ResultUnreadable):
        CODEC.decode(StoredResult(body, "application/vnd.retrysafe+json", 1), Order)


@pytest.mark.fault(71, 72)
@each_row(
    "stored",
    [
        StoredResult(b"1", "application/vnd.retrysafe+json", 2),
        StoredResult(b"1", "application/x-pickle", 1),
        StoredResult(b"not json", "application/vnd.retrysafe+json", 1),
        StoredResult(b'{"$": ["future"]}', "application/vnd.retrysafe+json", 1),
        StoredResult(b'{"$": 5}', "application/vnd.retrysafe+json", 1),
        StoredResult(b'{"$": ["decimal", "x"]}', "application/vnd.retrysafe+json", 1),
    ],
)
def test_bytes_that_this_version_cannot_read_are_a_typed_error(stored: StoredResult) -> None:
    with pytest.raises(ResultUnreadable):
        CODEC.decode(stored, None)


def test_a_withheld_result_is_told_apart_from_one_that_cannot_be_read() -> None:
    with pytest.raises(ResultNotEncodable, match="withheld"):
        CODEC.decode(StoredResult(None, "", 0), None)
