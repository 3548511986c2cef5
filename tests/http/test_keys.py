"""The Idempotency-Key field: K1 to K5 and K11 of the contract, without a server."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.errors import InvalidKey
from retrysafe.http import key_header
from retrysafe.protocol.keys import LONGEST
from tests.tables import each_row

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=LONGEST)


@each_row("line", [b'"k-1"', b'"k-1";v=1', b'"k-1" ; a; b="x;y"; c=?1', b' "k-1"\t', b'"k-1";d=:aGk=:'])
def test_k1_a_structured_string_is_the_key_and_its_parameters_are_ignored(line: bytes) -> None:
    assert key_header.parse([line], "strict") == "k-1"


def test_k1_escapes_are_undone() -> None:
    assert key_header.parse([rb'"a\"b\\c"'], "lenient") == 'a"b\\c'


@given(PRINTABLE)
def test_k1_every_printable_key_can_be_sent_quoted(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert key_header.parse([quoted.encode()], "strict") == key


def test_k2_a_bare_key_is_the_same_key() -> None:
    assert key_header.parse([b"k-1"], "lenient") == key_header.parse([b'"k-1"'], "lenient")


def test_k2_strict_syntax_takes_only_the_quoted_form() -> None:
    with pytest.raises(InvalidKey, match="quoted"):
        key_header.parse([b"k-1"], "strict")


@each_row("lines", [[b"a", b"b"], [b"a", b"a"], [b'"a"', b'"b"'], [b"a,b"], [b"a, a"]])
def test_k3_two_values_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(InvalidKey):
        key_header.parse(lines, "lenient")


def test_k3_a_comma_inside_quotes_is_part_of_the_key() -> None:
    assert key_header.parse([b'"a,b"'], "lenient") == "a,b"


@each_row(
    "line",
    [
        b"",
        b" ",
        b'""',
        b"a" * (LONGEST + 1),
        b'"' + b"a" * (LONGEST + 1) + b'"',
        b"caf\xe9",
        b"a\x00",
        b"a b",
        b'"\x7f"',
    ],
)
def test_k4_impossible_keys_are_refused(line: bytes) -> None:
    with pytest.raises(InvalidKey):
        key_header.parse([line], "lenient")


def test_k4_the_longest_key() -> None:
    assert key_header.parse([b"a" * LONGEST], "lenient") == "a" * LONGEST


@each_row("line", [b'"', b'"a', b'"a""', b'"a"b', b'"a",', b'"a";', b'"a";A=1', rb'"a\n"', b'"a" "b"'])
def test_k5_a_malformed_structured_string_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidKey, match="structured"):
        key_header.parse([line], "lenient")


@given(st.binary(max_size=40))
def test_k5_no_line_at_all_runs_unprotected(line: bytes) -> None:
    with suppress(InvalidKey):
        assert key_header.parse([line], "lenient")


def test_no_line_is_no_key() -> None:
    assert key_header.parse([], "strict") is None


UUIDS = ["3f0c8a52-9d7e-4b61-a1c4-5a2f6f1e7d90", "3F0C8A529D7E4B61A1C45A2F6F1E7D90"]
ULIDS = ["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav"]
GUESSABLE = ["1", "order-17", "2026-11-20", "20261120153000123456", "aaaaaaaaaaaaaaaaaaaaaaaa", "0000000000000000000"]
GUESSABLE += [f"00000000-0000-4000-8000-{end}" for end in ("000000000000", "000000000017")]


@each_row("key", [*UUIDS, *ULIDS])
@each_row("policy", ["any", "uuid", "strong"])
def test_k11_uuids_and_ulids_pass_every_policy(key: str, policy: key_header.KeyPolicy) -> None:
    key_header.check(key, policy)


@each_row(
    "key",
    [*GUESSABLE, "01ARZ3NDEK0000000000000017", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "{3f0c8a52-9d7e-4b61-a1c4-5a2f6f1e7d90}"],
)
def test_k11_uuid_means_uuid(key: str) -> None:
    with pytest.raises(InvalidKey, match="UUID"):
        key_header.check(key, "uuid")


@each_row("key", GUESSABLE)
def test_k11_strong_refuses_what_can_be_guessed(key: str) -> None:
    with pytest.raises(InvalidKey, match="guessed"):
        key_header.check(key, "strong")
    key_header.check(key, "any")


def test_k11_strong_takes_random_characters() -> None:
    key_header.check("Zk3vQ9xLr7TfWm2Y", "strong")
