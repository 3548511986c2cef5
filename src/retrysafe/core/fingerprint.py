"""Fingerprints: a version and one full SHA-256 per named part, so a mismatch can say which part differed.

The parts of a payload are its fields, and the fields of its fields: "method", "body.amount". Names are kept
as they are, so only what looks like the name of a field counts as one (not the keys of a table by e-mail
address), and there are at most `MOST_PARTS`; a value that has other names, or too many, is one part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from retrysafe.core import canonical
from retrysafe.core.canonical import NotCanonical

VERSION = 1
UNCHECKED = b""
"""The fingerprint of a claim without a payload: the check is off."""
MOST_PARTS = 64
WHOLE = "payload"
"""The name of the one part of a payload without named fields."""
_LONGEST_NAME = 64


def of_payload(value: Any) -> bytes:
    """Return the fingerprint of a payload; raise `NotCanonical` naming the part that has no canonical form."""
    fields = _fields(value)
    return of_parts({WHOLE: _whole(value)}) if fields is None else of_fields(fields)


def of_fields(fields: Mapping[str, Any]) -> bytes:
    """Return the fingerprint of a payload that has fields, such as the arguments of a call.

    How it is split depends on the payload alone, so that equal payloads have equal fingerprints. A name without
    a dot stands for a value that was not split and a name with one for a field, so that unequal ones differ.
    """
    split: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _fields(value)
        split |= {f"{name}.{field}": member for field, member in inner.items()} if inner else {name: value}
    chosen = split if len(split) <= MOST_PARTS else fields
    if len(chosen) > MOST_PARTS:
        return of_parts({WHOLE: _whole(fields)})
    return of_parts({name: _canonical(name, value) for name, value in chosen.items()})


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a mapping, dataclass or model, or None when it has none, or names that are no field names."""
    try:
        pairs = canonical.pairs_of(value)
    except (ValueError, RecursionError):
        return None  # its canonical form will say why
    if pairs is None or not all(_is_field_name(name) for name, _ in pairs):
        return None
    return {str.__str__(name): member for name, member in pairs}


def _is_field_name(name: object) -> bool:
    if not isinstance(name, str) or isinstance(name, Enum):
        return False
    return len(name) <= _LONGEST_NAME and name.replace("-", "_").isidentifier()


def _whole(value: Any) -> bytes:
    """Never equal to the canonical form of a field that happens to be called like the whole."""
    return b"*" + _canonical(WHOLE, value)


def _canonical(name: str, value: Any) -> bytes:
    try:
        return canonical.of_value(value)
    except NotCanonical as error:
        raise NotCanonical(f"{name!r} cannot be fingerprinted: {error}") from error


def of_parts(parts: Mapping[str, bytes]) -> bytes:
    """Return the fingerprint of named parts: version byte, then name length, name, digest for each, by name."""
    out = bytearray((VERSION,))
    for name in sorted(parts):
        out += _prefixed(name)
        out += hashlib.sha256(parts[name]).digest()
    return bytes(out)


@lru_cache(maxsize=256)
def _prefixed(name: str) -> bytes:
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def differing(one: bytes, other: bytes) -> tuple[str, ...]:
    """Name the parts in which two fingerprints differ, sorted.

    Of a version that is not ours the parts cannot be read: then every part of the other is named.
    """
    left, right = _parts(one), _parts(other)
    names = left.keys() | right.keys()
    return tuple(sorted(name for name in names if left.get(name) != right.get(name)))


def names(fingerprint: bytes) -> tuple[str, ...]:
    """The names of a fingerprint's parts, sorted; none of a version that is not ours."""
    return tuple(sorted(_parts(fingerprint)))


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
