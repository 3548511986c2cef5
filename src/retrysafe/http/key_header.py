"""The ``Idempotency-Key`` field: read as the draft says, and refused before anything else when it is malformed.

Sources: draft-ietf-httpapi-idempotency-key-header-07, RFC 9651 (structured fields), RFC 9110 section 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from retrysafe.errors import ConfigurationError, InvalidKey
from retrysafe.protocol.keys import LONGEST

HEADER = "Idempotency-Key"
"""The field that carries a key, where nothing else is said."""
KeySyntax = Literal["lenient", "strict"]
KeyPolicy = Literal["any", "uuid", "strong"]

# Bytes of any client are matched: alternatives begin with different bytes and repetitions give nothing back ("*+"), so
# that there is one way to read a value, and the time is proportional to its length.
_CHARACTERS = rb'(?:[ !#-\[\]-~]|\\["\\])*+'
_VALUE = (
    rb'"' + _CHARACTERS + rb'"|:[A-Za-z0-9+/=]*+:|[!#$%&\'*+./0-9<>?@A-Z^_`a-z|~-][!#$%&\'*+./0-9:<>?@A-Z^_`a-z|~-]*+'
)
_PARAMETER = rb"[ ]*+;[ ]*+[a-z*][a-z0-9_.*-]*+(?:=(?:" + _VALUE + rb"))?+"
_ITEM = re.compile(rb'"(' + _CHARACTERS + rb')"(?:' + _PARAMETER + rb")*+")
_PLAIN = re.compile(rb'"([ !#-\[\]-~]{1,%d})"' % LONGEST)
"""Nearly every key: a string in which nothing is escaped, without parameters."""
_ESCAPED = re.compile(rb'\\(["\\])')
_BARE = re.compile(rb"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field's name (RFC 9110 section 5.1)."""
ULID = "^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$"
_ULID = re.compile(ULID)
_SHORTEST_STRONG = 16
_FEWEST_CHARACTERS = 8
_FEWEST_DIGITS = 6
"""Of how many different digits a UUID is at least: one of 10¹² random ones has fewer, and every small counter."""


def field_name(header: object) -> str:
    """Return the name of the field that carries keys; raise `ConfigurationError` for what is none."""
    if not isinstance(header, str) or not _NAME.fullmatch(header):
        raise ConfigurationError(f"header={header!r} is not the name of a header, such as {HEADER!r}.")
    return header


def parse(lines: Sequence[bytes], syntax: KeySyntax, header: str = HEADER) -> str | None:
    """Return the key that the field lines of a request carry; None when there is no line.

    ``"k"`` (a structured string; its parameters are ignored) and, unless ``syntax`` is strict, a bare ``k`` give
    the key k. Raises `InvalidKey` for anything else: nothing that was meant as a key may run unprotected.
    """
    if not lines:
        return None
    if len(lines) > 1:
        raise InvalidKey(f"The request has two {header} lines; send one.")
    plain = _PLAIN.fullmatch(lines[0])
    if plain is not None:
        return plain[1].decode("ascii")
    value = lines[0].strip(b" \t")
    if value.startswith(b'"'):
        matched = _ITEM.fullmatch(value)
        if matched is None:
            raise InvalidKey(f'The {header} begins with a quote but is not a structured string, such as "k-1".')
        key = _ESCAPED.sub(rb"\1", matched[1])
    else:
        key = _bare(value, syntax, header)
    if not 1 <= len(key) <= LONGEST:
        raise InvalidKey(f"A key in {header} has 1 to {LONGEST} characters; this one has {len(key)}.")
    return key.decode("ascii")


def _bare(value: bytes, syntax: KeySyntax, header: str) -> bytes:
    if syntax == "strict":
        raise InvalidKey(f'The {header} must be a quoted string: {header}: "…".')
    if b"," in value:
        raise InvalidKey(f"The {header} contains a comma: two values, or one that must be quoted.")
    if value and not _BARE.fullmatch(value):
        raise InvalidKey(f"The {header} contains characters outside printable ASCII, or a space without quotes.")
    return value


def check(key: str, policy: KeyPolicy, header: str = HEADER) -> None:
    """Raise `InvalidKey` for a key that is easier to guess than ``policy`` allows."""
    if policy == "uuid" and not (_is_uuid(key) or _is_ulid(key)):
        raise InvalidKey(f"The {header} must be a UUID or a ULID, made at random for each operation.")
    if policy == "strong" and not (_is_uuid(key) or _is_strong(key)):
        raise InvalidKey(f"The {header} could be guessed: send a random UUID, or {_SHORTEST_STRONG} random characters.")


def _is_uuid(key: str) -> bool:
    """In one of its two usual forms, and not the nil UUID or a counter dressed up as one."""
    try:
        digits = UUID(key).hex
        return digits == key.replace("-", "").lower() and len(key) in (32, 36) and len(set(digits)) >= _FEWEST_DIGITS
    except ValueError:
        return False


def _is_ulid(key: str) -> bool:
    """A time and 80 random bits in Crockford's base 32, and not a counter dressed up as one."""
    return bool(_ULID.fullmatch(key)) and len(set(key[10:].upper())) >= _FEWEST_DIGITS


def _is_strong(key: str) -> bool:
    """Long, of many different characters, and no number, date or the like."""
    letters = sum(character.isalpha() for character in key)
    return len(key) >= _SHORTEST_STRONG and len(set(key)) >= _FEWEST_CHARACTERS and letters >= 4
