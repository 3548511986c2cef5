"""Keys: what is accepted, how they are looked up, and what is derived from them."""

from __future__ import annotations

import hmac
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe import content_key
from retrysafe.errors import InvalidKey
from retrysafe.protocol import keys
from tests.tables import each_row

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
PART = st.tuples(TEXT, TEXT, TEXT, TEXT)


@each_row("key", ["", "a" * 256, "a\x00b", "line\nfeed", "\x7f", "\x85", "\ud800", "tab\t"])
def test_a_malformed_key_is_refused(key: str) -> None:
    """An empty id forks ghosts (DBOS #759)."""
    with pytest.raises(InvalidKey):
        keys.parse(key)


@each_row("key", [None, True, 1.5, b"bytes", ["a"], object()])
def test_a_key_of_another_type_is_refused(key: object) -> None:
    with pytest.raises(InvalidKey):
        keys.parse(key)


def test_keys_are_opaque_text() -> None:
    assert keys.parse("a") == "a"
    assert keys.parse(" spaces count ") == " spaces count "
    assert keys.parse("é" * 255) == "é" * 255
    assert keys.parse("\u200b\u2028") == "\u200b\u2028"
    assert keys.parse(-7) == "-7"
    assert keys.parse(0) == "0"
    assert keys.parse(UUID(int=1)) == "00000000-0000-0000-0000-000000000001"


@given(TEXT)
def test_every_key_is_kept_as_it_is_or_refused(text: str) -> None:
    control = any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
    if not text or control:
        with pytest.raises(InvalidKey):
            keys.parse(text)
    else:
        assert keys.parse(text) == text


@given(one=PART, other=PART)
def test_two_identities_meet_only_when_they_are_equal(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    assert (keys.lookup(None, *one) == keys.lookup(None, *other)) == (one == other)


def test_characters_do_not_move_from_one_part_to_the_next() -> None:
    parts = {
        keys.lookup(None, "ab", "c", "d", "e"),
        keys.lookup(None, "a", "bc", "d", "e"),
        keys.lookup(None, "ab", "", "cd", "e"),
        keys.lookup(None, "ab", "c", "", "de"),
        keys.lookup(None, "", "abc", "d", "e"),
    }
    assert len(parts) == 5


@pytest.mark.fault(74)
def test_a_tenant_that_guesses_a_key_finds_nothing() -> None:
    assert keys.lookup(None, "b", "tenant 1", "op", "key") != keys.lookup(None, "b", "tenant 2", "op", "key")
    assert keys.lookup(b"secret", "b", "s", "op", "key") != keys.lookup(None, "b", "s", "op", "key")


@pytest.mark.fault(69)
def test_unicode_forms_are_two_keys() -> None:
    assert keys.lookup(None, "b", "", "op", "é") != keys.lookup(None, "b", "", "op", "e\u0301")


@pytest.mark.fault(70)
def test_stored_hashes_stay_as_they_are_for_ever() -> None:
    """Changing these makes every stored key unknown: that needs a new version and a migration."""
    found = keys.lookup(None, "boundary", "scope", "operation", "key")
    assert len(found) == 32
    assert found.hex() == LOOKUP
    assert keys.derive(None, found, "stripe") == DERIVED


LOOKUP = "557a6b6bc2dfa204c5318ee243f7337f5593226cf3a57943992cdf9aa1911ef6"
DERIVED = "c4f8bef9-55bb-4e80-8d28-0d4af1f83fec"


def test_derived_keys_depend_on_key_and_name_and_secret_alone() -> None:
    record_key = keys.lookup(None, "b", "", "op", "key")
    derived = keys.derive(None, record_key, "stripe")
    assert derived == keys.derive(None, record_key, "stripe")
    others = {
        keys.derive(None, record_key, "mail"),
        keys.derive(b"secret", record_key, "stripe"),
        keys.derive(None, keys.lookup(None, "b", "", "op", "other"), "stripe"),
    }
    assert len(others | {derived}) == 4
    assert str(UUID(derived)) == derived
    assert UUID(derived).version == 4
    assert UUID(derived).variant == RFC_4122
    assert record_key.hex() not in derived


TAKES = {
    "Adyen, Idempotency-Key": r".{1,64}",
    "Square, idempotency_key": r".{1,45}",
    "AWS, ClientToken": r"[!-~]{1,64}",
    "Google (AIP-155), request_id": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "Stripe, Idempotency-Key": r".{1,255}",
}
"""The keys that providers take, from their reference pages."""


@each_row("takes", TAKES.values(), ids=list(TAKES))
def test_every_provider_takes_a_derived_key(takes: str) -> None:
    record_key = keys.lookup(None, "b", "", "op", "key")
    for name in ("charge", "", "x" * 1000, *map(str, range(64))):
        assert re.fullmatch(takes, keys.derive(None, record_key, name))


def test_a_redacted_key_shows_only_the_beginning_of_its_hash() -> None:
    record_key = keys.lookup(None, "b", "", "op", "customer@example.org")
    assert keys.redact(record_key) == record_key.hex()[:8]


@each_row("secret", [None, b"s", bytes(range(64)), bytes(range(65)), bytes(200)])
def test_a_hash_that_is_kept_for_many_keys_is_hmac(secret: bytes | None) -> None:
    """RFC 2104: a secret that is longer than a block is hashed first."""
    lookup = keys.Lookup(secret, "shop", "tenant", "pay")
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (b"lookup.v1", b"shop", b"tenant", b"pay", b"k"))
    assert lookup.of("k") == lookup.of("k") == hmac.digest(secret or b"retrysafe", message, "sha256")


def test_a_key_from_content_is_the_same_for_equal_content_and_for_ever() -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    golden = "c1-1068aeae1ebd35e02caf2a5fd685820a00b6d969864b1b3eb0ffaff3cf51f11f"
    assert content_key("alice", 17, date(2026, 5, 1)) == golden, "the form has changed: give it another version"
    assert content_key({"a": 1, "b": {2, 3}}) == content_key({"b": {3, 2}, "a": 1})
    assert content_key(noon) == content_key(noon.astimezone(timezone(timedelta(hours=2))))
    apart = [
        (1,),
        ("1",),
        (1.0,),
        (True,),
        (Decimal(1), None),
        ("ab", "c"),
        ("a", "bc"),
        (("ab", "c"),),
        ("é",),
        ("e\u0301",),
    ]
    assert len({content_key(*parts) for parts in apart}) == len(apart)
    for parts in ((), (object(),), (float("nan"),)):
        with pytest.raises(InvalidKey, match="content_key"):
            content_key(*parts)
