"""Fingerprints: versioned, and able to say which part differed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.protocol import canonical, fingerprint
from tests.tables import each_row


def of_payload(value: Any) -> bytes:
    return fingerprint.of_payload(value).plain


def of_parts(parts: dict[str, bytes]) -> bytes:
    return fingerprint.of_parts(parts).plain


def agree(stored: bytes, given: fingerprint.Fingerprint) -> bool:
    return fingerprint.Secrets().agree(stored, given, b"")


PARTS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=5), max_size=4
)


@given(one=PARTS, other=PARTS)
def test_fingerprints_are_equal_exactly_when_the_parts_are(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (of_parts(one) == of_parts(other)) == (one == other)


@given(one=PARTS, other=PARTS)
def test_the_parts_that_differ_are_named(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    assert fingerprint.differing(of_parts(one), of_parts(other)) == tuple(names)


def test_the_order_of_parts_does_not_matter() -> None:
    """spring-modulith #556: field order breaks completion."""
    assert of_parts({"a": b"1", "b": b"2"}) == of_parts({"b": b"2", "a": b"1"})


@pytest.mark.fault(70)
def test_the_layout_is_version_name_and_full_digest() -> None:
    found = of_parts({"body": b"x"})
    assert found == b"\x01\x00\x04body" + hashlib.sha256(b"x").digest()


def test_no_parts_are_not_the_same_as_no_check() -> None:
    assert of_parts({}) != fingerprint.UNCHECKED


def test_fingerprints_of_two_versions_differ_in_every_part() -> None:
    one = of_parts({"a": b"1", "b": b"2"})
    assert fingerprint.differing(one, b"\x04" + one[1:]) == ("a", "b")


def test_an_unchecked_fingerprint_differs_in_every_part_of_the_other() -> None:
    assert fingerprint.differing(fingerprint.UNCHECKED, of_parts({"a": b"1"})) == ("a",)


def test_a_fingerprint_of_an_unknown_layout_can_still_be_compared() -> None:
    """Two versions of retrysafe are live during a deployment (fault 83): the answer is KeyReused, not a crash."""
    assert fingerprint.differing(b"\x04\x00\x05\xff\xff", of_parts({"a": b""})) == ("a",)


# ---------------------------------------------------------------- payloads

