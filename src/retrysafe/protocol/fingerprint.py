"""Fingerprints: a version and one full digest per named part, so a mismatch can say which part differed.

The parts of a payload are its fields, and the fields of its fields: "method", "body.amount". Names are kept
as they are, so only what looks like the name of a field counts as one (not the keys of a table by e-mail
address), and there are at most `MOST_PARTS`; a value that has other names, or too many, is one part.

Version 2 also marks the parts that were at their default, and counts models by their own fields; it is made only
where that makes a difference. Of either, a digest tells who guesses the value: a claim stores version 3, in which a
digest is a BLAKE2s keyed by the boundary's secret, if it has one, and by the key of the record (`Secrets`). Releases
up to 0.1 stored the others, which are still compared; they are computed only where one is met.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from retrysafe.protocol import canonical
from retrysafe.protocol.canonical import NO_DEFAULT, Member, Members, NotCanonical

PLAIN, MARKED, KEYED = 1, 2, 3
"""The versions."""
UNCHECKED = b""
"""The stored fingerprint of a claim without a payload: the check is off."""
MOST_PARTS = 64
WHOLE = "payload"
"""The name of the one part of a payload without named fields."""
_LONGEST_NAME = 64


_sha256, _blake2s = hashlib.sha256, hashlib.blake2s

_AT_DEFAULT = 0x8000
"""The mark, in the length of a part's name."""
_BLOCK = 64
"""The bytes that BLAKE2s hashes at once."""

Content = tuple[bytes, bytes]
"""The head of a part, which is its name with its length and mark, and its value: see `content`."""


def content(head: bytes, value: bytes) -> Content:
    """A part whose value is in canonical form: a long value, of a block or more, becomes its SHA-256 and zeros."""
    return (head, value) if len(value) < _BLOCK else (head, _sha256(value).digest() + _ZEROS)


_ZEROS = bytes(_BLOCK - 32)


class Fingerprint:
    """The fingerprint of a payload, before it is known for which record: the parts, sorted by name."""

    __slots__ = ("marked", "older", "parts")

    def __init__(
        self, parts: Sequence[Content], marked: bool = False, older: Callable[[], Fingerprint] | None = None
    ) -> None:
        self.parts = parts
        self.marked = marked
        """True if it is of version 2 where it is not keyed."""
        self.older = older
        """Computes the fingerprint of releases up to 0.1, where it differs."""

    @property
    def plain(self) -> bytes:
        """The fingerprint as releases up to 0.1 stored it, of version 1 or 2."""
        out = bytearray((MARKED if self.marked else PLAIN,))
        for head, value in self.parts:
            out += head
            out += value[:32] if len(value) == _BLOCK else _sha256(value).digest()
        return bytes(out)

    def with_text(self, name: str, text: str) -> Fingerprint:
        """The fingerprint with the value of one part as text, if it has that part; it is compared with both."""
        heads, value = (_prefix(name, False), _prefix(name, True)), canonical.of_value(text)
        parts = [content(head, value) if head in heads else (head, other) for head, other in self.parts]
        return Fingerprint(parts, self.marked, self.older or (lambda: self))


class Part(NamedTuple):
    """A part's value or digest, and whether it was at its default: then a payload without it is the same one."""

    value: bytes
    at_default: bool = False


Parts = dict[str, Part]


def of_payload(value: Any) -> Fingerprint:
    """Return the fingerprint of a payload; raise `NotCanonical` naming the part that has no canonical form."""
    if value.__class__ is dict and (simple := _of_simple_fields(value)) is not None:
        return simple

    def parts(members: Members) -> Parts:
        fields = _fields(value, members)
        return {WHOLE: _whole(value, members)} if fields is None else _divide(fields, members)

    return _fingerprint(parts)


def of_fields(fields: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})) -> Fingerprint:
    """Return the fingerprint of a payload that has fields, such as the arguments of a call, some with ``defaults``."""
    given = [Member(name, value, defaults.get(name, NO_DEFAULT)) for name, value in fields.items()]
    return _fingerprint(lambda members: _divide(given, members))


def _of_simple_fields(fields: dict[Any, Any]) -> Fingerprint | None:
    """The fingerprint of fields without parts of their own, as `of_fields` gives it; None of any others."""
    if len(fields) > MOST_PARTS or not all(name.__class__ is str and _is_field_name(name) for name in fields):
        return None
    parts = []
    for name in sorted(fields):
        value = _simple(fields[name])
        if value is None:
            return None
        parts.append(content(_prefix(name, False), value))
    return Fingerprint(parts)


