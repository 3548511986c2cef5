"""Encrypted answers: unreadable in the store, bound to their record, readable again by whoever has the key."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    Claim,
    ConfigurationError,
    Event,
    Keyring,
    ResultNotEncodable,
    ResultUnreadable,
    StoredFailure,
    StoredResult,
)
from retrysafe.admin.archive import JsonLines
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.claims.encryption import _Xaes
from retrysafe.claims.sealing import FORMAT, MEDIA_TYPE, OVERHEAD, Bound, label_of
from retrysafe.protocol.records import State
from tests.boundary.shops import Shop
from tests.tables import each_row

SECRET = "card 4111 1111 1111 1111"
KEYS = {name: hashlib.sha256(name.encode()).digest() for name in ("old", "new", "other")}
BOUND = Bound("charges", "tenant", "charge", bytes(32), State.COMPLETED)
ANSWER = StoredResult(b"the answer", "application/json", 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def boundary(file: Path, keyring: Keyring | None, name: str = "charges", **terms: Any) -> Boundary:
    return Boundary(name, store=f"sqlite:///{file}", encryption=keyring, **{"observers": (), **terms})


def ring(*names: str, **options: Any) -> Keyring:
    return Keyring({name: KEYS[name] for name in names}, **options)


def charge(made: Boundary, key: str = "k", *, answer: Any = SECRET, **named: Any) -> tuple[bool, Any]:
    """Charge under a key: whether that was a replay, and the answer."""
    with made.claim(key, **named) as claim:
        if not claim.replayed:
            claim.result = answer
        return claim.replayed, claim.result


def change(file: Path, sql: str) -> int:
    with closing(sqlite3.connect(file)) as database, database:
        return database.execute(sql).rowcount


def rows(file: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT * FROM retrysafe_records ORDER BY key_hash").fetchall()


def in_the_file(file: Path, text: str) -> bool:
    """Tell whether a text is anywhere in the database or its journal."""
    return any(text.encode() in path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


# ---------------------------------------------------------------- the cipher


NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"


@each_row(
    ("key", "associated", "expected"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03" * 32, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_cipher_is_the_published_one(key: bytes, associated: bytes, expected: str) -> None:
    encrypted = _Xaes(key).encrypt(NONCE, b"XAES-256-GCM", associated)
    assert encrypted.hex() == expected
    assert _Xaes(key).decrypt(NONCE, encrypted, associated) == b"XAES-256-GCM"


def test_the_cipher_passes_the_ten_thousand_published_iterations() -> None:
    """c2sp.org/XAES-256-GCM, "Accumulated randomized test vectors"."""
    stream, at = hashlib.shake_128(b"").digest(1 << 22), 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return stream[at - count : at]

    accumulated = hashlib.shake_128()
    for _ in range(10_000):
        key, nonce = take(32), take(24)
        plain = take(take(1)[0])
        associated = take(take(1)[0])
        accumulated.update(_Xaes(key).encrypt(nonce, plain, associated))
    expected = "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"
    assert accumulated.digest(32).hex() == expected


# ---------------------------------------------------------------- what is sealed


def test_a_sealed_answer_opens_for_its_record() -> None:
    sealed = ring("new").seal(ANSWER, BOUND)
    assert (sealed.media_type, sealed.codec_version) == (MEDIA_TYPE, FORMAT)
    assert ANSWER.body is not None
    assert ANSWER.body not in (sealed.body or b"")
    assert ring("new").open(sealed, BOUND) == ANSWER
    assert label_of(sealed)[:3] == ("new", "application/json", 3)


def test_no_two_are_sealed_alike() -> None:
    keyring = ring("new")
    assert len({keyring.seal(ANSWER, BOUND).body for _ in range(100)}) == 100


@each_row(
    "elsewhere",
    [
        BOUND._replace(boundary="refunds"),
        BOUND._replace(scope="another tenant"),
        BOUND._replace(operation="refund"),
        BOUND._replace(key=bytes(31) + b"\x01"),
        BOUND._replace(state=State.FAILED),
        BOUND._replace(boundary="charge", scope="stenant"),
    ],
)
def test_a_sealed_answer_opens_nowhere_else(elsewhere: Bound) -> None:
    sealed = ring("new").seal(ANSWER, BOUND)
    with pytest.raises(ResultUnreadable, match="altered, or belongs to another record"):
        ring("new").open(sealed, elsewhere)


def test_no_bit_of_it_can_be_changed() -> None:
    """Key id, media type, codec version, nonce, body and tag."""
    sealed = ring("new", "old").seal(ANSWER, BOUND)
    body = sealed.body or b""
    for place in range(len(body)):
        for bit in (1, 128):
            altered = body[:place] + bytes((body[place] ^ bit,)) + body[place + 1 :]
            with pytest.raises(ResultUnreadable):
                ring("new", "old").open(sealed._replace(body=altered), BOUND)


def test_nothing_can_be_cut_off_or_added() -> None:
    sealed = ring("new").seal(ANSWER, BOUND)
    body = sealed.body or b""
    for altered in (*(body[:size] for size in range(len(body))), body + b"\x00"):
        with pytest.raises(ResultUnreadable):
            ring("new").open(sealed._replace(body=altered), BOUND)


def test_another_format_is_not_guessed_at() -> None:
    sealed = ring("new").seal(ANSWER, BOUND)._replace(codec_version=FORMAT + 1)
    with pytest.raises(ResultUnreadable, match="format 2; this retrysafe reads format 1"):
        ring("new").open(sealed, BOUND)


def test_a_withheld_answer_has_nothing_to_hide() -> None:
    withheld = StoredResult(None, "", 0)
    assert ring("new").open(ring("new").seal(withheld, BOUND), BOUND) == withheld


# ---------------------------------------------------------------- keyrings


def test_a_keyring_is_made_of_bytes_base64_text_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = ring("new").seal(ANSWER, BOUND)
    texts = {name: base64.b64encode(key).decode() for name, key in KEYS.items()}
    monkeypatch.setenv("SHOP_KEYS", f"old:{texts['old']},\n new:{texts['new']}")
    for keyring in (
        Keyring(texts),
        Keyring.from_text(f"new:{texts['new']} old:{texts['old']}"),
        Keyring.from_env("SHOP_KEYS"),
    ):
        assert keyring.open(sealed, BOUND) == ANSWER
    assert Keyring.from_env("SHOP_KEYS").ids == ("old", "new")
    assert Keyring.from_env("SHOP_KEYS").current == "old"


def test_a_generated_key_is_one_of_its_own() -> None:
    first, second = Keyring.generate(), Keyring.generate()
    assert first != second
    sealed = Keyring({"a": first}).seal(ANSWER, BOUND)
    with pytest.raises(ResultUnreadable):
        Keyring({"a": second}).open(sealed, BOUND)


@each_row(
    ("make", "said"),
    [
        (lambda: Keyring({}), "at least one key"),
        (lambda: Keyring({"a": b"short secret"}), "'a' has 12 bytes; it takes 32"),
        (lambda: Keyring({"a": "short secret"}), "'a' is not base64"),
        (lambda: Keyring({"a b": bytes(32)}), "letters, digits"),
        (lambda: Keyring({"a" * 65: bytes(32)}), "letters, digits"),
        (lambda: Keyring.from_text("short secret"), "no colon"),
        (lambda: Keyring.from_text(f"a:{Keyring.generate()} a:{Keyring.generate()}"), "two keys with the id 'a'"),
        (lambda: Keyring.from_env("RETRYSAFE_NO_SUCH_KEYS"), "RETRYSAFE_NO_SUCH_KEYS"),
        (lambda: Keyring({"a": bytes(32)}, unencrypted="perhaps"), "refuse, read"),  # type: ignore[arg-type]
        (lambda: Boundary("b", store="memory://", encryption="key"), "is a Keyring"),  # type: ignore[arg-type]
    ],
)
def test_faults_of_a_keyring_are_said_without_its_keys(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        make()
    assert "short secret" not in str(raised.value)


def test_a_keyring_does_not_show_its_keys() -> None:
    shown = repr(ring("new", "old"))
    assert shown == "Keyring(new, old)"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ConfigurationError, match=r"retrysafe\[crypto\]"):
        ring("new")


# ---------------------------------------------------------------- a boundary


def test_nothing_of_a_result_is_in_the_store(file: Path) -> None:
    made = boundary(file, ring("new"))
    assert charge(made) == (False, SECRET)
    assert charge(made) == (True, SECRET)
    assert not in_the_file(file, SECRET)
    made.close()


def test_nothing_of_a_failure_is_in_the_store(file: Path) -> None:
    made = boundary(file, ring("new"), permanent=ValueError)
    with pytest.raises(ValueError, match="4111"), made.claim("raised"):
        raise ValueError(SECRET)
    with made.claim("declared") as claim:
        claim.fail(ValueError(SECRET))
    for key in ("raised", "declared"):
        with pytest.raises(StoredFailure) as failure, made.claim(key):
            pytest.fail("it ran again")
        assert (failure.value.type, failure.value.message) == ("ValueError", SECRET)
    assert not in_the_file(file, SECRET)
    made.close()


def test_nothing_of_a_doubt_is_in_the_store(file: Path) -> None:
    made = boundary(file, ring("new"), effects="external")
    with pytest.raises(TimeoutError), made.claim("k"):
        raise TimeoutError(SECRET)
    assert not in_the_file(file, SECRET)
    assert made.resolve("k", "completed", result=SECRET)
    assert charge(made) == (True, SECRET)
    assert not in_the_file(file, SECRET)
    made.close()


async def test_results_of_a_person_or_a_probe_are_encrypted_too(file: Path) -> None:
    def probe(claim: Claim) -> None:
        claim.result = SECRET
        claim.committed()

    made = boundary(file, ring("new"), effects="external", probe=probe)
    for key in ("probed", "failed"):
        with pytest.raises(TimeoutError):
            async with made.claim(key):
                raise TimeoutError
    assert await made.aresolve("failed", "failed", result=SECRET)
    async with made.claim("probed") as claim:
        assert (claim.replayed, claim.result) == (True, SECRET)
    with pytest.raises(StoredFailure, match="4111"):
        async with made.claim("failed"):
            pytest.fail("it ran again")
    assert not in_the_file(file, SECRET)
    await made.aclose()


async def test_in_every_kind_of_transaction_and_on_every_store(shop: Shop) -> None:
    made = shop.boundary(effects="transactional", encryption=ring("new"))
    async with shop.transaction() as tx, shop.entered(made.claim("joined", tx=tx)) as claim:
        claim.result = SECRET
    async with shop.entered(made.claim("own")) as claim:
        claim.result = SECRET
    for key in ("joined", "own"):
        async with shop.entered(made.claim(key)) as claim:
            assert (claim.replayed, claim.result) == (True, SECRET)
    stripped = shop.boundary(name=made.name, effects="transactional")
    with pytest.raises(ResultUnreadable):
        async with shop.entered(stripped.claim("own")):
            pytest.fail("it ran again")


class Raw:
    """A codec with a media type of its own."""

    def __init__(self) -> None:
        self.read: list[StoredResult] = []

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        return StoredResult(value.encode(), "text/vnd.of-ours", 42)

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        self.read.append(stored)
        return (stored.body or b"").decode()


def test_any_codec_is_given_what_it_has_written(file: Path) -> None:
    codec = Raw()
    made = boundary(file, ring("new"), codec=codec)
    charge(made)
    codec.read.clear()  # it was read once to be compared, before it was encrypted
    assert charge(made) == (True, SECRET)
    assert codec.read == [StoredResult(SECRET.encode(), "text/vnd.of-ours", 42)]
    made.close()


# ---------------------------------------------------------------- keys that change


def test_keys_are_rotated_and_the_old_one_may_go_when_its_answers_are_forgotten(file: Path) -> None:
    made = boundary(file, ring("old"))
    charge(made, "before")
    made.close()
    made = boundary(file, ring("new", "old"))
    assert charge(made, "before") == (True, SECRET)
    charge(made, "after")
    made.close()
    made = boundary(file, ring("new"))
    assert charge(made, "after") == (True, SECRET)
    with pytest.raises(ResultUnreadable, match="with the key 'old', and the keyring has new"):
        charge(made, "before")
    made.close()


@pytest.mark.fault(72)
@pytest.mark.parametrize(
    ("keyring", "said"),
    [
        (None, "the key 'new', and the boundary has no encryption="),
        (ring("old"), "the key 'new', and the keyring has old"),
        (Keyring({"new": KEYS["other"]}), "cannot be decrypted with the key 'new'"),
    ],
)
@pytest.mark.parametrize("failing", [False, True])
def test_an_answer_that_cannot_be_read_is_never_made_again(
    file: Path, keyring: Keyring | None, said: str, failing: bool
) -> None:
    made = boundary(file, ring("new"))
    with made.claim("k", payload="p") as claim:
        claim.fail(ValueError(SECRET)) if failing else None
    before = rows(file)
    told: list[Event] = []
    without = boundary(file, keyring, observers=[told.append], codec=Raw())
    for _ in range(2):
        with pytest.raises(ResultUnreadable, match="Nothing was run again") as raised, without.claim("k", payload="p"):
            pytest.fail("it ran again")
        assert said in str(raised.value)
        assert (raised.value.boundary, raised.value.effect_happened) == ("charges", "maybe")
    assert [one.name for one in told] == ["received", "store_request", "unreadable"] * 2
    assert said in told[2].fields["reason"]
    assert rows(file) == before, "the record is as it was"
    made.close()
    without.close()


def test_results_from_before_encryption_are_refused_or_read(file: Path) -> None:
    made = boundary(file, None)
    charge(made, "before")
    made.close()
    made = boundary(file, ring("new"))
    with pytest.raises(ResultUnreadable, match="unencrypted='read'"):
        charge(made, "before")
    made.close()
    made = boundary(file, ring("new", unencrypted="read"))
    assert charge(made, "before") == (True, SECRET)
    charge(made, "after")
    made.close()
    made = boundary(file, ring("new"))
    assert charge(made, "after") == (True, SECRET)
    made.close()


# ---------------------------------------------------------------- who can write to the store


COPY = (
    "UPDATE retrysafe_records SET (result, media_type, codec_version) = "
    "(SELECT result, media_type, codec_version FROM retrysafe_records WHERE key_hash = x'{source}') "
    "WHERE key_hash = x'{target}'"
)


def hash_of(made: Boundary, key: str, **named: str) -> str:
    named.setdefault("operation", made.name)
    return made.entrypoint.open(key, fingerprint=b"", **named)._require_request().key.hex()


@pytest.mark.parametrize(
    "other", [{"key": "another"}, {"scope": "another"}, {"operation": "another"}, {"name": "another"}]
)
def test_an_answer_that_is_copied_to_another_record_does_not_open(file: Path, other: dict[str, str]) -> None:
    source: dict[str, str] = {"key": "k", "scope": "s", "operation": "o", "name": "charges"}
    target = source | other
    first = boundary(file, ring("new"), source.pop("name"))
    second = boundary(file, ring("new"), target.pop("name"))
    charge(first, **source)
    charge(second, **target)
    assert change(file, COPY.format(source=hash_of(first, **source), target=hash_of(second, **target))) == 1
    with pytest.raises(ResultUnreadable, match="altered, or belongs to another record"):
        charge(second, **target)
    assert charge(first, **source) == (True, SECRET)
    first.close()
    second.close()


def test_a_failure_cannot_be_made_a_result_nor_the_other_way_round(file: Path) -> None:
    made = boundary(file, ring("new"))
    with made.claim("failed") as claim:
        claim.fail(ValueError(SECRET))
    charge(made, "completed")
    assert change(file, "UPDATE retrysafe_records SET state = iif(state = 'failed', 'completed', 'failed')") == 2
    for key in ("failed", "completed"):
        with pytest.raises(ResultUnreadable):
            charge(made, key)
    made.close()


def test_an_answer_of_an_intruder_is_not_taken(file: Path) -> None:
    made = boundary(file, ring("new"))
    charge(made)
    change(
        file, "UPDATE retrysafe_records SET result = CAST('7' AS BLOB), media_type = 'application/vnd.retrysafe+json'"
    )
    with pytest.raises(ResultUnreadable, match="not encrypted"):
        charge(made)
    made.close()


# ---------------------------------------------------------------- around it


@pytest.mark.parametrize("over", [0, 1])
def test_room_for_encryption_is_kept_free(file: Path, monkeypatch: pytest.MonkeyPatch, over: int) -> None:
    most = 4000
    monkeypatch.setattr(SqliteStore, "capabilities", SqliteStore.capabilities._replace(largest_result=most))
    keyring = Keyring({"k" * 64: bytes(32)})
    made = boundary(file, keyring)
    assert made.entrypoint.largest_result == most - OVERHEAD
    answer = "x" * (most - OVERHEAD - 2 + over)  # and two quotes
    if over:
        with pytest.raises(ResultNotEncodable, match=f"keeps up to {most - OVERHEAD}"):
            charge(made, answer=answer)
    else:
        charge(made, answer=answer)
    (stored,) = rows(file)
    assert len(stored[16] or b"") <= most
    assert stored[17] == ("" if over else MEDIA_TYPE)
    made.close()


def test_the_overhead_covers_the_longest_names() -> None:
    keyring = Keyring({"k" * 64: bytes(32)})
    answer = StoredResult(b"", "m" * 255, -(2**31))
    sealed = keyring.seal(answer, BOUND)
    assert len(sealed.body or b"") <= OVERHEAD
    assert keyring.open(sealed, BOUND) == answer


def test_the_archive_stays_encrypted(file: Path) -> None:
    made = boundary(file, ring("new"))
    charge(made)
    change(file, "UPDATE retrysafe_records SET expires = 1, tombstone_until = 1")
    archive = file.parent / "archive.jsonl"
    Sweeper(f"sqlite:///{file}", archive=JsonLines(archive)).run_once()
    kept = archive.read_text()
    assert f'"media_type":"{MEDIA_TYPE}"' in kept
    assert base64.b64encode(SECRET.encode()).decode()[:-2] not in kept
    assert not rows(file)
    made.close()
