"""Canonical bytes of Python values and of JSON text, for fingerprints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID


class NotCanonical(ValueError):
    """The value has no canonical form; the message says which part of it and why."""


def of_value(value: Any) -> bytes:
    """Return bytes that are equal for equal values and differ for values that differ.

    Takes None, bool, int, finite float, str, bytes, Decimal, UUID, dates and times, enums, lists and
    tuples, sets, mappings, dataclasses and pydantic models, nested as you like. What counts is what
    a value says, not which class says it: a dataclass or model is the mapping of its fields in any
    order, an enum member is its value, a tuple is a list, and an instant is the same in every time
    zone. Raises `NotCanonical` for anything else.
    """
    try:
        return _of(value)
    except NotCanonical:
        raise
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise NotCanonical(f"it has no canonical form: {error}") from error


def _of(value: Any) -> bytes:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        tag, render = simple
        return _leaf(tag, render(value))
    return _compound(value)


def of_json(text: bytes) -> bytes:
    """Return a canonical form of JSON text: no white space, members sorted, numbers exact.

    Numbers compare by their exact decimal value, never through a binary float, so 1.0 equals 1 but
    0.1 differs from 0.1000000000000000055. Duplicate member names, NaN, Infinity, invalid UTF-8 and
    lone surrogates are refused with `NotCanonical`. Strings are opaque: no Unicode normalisation.
    """
    try:
        value = json.loads(
            text.decode(),
            object_pairs_hook=_unique_members,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_no_constant,
        )
        return b"j" + of_value(value)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise NotCanonical(f"The JSON text has no canonical form: {error}") from error


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotCanonical("a member name stands twice in one object")
    return members


def _no_constant(name: str) -> Any:
    raise NotCanonical(f"{name} is not JSON")


def _leaf(tag: bytes, body: bytes) -> bytes:
    return b"%s%d:%s" % (tag, len(body), body)


def _float(value: float) -> bytes:
    if not math.isfinite(value):
        raise NotCanonical(f"{value} has no canonical form")
    return float.__repr__(value + 0.0).encode()  # whatever a subclass prints


def _decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise NotCanonical(f"{value} has no canonical form")
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return b"0"
    assert isinstance(exponent, int)
    return f"{'-' if sign else ''}{stripped}e{exponent + len(text) - len(stripped)}".encode()


def _instant(value: datetime) -> bytes:
    return (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat().encode()


_SIMPLE: dict[type, tuple[bytes, Callable[[Any], bytes]]] = {
    type(None): (b"n", lambda _: b""),
    bool: (b"b", lambda value: b"1" if value else b"0"),
    int: (b"i", lambda value: b"%x" % value),
    float: (b"f", _float),
    str: (b"s", lambda value: value.encode()),
    bytes: (b"y", lambda value: value),
    Decimal: (b"m", _decimal),
    UUID: (b"u", lambda value: value.bytes),
    datetime: (b"t", _instant),
    date: (b"d", lambda value: value.isoformat().encode()),
    time: (b"c", lambda value: value.isoformat().encode()),
    timedelta: (b"p", lambda value: f"{value.days},{value.seconds},{value.microseconds}".encode()),
}


def pairs_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Name and value of each member of a mapping, dataclass or pydantic model; None of anything else."""
    if type(value) in _SIMPLE or isinstance(value, Enum):
        return None
    if isinstance(value, Mapping):
        return list(value.items())
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses

        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if hasattr(type(value), "__pydantic_fields__"):
        dumped = value.model_dump()
        return list(dumped.items()) if isinstance(dumped, dict) else None
    return None


def _compound(value: Any) -> bytes:
    model: Any = value
    if isinstance(value, Enum):
        return _leaf(b"e", _of(value.value))
    pairs = pairs_of(value)
    if pairs is not None:
        return _leaf(b"D", b"".join(sorted(_leaf(b"", _of(name) + _of(member)) for name, member in pairs)))
    if isinstance(value, AbstractSet):
        return _leaf(b"S", b"".join(sorted(map(_of, value))))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return _leaf(b"L", b"".join(map(_of, value)))
    if hasattr(type(value), "__pydantic_fields__"):
        return _of(model.model_dump())
    for kind, (tag, render) in _SIMPLE.items():
        if isinstance(value, kind):
            return _leaf(tag, render(value))
    raise NotCanonical(f"a value of type {type(value).__name__} has no canonical form")