class Secrets:
    """Keys the digests of fingerprints by a secret, so that values cannot be guessed from a row; the first one writes.

    The key of the record keys them too, so that equal values do not show across rows: all that there is without a
    secret. With one, a first part without a name tells which secret it was.
    """

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        self._by_head = {_head_of(secret): _key_of(secret) for secret in secrets} | {bytes((KEYED,)): None}
        self._head, self._key = next(iter(self._by_head.items()))

    def hashed_for(self, given: Fingerprint, record_key: bytes) -> bytes:
        """The fingerprint that is stored with a record."""
        return _key_parts(given, self._head, self._key, record_key)

    def count_as(self, stored: bytes, given: Fingerprint, record_key: bytes) -> bytes | None:
        """The payload counted as the ``stored`` one is; None if that is keyed by a secret that is not here."""
        if stored[:1] == bytes((KEYED,)):
            head = _head(stored)
            return _key_parts(given, head, self._by_head[head], record_key) if head in self._by_head else None
        return given.older().plain if given.older is not None and stored[:1] == bytes((PLAIN,)) else given.plain

    def agree(self, stored: bytes, given: Fingerprint, record_key: bytes) -> bool:
        """Tell whether a stored fingerprint, which is not an empty one, is that of the payload given.

        One that is keyed by a secret that is not here cannot be compared. It passes for that payload: the answer beside
        it was encrypted by the same keyring, and `ResultUnreadable` says what is missing.
        """
        counted = self.count_as(stored, given, record_key)
        if counted is None or _are_one(stored, counted):
            return True
        return given.older is not None and stored[0] == PLAIN and _are_one(stored, given.plain)


_UNNAMED = b"\0\0"


def _head_of(secret: bytes) -> bytes:
    """Return the beginning of a fingerprint keyed by a secret."""
    return bytes((KEYED,)) + _UNNAMED + hmac.digest(secret, b"fingerprint secret v3", "sha256")


def _key_of(secret: bytes) -> bytes:
    return hmac.digest(secret, b"fingerprint key v3", "sha256")


def _head(fingerprint: bytes) -> bytes:
    """The version, and what tells the secret."""
    return fingerprint[: 35 if fingerprint[0] == KEYED and fingerprint[1:3] == _UNNAMED else 1]


def _key_parts(given: Fingerprint, head: bytes, secret: bytes | None, record_key: bytes) -> bytes:
    """Each part hashed once, by a key that the secret gives the record; without one, salted by the record's key."""
    keyed = _blake2s(salt=record_key[:8]) if secret is None else _blake2s(key=_blake2s(record_key, key=secret).digest())
    out = head
    for name, value in given.parts:
        part = keyed.copy()
        part.update(value)
        out += name + part.digest()
    return out


class Fields:
    """The fingerprints of payloads that have the same fields and defaults, such as the arguments of one function.

    ``left_out``: names whose values do not count.
    """

    def __init__(self, names: Sequence[str], defaults: Mapping[str, Any], left_out: Container[str] = ()) -> None:
        self._places = {name: place for place, name in enumerate(names) if name not in left_out}
        self._defaults = defaults
        self._parts = [
            (place, _prefix(name, False), *_at_default(name, defaults.get(name, NO_DEFAULT)))
            for name, place in sorted(self._places.items())
        ]

    def of(self, values: Sequence[Any]) -> Fingerprint:
        """The fingerprint of the values, given in the order of the names; the same as `of_fields` gives, and raises.

        Values without parts of their own, the most usual ones, need no look at what they consist of.
        """
        parts, marked = [], False
        if len(self._parts) > MOST_PARTS:
            return self._of_any(values)
        try:
            for place, head, default, left_out, at_default in self._parts:
                given = values[place]
                if given is default and left_out is not None:
                    parts.append(at_default)
                    marked = True
                    continue
                value = canonical.of_simple(given)
                if value is None:
                    return self._of_any(values)
                if value == left_out:
                    parts.append(at_default)
                    marked = True
                else:
                    parts.append((head, value) if len(value) < _BLOCK else content(head, value))
        except ValueError:  # it is told by who looks at it in detail
            return self._of_any(values)
        return Fingerprint(parts, marked)

    def _of_any(self, values: Sequence[Any]) -> Fingerprint:
        return of_fields({name: values[place] for name, place in self._places.items()}, self._defaults)


def _at_default(name: str, default: Any) -> tuple[Any, bytes | None, Content]:
    """A default, its canonical form if it is simple, and the whole part of a field that has it."""
    value = _simple(default)
    return default, value, content(_prefix(name, True), value or b"")


def _simple(value: Any) -> bytes | None:
    try:
        return canonical.of_simple(value)
    except ValueError:  # it is told by who looks at it in detail
        return None


def _fingerprint(parts: Callable[[Members], Parts]) -> Fingerprint:
    models = 0

    def members(value: Any) -> list[Member] | None:
        nonlocal models
        models += canonical.is_model(value)
        return canonical.members_of(value)

    found = parts(members)
    if models:
        return Fingerprint(
            _contents(found), True, lambda: Fingerprint(_contents(parts(canonical.dump_members_of)), True)
        )
    return Fingerprint(_contents(found), any(part.at_default for part in found.values()))


