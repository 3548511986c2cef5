"""Keys: what is accepted, how a key is looked up, and the keys derived for calls downstream."""

from __future__ import annotations

import hashlib
import hmac
import sys
import unicodedata

from retrysafe.errors import ConfigurationError, InvalidKey

LONGEST = 255
_DEFAULT_SECRET = b"retrysafe"
_HASHED = "sha256:"
_BLOCK = 64
"""The block of SHA-256, in bytes."""
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The first digit of a UUID's fourth group, which says whose UUIDs these are (RFC 9562)."""


def parse(key: object) -> str:
    """Return ``key`` as text; raise `InvalidKey` when it cannot serve as one."""
    if isinstance(key, str):
        text = key
    elif (isinstance(key, int) and not isinstance(key, bool)) or _is_uuid(key):
        text = str(key)
    else:
        raise InvalidKey(f"A key must be a string, an int or a UUID, not {type(key).__name__}.")
    if not 1 <= len(text) <= LONGEST:
        raise InvalidKey(f"A key has 1 to {LONGEST} characters; this one has {len(text)}.")
    if not text.isprintable() and _has_control(text):
        raise InvalidKey("The key contains a control character.")
    return text


def _is_uuid(key: object) -> bool:
    uuid = sys.modules.get("uuid")  # its import costs milliseconds, and without it there is none
    return uuid is not None and isinstance(key, uuid.UUID)


def key_of(identity: str) -> str:
    """An identity as an idempotency key: itself where it can serve as one, else its hash."""
    if len(identity) <= LONGEST and identity.isprintable() and not identity.startswith(_HASHED):
        return identity
    return hash_of(identity.encode("utf-8", "surrogatepass"))


def hash_of(content: bytes) -> str:
    """Identify content that has no id: ``sha256:`` and its hash in hexadecimal."""
    return _HASHED + hashlib.sha256(content).hexdigest()


def check_name(text: object, argument: str) -> str:
    """Return a part of a key's identity; raise `ConfigurationError` when it cannot serve as one."""
    if not isinstance(text, str):
        raise ConfigurationError(f"{argument}= must be text, not {type(text).__name__}.")
    if len(text) > LONGEST or (not text.isprintable() and _has_control(text)):
        raise ConfigurationError(f"{argument}= has up to {LONGEST} characters, and no control character among them.")
    return text


def check_secret(given: object) -> bytes | None:
    """Return a secret as bytes; raise `ConfigurationError` when it is empty, or no text or bytes."""
    if given is not None and not isinstance(given, str | bytes):
        raise ConfigurationError(f"secret= is text or bytes, at least 16 random ones, not {type(given).__name__}.")
    secret = given.encode() if isinstance(given, str) else given
    if secret == b"":
        raise ConfigurationError("secret= is empty: give at least 16 random bytes, or leave it out.")
    return secret


def _has_control(text: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def lookup(secret: bytes | None, boundary: str, scope: str, operation: str, key: str) -> bytes:
    """The record's key: an HMAC-SHA256 of the length-prefixed identity, 32 bytes.

    Length prefixes keep ("a", "bc") and ("ab", "c") apart; the parts are opaque UTF-8, so two
    Unicode forms of one text are two keys.
    """
    return Lookup(secret, boundary, scope, operation).of(key)


class Lookup:
    """`lookup` of the keys of one boundary, scope and operation: what they begin with is hashed once.

    It is HMAC (RFC 2104) taken apart: the inner and the outer hash, each with its padded secret, are kept and copied.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes | None, boundary: str, scope: str, operation: str) -> None:
        padded = secret or _DEFAULT_SECRET
        if len(padded) > _BLOCK:
            padded = hashlib.sha256(padded).digest()
        padded = padded.ljust(_BLOCK, b"\0")
        begin = b"".join(map(_prefix, ("lookup.v1", boundary, scope, operation)))
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + begin)
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def of(self, key: str) -> bytes:
        """The key of the record."""
        inner, outer = self._inner.copy(), self._outer.copy()
        encoded = key.encode()
        inner.update(len(encoded).to_bytes(4, "big") + encoded)
        outer.update(inner.digest())
        return outer.digest()


def derive(secret: bytes | None, record_key: bytes, name: object) -> str:
    """The key for a call downstream: the same on every attempt, hard to guess, and a UUID, which every provider takes.

    It has the shape of version 4, and 122 bits of an HMAC where that has random ones.
    """
    if not isinstance(name, str):
        raise ConfigurationError(
            f"key_for() takes the name of the call that the key is for, such as 'charge', not {type(name).__name__}."
        )
    bits = _digest(secret, "derive.v2", record_key.hex(), name).hex()
    return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-{_VARIANT[bits[16]]}{bits[17:20]}-{bits[20:32]}"


def redact(record_key: bytes) -> str:
    """Return the form of a key in events and logs: the first eight hex digits of its hash."""
    return record_key[:4].hex()


def _digest(secret: bytes | None, *parts: str) -> bytes:
    return hmac.digest(secret or _DEFAULT_SECRET, b"".join(map(_prefix, parts)), "sha256")


def _prefix(part: str) -> bytes:
    encoded = part.encode()
    return len(encoded).to_bytes(4, "big") + encoded
