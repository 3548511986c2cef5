"""The common part of hand-written floors: a careful programmer's payload check and result.

The floors keep a table of their own with what the same guarantee needs: the key, a fingerprint, the
attempt that owns it, the result, and when it may be forgotten.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

DAY = 86_400
TABLE = """
CREATE TABLE by_hand (
    key {text} PRIMARY KEY, fingerprint {bytes} NOT NULL, state {text} NOT NULL, attempt {text} NOT NULL,
    result {bytes}, expires {number} NOT NULL
);
CREATE INDEX by_hand_expires ON by_hand (expires);
CREATE TABLE orders (id {text} NOT NULL, amount {number} NOT NULL);
"""
ORDER = "INSERT INTO orders (id, amount) VALUES ({}, {})"
AMOUNT = 5
INSERT = (
    "INSERT INTO by_hand (key, fingerprint, state, attempt, expires) "
    "VALUES ({}, {}, 'running', {}, extract(epoch FROM now()) + 86400) ON CONFLICT (key) DO NOTHING"
)
ENTRY = (
    "INSERT INTO by_hand (key, fingerprint, state, attempt, expires) VALUES ({0}, {0}, {0}, {0}, {0}) "
    "ON CONFLICT (key) DO NOTHING"
)
COMPLETE = "UPDATE by_hand SET state = 'completed', result = {} WHERE key = {} AND attempt = {} AND state = 'running'"
READ = "SELECT fingerprint, result FROM by_hand WHERE key = {} AND state = 'completed'"


def payload(key: str) -> dict[str, Any]:
    """The arguments of a call."""
    return {"order": key, "amount": AMOUNT}


def entry(key: str) -> dict[str, Any]:
    """The columns of a row that is there once."""
    return {"key": key, "fingerprint": fingerprint(key), "state": "running", "attempt": "", "expires": DAY}


def fingerprint(key: str) -> bytes:
    """The digest of the arguments of a call."""
    return hashlib.sha256(json.dumps([key, AMOUNT]).encode()).digest()


def attempt() -> str:
    """An attempt's own id."""
    return secrets.token_hex(16)


def place(order: str) -> dict[str, Any]:
    """The result of the guarded work."""
    return {"id": order, "amount": AMOUNT, "state": "placed"}


def encode(result: dict[str, Any]) -> bytes:
    """The result as it is stored."""
    return json.dumps(result).encode()


def replayed(found: tuple[bytes, bytes], key: str) -> Any:
    """The stored result, if the payload is the same."""
    if bytes(found[0]) != fingerprint(key):
        raise ValueError("the key was used with another payload")
    return json.loads(bytes(found[1]))
