"""Fingerprints: versioned, and able to say which part differed."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core import fingerprint

PARTS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.binary(max_size=5), max_size=4
)


@given(one=PARTS, other=PARTS)
def test_fingerprints_are_equal_exactly_when_the_parts_are(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (fingerprint.of_parts(one) == fingerprint.of_parts(other)) == (one == other)


@given(one=PARTS, other=PARTS)
def test_the_parts_that_differ_are_named(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    assert fingerprint.differing(fingerprint.of_parts(one), fingerprint.of_parts(other)) == tuple(names)


def test_the_order_of_parts_does_not_matter() -> None:
    """spring-modulith #556: field order breaks completion."""
    assert fingerprint.of_parts({"a": b"1", "b": b"2"}) == fingerprint.of_parts({"b": b"2", "a": b"1"})


def test_the_layout_is_version_name_and_full_digest() -> None:
    found = fingerprint.of_parts({"body": b"x"})
    assert found == b"\x01\x00\x04body" + hashlib.sha256(b"x").digest()


def test_no_parts_are_not_the_same_as_no_check() -> None:
    assert fingerprint.of_parts({}) != fingerprint.UNCHECKED


def test_fingerprints_of_two_versions_differ_in_every_part() -> None:
    one = fingerprint.of_parts({"a": b"1", "b": b"2"})
    assert fingerprint.differing(one, b"\x02" + one[1:]) == ("a", "b")


def test_an_unchecked_fingerprint_differs_in_every_part_of_the_other() -> None:
    assert fingerprint.differing(fingerprint.UNCHECKED, fingerprint.of_parts({"a": b"1"})) == ("a",)


def test_a_fingerprint_of_an_unknown_layout_can_still_be_compared() -> None:
    """Two versions of retrysafe are live during a deployment (fault 83): the answer is KeyReused, not a crash."""
    assert fingerprint.differing(b"\x02\x00\x05\xff\xff", fingerprint.of_parts({"a": b""})) == ("a",)