NAMES = st.sampled_from(["a", "b", "payload", "a.b", "x-id", "", "me@example.org", "ab"])
LEAVES = st.none() | st.integers(0, 2) | st.sampled_from(["", "a", "*"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


@given(one=VALUES, other=VALUES)
def test_payloads_have_equal_fingerprints_exactly_when_they_are_equal(one: Any, other: Any) -> None:
    same = canonical.of_value(one) == canonical.of_value(other)
    assert (of_payload(one) == of_payload(other)) == same


@each_row(
    ("one", "other"),
    [
        (1, {"payload": 1}),
        ({"a.b": 1}, {"a": {"b": 1}}),
        ({}, None),
        ({"a": {}}, {"a": []}),
        ({"a": {"b": 1}}, {"a": 1}),
    ],
)
def test_payloads_that_differ_in_form_alone_differ(one: Any, other: Any) -> None:
    assert of_payload(one) != of_payload(other)


@given(st.dictionaries(st.sampled_from("abcdefgh"), VALUES, max_size=8), st.integers(0, 9))
def test_splitting_stays_unambiguous_where_it_is_given_up(payload: dict[str, Any], most: int) -> None:
    other = {**payload, "a": ["another"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "MOST_PARTS", most)
        assert of_payload(payload) != of_payload(other)
        assert of_payload(dict(reversed(payload.items()))) == of_payload(payload)
        assert len(fingerprint._parts(of_payload(payload))) <= max(most, 1)


@dataclass
class Order:
    amount: int
    lines: tuple[str, ...] = ()


def named(one: Any, other: Any) -> tuple[str, ...]:
    return fingerprint.differing(of_payload(one), of_payload(other))


def test_fields_and_their_fields_are_named() -> None:
    one = {"method": "POST", "path": "/a", "body": {"amount": 1, "to": "x"}}
    assert named(one, {**one, "method": "PUT", "body": {"amount": 2, "to": "x"}}) == ("body.amount", "method")
    assert named(one, {**one, "body": {"amount": 1}}) == ("body.to",)
    assert named({"order": Order(1)}, {"order": Order(2)}) == ("order.amount",)
    assert named(Order(1), Order(1, ("line",))) == ("lines",)
    assert named({"body": {}}, {"body": {"amount": 1}}) == ("body", "body.amount")
    assert named([1], [2]) == ("payload",)


def test_a_dataclass_is_the_mapping_of_its_fields() -> None:
    for one, other in ((Order(1), {"lines": [], "amount": 1}), ({"o": Order(1)}, {"o": {"lines": [], "amount": 1}})):
        assert agree(of_payload(one), fingerprint.of_payload(other))
        assert agree(of_payload(other), fingerprint.of_payload(one))


class Colour(StrEnum):
    RED = "red"


@each_row("names", ["me@example.org", "4111 1111", "a.b", "x" * 65, 7, Colour.RED])
def test_invalid_field_names_are_not_kept(names: Any) -> None:
    """The keys of a table may be data themselves, and names are stored as they are."""
    for payload, name in (({names: 1}, b"payload"), ({"limits": {names: 1}}, b"limits")):
        body = of_payload(payload)
        assert body[:-32] == b"\x01" + len(name).to_bytes(2, "big") + name


def test_a_fingerprint_is_bounded() -> None:
    wide = {f"field{i}": {f"f{j}": j for j in range(9)} for i in range(64)}
    assert len(fingerprint._parts(of_payload(wide))) == 64
    assert named(wide, {**wide, "field7": {}}) == ("field7",)
    assert named({**wide, "more": 1}, {**wide, "more": 2}) == ("payload",)


def test_a_part_that_one_has_more_is_the_only_one_that_differs() -> None:
    one, other = {"a": b"1", "c": b"3"}, {"a": b"1", "b": b"2", "c": b"3"}
    assert fingerprint.differing(of_parts(one), of_parts(other)) == ("b",)
    assert fingerprint.differing(of_parts({"a": b"1"}), of_parts(one)) == ("c",)
    assert fingerprint.names(of_parts(other)) == ("a", "b", "c")


def test_as_many_fields_as_may_be_are_parts_and_names_may_have_dashes() -> None:
    most = {f"f{i}": {"x-y": i} for i in range(fingerprint.MOST_PARTS)}
    assert "f0.x-y" in fingerprint.names(of_payload(most))
    assert "f0" in fingerprint.names(of_payload({**most, "f0": {"x": 1, "y": 2}}))
    assert fingerprint.names(of_payload({"a" * 64: 1})) == ("a" * 64,)
    assert fingerprint.names(of_payload({"a" * 65: 1})) == (fingerprint.WHOLE,)


def test_a_member_of_an_enum_is_one_value_whatever_it_is_made_of() -> None:
    @dataclass(frozen=True)
    class Price:
        amount: int

    class Prices(Price, Enum):
        LOW = 1

    assert canonical.members_of(Prices.LOW) is None
    assert fingerprint.names(of_payload({"price": Prices.LOW})) == ("price",)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.decimals(places=1), st.lists(st.integers(0, 2), max_size=2), st.dictionaries(st.sampled_from("ab"), st.none()),
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["key", "amount", "a.b", "x"]), st.tuples(VALUES, VALUES, st.booleans())),
    st.sampled_from([0, 2, 64]),
)
def test_fields_that_are_known_before_count_as_they_always_do(given: dict[str, Any], most: int) -> None:
    values = {name: value for name, (value, _, _) in given.items()}
    defaults = {name: value if same else other for name, (value, other, same) in given.items() if same or other}

    def outcome(of: Callable[[], Any]) -> object:
        try:
            return of()
        except canonical.NotCanonical as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "MOST_PARTS", most)
        known = fingerprint.Fields(("self", *values), defaults, left_out={"self"})
        given_ = (object(), *values.values())
        assert outcome(lambda: known.of(given_).plain) == outcome(lambda: fingerprint.of_fields(values, defaults).plain)


class Odd(dict[Any, Any]):
    """A mapping that is looked at in detail."""


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.uuids()
NAMES = st.sampled_from(["order", "unit-price", "a.b", "", "1st", "päckchen", "x" * 65]) | st.text(max_size=3)


@given(st.dictionaries(NAMES | st.integers(), SIMPLE | st.lists(st.integers(), max_size=2), max_size=4))
def test_a_dict_has_the_fingerprint_of_any_mapping_with_its_members(given_: dict[Any, Any]) -> None:
    def outcome(value: Any) -> tuple[bytes, str]:
        try:
            return of_payload(value), ""
        except canonical.NotCanonical as error:
            return b"", str(error)

    assert outcome(given_) == outcome(Odd(given_))


@each_row("size", [0, 1, 64, 65])
def test_a_dict_of_any_size_has_the_fingerprint_of_any_mapping_with_its_members(size: int) -> None:
    fields = {f"field{number}": number for number in range(size)}
    assert of_payload(fields) == of_payload(Odd(fields))
