"""Fingerprints: a version and one full SHA-256 per named part, so a mismatch can say which part differed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

VERSION = 1
UNCHECKED = b""
"""The fingerprint of a claim without a payload: the check is off."""


def of_parts(parts: Mapping[str, bytes]) -> bytes:
    """Return the fingerprint of named parts: version byte, then name length, name, digest for each, by name."""
    out = bytearray((VERSION,))
    for name in sorted(parts):
        encoded = name.encode()
        out += len(encoded).to_bytes(2, "big")
        out += encoded
        out += hashlib.sha256(parts[name]).digest()
    return bytes(out)


def differing(one: bytes, other: bytes) -> tuple[str, ...]:
    """Name the parts in which two fingerprints differ, sorted.

    Of a version that is not ours the parts cannot be read: then every part of the other is named.
    """
    left, right = _parts(one), _parts(other)
    names = left.keys() | right.keys()
    return tuple(sorted(name for name in names if left.get(name) != right.get(name)))


def _parts(fingerprint: bytes) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    if fingerprint[:1] != bytes((VERSION,)):
        return parts
    at = 1
    while at < len(fingerprint):
        length = int.from_bytes(fingerprint[at : at + 2], "big")
        name = fingerprint[at + 2 : at + 2 + length].decode()
        at += 2 + length
        parts[name] = fingerprint[at : at + 32]
        at += 32
    return parts
