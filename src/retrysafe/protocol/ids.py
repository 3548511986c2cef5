"""Identifiers that sort by their time: UUIDs of version 7 (RFC 9562, section 5.7)."""

from __future__ import annotations

ENTROPY = 10
"""Bytes of chance that an identifier takes."""


def uuid7(milliseconds: int, entropy: bytes) -> str:
    """The UUID for an instant since the Unix epoch and so many bytes of chance, as text."""
    chance = int.from_bytes(entropy[:ENTROPY], "big")
    number = (milliseconds & (1 << 48) - 1) << 80
    number |= 0x7 << 76 | (chance >> 68 & 0xFFF) << 64
    number |= 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def milliseconds_of(identifier: str) -> int | None:
    """When a UUID of version 7 was made, since the Unix epoch; None for what is none."""
    digits = identifier.replace("-", "")
    if len(identifier) != 36 or len(digits) != 32 or digits[12] != "7":
        return None
    try:
        return int(digits, 16) >> 80
    except ValueError:
        return None