def _divide(fields: list[Member], members: Members) -> Parts:
    """Split the payload by itself alone, so that equal payloads have equal fingerprints.

    A name without a dot stands for a value that was not split and a name with one for a field, so that unequal ones
    differ.
    """
    split: list[tuple[Member, bool]] = []
    for one in fields:
        left_out = _is_default(one, members)
        inner = _fields(one.value, members)
        split += (
            [(one, left_out)]
            if not inner
            else [
                (field._replace(name=f"{one.name}.{field.name}"), left_out or _is_default(field, members))
                for field in inner
            ]
        )
    chosen = split if len(split) <= MOST_PARTS else [(one, _is_default(one, members)) for one in fields]
    if len(chosen) > MOST_PARTS:
        return {WHOLE: _whole({one.name: one.value for one in fields}, members)}
    return dict(_parts_of(chosen, members))


def _parts_of(chosen: Iterable[tuple[Member, bool]], members: Members) -> Iterator[tuple[str, Part]]:
    for one, left_out in chosen:
        try:
            body = _canonical(one.name, one.value, members)
        except NotCanonical:
            if one.value is not one.default:
                raise
        else:
            yield one.name, Part(body, left_out)


def _is_default(one: Member, members: Members) -> bool:
    if one.value is one.default or one.default is NO_DEFAULT or type(one.value) is not type(one.default):
        return one.value is one.default
    try:
        return canonical.of_value(one.value, members) == canonical.of_value(one.default, members)
    except NotCanonical:
        return False


def _fields(value: Any, members: Members) -> list[Member] | None:
    """The fields of a mapping, dataclass or model, or None when it has none, or names that are no field names."""
    try:
        found = members(value)
    except (ValueError, RecursionError):
        return None  # its canonical form will say why
    if found is None or not all(_is_field_name(one.name) for one in found):
        return None
    return [one._replace(name=str.__str__(one.name)) for one in found]


def _is_field_name(name: object) -> bool:
    if not isinstance(name, str) or isinstance(name, Enum):
        return False
    return len(name) <= _LONGEST_NAME and name.replace("-", "_").isidentifier()


def _whole(value: Any, members: Members) -> Part:
    """Never equal to the canonical form of a field that happens to be called like the whole."""
    return Part(b"*" + _canonical(WHOLE, value, members))


def _canonical(name: str, value: Any, members: Members) -> bytes:
    try:
        return canonical.of_value(value, members)
    except NotCanonical as error:
        raise NotCanonical(f"{name!r} cannot be fingerprinted: {error}") from error


def of_parts(parts: Mapping[str, bytes]) -> Fingerprint:
    """Return the fingerprint of named parts that are bytes already, none of them at a default."""
    return Fingerprint(_contents({name: Part(value) for name, value in parts.items()}))


def _contents(parts: Parts) -> list[Content]:
    """The parts by name, each headed by the length of the name with its mark, and the name."""
    return [content(_prefix(name, part.at_default), part.value) for name, part in sorted(parts.items())]


@lru_cache(maxsize=256)
def _prefix(name: str, marked: bool) -> bytes:
    encoded = name.encode()
    return (len(encoded) | (_AT_DEFAULT if marked else 0)).to_bytes(2, "big") + encoded


def _are_one(one: bytes, other: bytes) -> bool:
    """Tell whether what both have is equal, and what only one has was at its default there.

    What only one has is on one side: payloads that each have something of their own are two.
    """
    if {one[0], other[0]} - {PLAIN, MARKED} and (one[0] != KEYED or _head(one) != _head(other)):
        return False
    left, right = _parts(one), _parts(other)
    comparable = left.keys() <= right.keys() or right.keys() <= left.keys()
    return comparable and not _unequal(left, right)


def _unequal(left: Parts, right: Parts) -> list[str]:
    def differs(name: str) -> bool:
        if name in left and name in right:
            return left[name].value != right[name].value
        return not (left.get(name) or right[name]).at_default

    return sorted(name for name in left.keys() | right.keys() if differs(name))


def differing(one: bytes, other: bytes) -> tuple[str, ...]:
    """Name the parts in which two fingerprints differ, sorted.

    Of a version that is not ours the parts cannot be read: then every part of the other is named.
    """
    left, right = _parts(one), _parts(other)
    return tuple(_unequal(left, right) or sorted(left.keys() ^ right.keys()))


def names(fingerprint: bytes) -> tuple[str, ...]:
    """The names of a fingerprint's parts, sorted; none of a version that is not ours."""
    return tuple(sorted(_parts(fingerprint)))


def _parts(fingerprint: bytes) -> Parts:
    parts: Parts = {}
    if not fingerprint or fingerprint[0] not in (PLAIN, MARKED, KEYED):
        return parts
    at = len(_head(fingerprint))
    while at < len(fingerprint):
        head = int.from_bytes(fingerprint[at : at + 2], "big")
        length = head & ~_AT_DEFAULT
        name = fingerprint[at + 2 : at + 2 + length].decode()
        at += 2 + length
        parts[name] = Part(fingerprint[at : at + 32], bool(head & _AT_DEFAULT))
        at += 32
    return parts
