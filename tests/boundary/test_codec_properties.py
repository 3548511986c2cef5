"""All values that the codec takes come back strictly the same: over generated classes, values and annotations."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import Field, create_model

from retrysafe import JSONCodec, ResultNotEncodable
from retrysafe.claims.differences import difference

CODEC = JSONCodec()
ZONES = st.sampled_from([None, timezone.utc, timezone(timedelta(hours=-3, minutes=30)), ZoneInfo("Europe/Berlin")])  # noqa: UP017
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


class Typed(NamedTuple):
    """An annotation, and the values that fit it."""

    annotation: Any
    values: st.SearchStrategy[Any]


SCALARS = [
    Typed(type(None), st.none()),
    Typed(bool, st.booleans()),
    Typed(int, st.integers()),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False)),
    Typed(str, TEXT),
    Typed(bytes, st.binary(max_size=5)),
    Typed(Any, st.decimals(allow_nan=False, allow_infinity=False)),
    Typed(Any, st.datetimes(timezones=ZONES)),
    Typed(Any, st.times(timezones=ZONES)),
    Typed(Any, st.timedeltas() | st.dates() | st.uuids()),
]

Colour = enum.Enum("Colour", ["RED", "GREEN"])
Right = enum.Flag("Right", ["READ", "WRITE", "RUN"])
ENUMS = [
    Typed(Colour, st.sampled_from(list(Colour))),
    Typed(Right, st.integers(0, 7).map(Right)),
]


def _containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda one: Typed(list[one.annotation], st.lists(one.values, max_size=3))),
        inner.map(
            lambda one: Typed(dict[str, one.annotation], st.dictionaries(TEXT | st.just("$"), one.values, max_size=3))
        ),
        st.tuples(inner, inner).map(_pair),
        st.tuples(inner, inner).map(_union),
        st.lists(inner, min_size=1, max_size=3).flatmap(_classes),
    )


def _pair(two: tuple[Typed, Typed]) -> Typed:
    return Typed(tuple[two[0].annotation, two[1].annotation], st.tuples(two[0].values, two[1].values))


def _union(two: tuple[Typed, Typed]) -> Typed:
    return Typed(two[0].annotation | two[1].annotation if _joins(two) else Any, two[0].values | two[1].values)


def _joins(two: tuple[Typed, Typed]) -> bool:
    return all(one.annotation is not Any for one in two)


def _classes(members: list[Typed]) -> st.SearchStrategy[Typed]:
    return st.sampled_from([_dataclass, _computing, _model, _aliased]).map(lambda make: make(members))


def _names(members: list[Typed]) -> dict[str, Typed]:
    return {f"f{place}": member for place, member in enumerate(members)}


def _dataclass(members: list[Typed]) -> Typed:
    named = _names(members)
    made = dataclasses.make_dataclass("Made", [(name, one.annotation) for name, one in named.items()], eq=False)
    return Typed(made, st.builds(made, **{name: one.values for name, one in named.items()}))


def _computing(members: list[Typed]) -> Typed:
    """A dataclass that does with what it is given what it must not do twice."""

    def compute(self: Any) -> None:
        self.count = getattr(self, "count", 0) + 1
        self.f0 = [self.f0]

    named = _names(members)
    fields: list[Any] = [
        (name, list[one.annotation] if name == "f0" else one.annotation) for name, one in named.items()
    ]
    fields.append(("count", int, dataclasses.field(default=0)))
    made = dataclasses.make_dataclass("Computing", fields, namespace={"__post_init__": compute})
    return Typed(made, st.builds(made, **{name: one.values for name, one in named.items()}, count=st.integers()))


def _model(members: list[Typed], **options: Callable[[str], Any]) -> Typed:
    named = _names(members)
    fields: dict[str, Any] = {
        name: (one.annotation, Field(**{option: of(name) for option, of in options.items()}))
        for name, one in named.items()
    }
    made: Any = create_model("Model", **fields)
    values = st.fixed_dictionaries({name: one.values for name, one in named.items()})
    return Typed(made, values.map(lambda given: made.model_construct(**given)))


def _aliased(members: list[Typed]) -> Typed:
    return _model(members, validation_alias=lambda name: name + "In", serialization_alias=lambda name: name + "Out")


TYPED = st.recursive(st.sampled_from(SCALARS + ENUMS), _containers, max_leaves=6)


@given(st.data())
def test_accepted_values_come_back_strictly_the_same(data: st.DataObject) -> None:
    annotation, values = data.draw(TYPED)
    value = data.draw(values)
    try:
        stored = CODEC.encode(value, annotation)
    except ResultNotEncodable:
        assume(False)
    assert difference(value, CODEC.decode(stored, annotation)) is None
    assert repr(CODEC.decode(stored, annotation)) == repr(value)


@given(st.data())
def test_data_without_models_is_always_taken(data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from(SCALARS + ENUMS), min_size=1, max_size=4))
    annotation, values = _dataclass(members)
    value = data.draw(st.lists(values, max_size=3))
    decoded = CODEC.decode(CODEC.encode(value, list[annotation]), list[annotation])
    assert difference(value, decoded) is None


@given(st.data())
def test_two_values_without_a_difference_are_written_the_same(data: st.DataObject) -> None:
    """The comparison is no weaker than the bytes: what it lets pass could be told apart by nobody who reads them."""
    annotation, values = data.draw(TYPED)
    one, other = data.draw(values), data.draw(values)
    if difference(one, other) is not None:
        return
    try:
        stored = CODEC.encode(one, annotation)
    except ResultNotEncodable:
        return
    assert stored == CODEC.encode(other, annotation)
