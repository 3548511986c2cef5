"""Fingerprints in a store: what a reader of rows learns of the payloads, and which older ones are compared."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from retrysafe import Boundary, KeyReused
from retrysafe.claims.encryption import Keyring
from retrysafe.errors import ResultUnreadable
from retrysafe.protocol import canonical, fingerprint
from tests.tables import each_row

SECRET = b"sixteen random bytes and more"
OLD, NEW = Keyring.generate(), Keyring.generate()
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a secret": {"secret": SECRET},
    "a keyring": {"encryption": Keyring({"old": OLD})},
    "both": {"secret": SECRET, "encryption": Keyring({"old": OLD})},
}


@dataclass
class Order:
    id: Any
    amount: int


PAYLOAD = {"amount": 4200, "card": "4111118273640005"}


def claimed(path: Path, key: str, payload: object, **settings: Any) -> bool:
    """Claim a key for a payload, as a process of its own would; whether that was a replay."""
    boundary = Boundary("pay", store=f"sqlite:///{path}", observers=(), **settings)
    try:
        with boundary.claim(key, payload=payload) as claim:
            if not claim.replayed:
                claim.result = "paid"
            return claim.replayed
    finally:
        boundary.close()


def stored(path: Path) -> list[bytes]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT fingerprint FROM retrysafe_records ORDER BY created")]


@each_row("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_row_has_no_plain_digest_and_no_value_that_another_row_has(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = tmp_path / "shop.db"
    assert not claimed(path, "one", PAYLOAD, **settings)
    assert not claimed(path, "two", PAYLOAD, **settings)
    assert claimed(path, "one", PAYLOAD, **settings)
    with pytest.raises(KeyReused, match=r"differs in: amount\."):
        claimed(path, "one", {**PAYLOAD, "amount": 1}, **settings)
    one, two = stored(path)
    assert fingerprint.names(one) == ("amount", "card")
    assert len(fingerprint.differing(one, two)) == 2
    for value in PAYLOAD.values():
        digest = hashlib.sha256(canonical.of_value(value)).digest()
        assert digest not in one + two
        with sqlite3.connect(path) as connection:
            for key, print_ in connection.execute("SELECT key_hash, fingerprint FROM retrysafe_records"):
                guessed = hashlib.blake2s(canonical.of_value(value), salt=key[:8]).digest() in print_
                assert guessed == (not settings), "the row's own key is no secret"


@each_row("plain", [fingerprint.of_payload(PAYLOAD).plain, bytes((2,)) + fingerprint.of_payload(PAYLOAD).plain[1:]])
@each_row("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_fingerprints_of_older_releases_are_compared(tmp_path: Path, settings: dict[str, Any], plain: bytes) -> None:
    path = tmp_path / f"{plain[0]}.db"
    reading = {**settings}
    claimed(path, "k", PAYLOAD, **reading)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE retrysafe_records SET fingerprint = ?", (plain,))
    assert claimed(path, "k", PAYLOAD, **reading)
    with pytest.raises(KeyReused, match=r"differs in: card\."):
        claimed(path, "k", {**PAYLOAD, "card": "0"}, **reading)


def test_a_keyring_is_rotated_and_switched_on_while_fingerprints_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    claimed(path, "plain", PAYLOAD)
    claimed(path, "k", PAYLOAD, encryption=Keyring({"old": OLD}))
    rotated = Keyring({"new": NEW, "old": OLD}, unencrypted="read")
    assert claimed(path, "k", PAYLOAD, encryption=rotated)
    assert claimed(path, "plain", PAYLOAD, encryption=rotated)
    with pytest.raises(KeyReused):
        claimed(path, "k", {}, encryption=rotated)
    with pytest.raises(ResultUnreadable, match="'old', and the keyring has new"):
        claimed(path, "k", PAYLOAD, encryption=Keyring({"new": NEW}))


@each_row("first, again", [(42, "42"), ("42", 42), (UUID(int=7), str(UUID(int=7)))])
def test_the_argument_that_is_the_key_is_compared_as_the_key_is(tmp_path: Path, first: Any, again: Any) -> None:
    path = tmp_path / "shop.db"
    boundary, runs = Boundary("orders", store=f"sqlite:///{path}", observers=()), []

    @boundary.once(key="order", operation="charge")
    def charge(order: Any, amount: Any = 1) -> str:
        runs.append(order)
        return "charged"

    with closing(boundary):
        charge(first)
        charge(again)
        with pytest.raises(KeyReused, match=r"differs in: amount\."):
            charge(again, "1")
        plain = fingerprint.of_fields({"order": first, "amount": 2}).plain
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE retrysafe_records SET fingerprint = ?", (plain,))
        charge(first, 2)
    assert runs == [first]


@each_row("first, again", [(42, "42"), ("42", 42), (UUID(int=7), str(UUID(int=7)))])
@each_row("kind", ["a dataclass", "a mapping"])
def test_a_field_that_is_the_key_is_compared_as_the_key_is(tmp_path: Path, kind: str, first: Any, again: Any) -> None:
    path = tmp_path / "shop.db"
    boundary, runs = Boundary("orders", store=f"sqlite:///{path}", observers=()), []

    def order(number: Any, amount: int) -> Any:
        return Order(number, amount) if kind == "a dataclass" else {"id": number, "amount": amount}

    @boundary.once(key="order.id", operation="charge")
    def charge(order: Any) -> str:
        runs.append(order)
        return "charged"

    with closing(boundary):
        charge(order(first, 1))
        charge(order(again, 1))
        with pytest.raises(KeyReused, match=r"differs in: order\.amount\."):
            charge(order(again, 2))
        plain = fingerprint.of_fields({"order": order(first, 2)}).plain
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE retrysafe_records SET fingerprint = ?", (plain,))
        charge(order(first, 2))
    assert runs == [order(first, 1)]
