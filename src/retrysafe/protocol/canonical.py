"""Canonical bytes of Python values and of JSON text, for fingerprints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.protocol.type_table import TypeTable

if TYPE_CHECKING:
    from decimal import Decimal


class NotCanonical(ValueError):
    """The value has no canonical form; the message says which part of it and why."""


class Member(NamedTuple):
    """A name and value of a mapping, dataclass or model, and the default of the field, if it has one."""

    name: Any
    value: Any
    default: Any


NO_DEFAULT: Any = object()
Members = Callable[[Any], list[Member] | None]
"""Finds the members of a mapping, dataclass or pydantic model; None of anything else."""


def of_value(value: Any, members: Members | None = None) -> bytes:
    """Return bytes that are equal for equal values and differ for values that differ.

    Takes None, bool, int, finite float, str, bytes, Decimal, UUID, dates and times, enums, lists and
    tuples, sets, mappings, dataclasses and pydantic models, nested as you like. What counts is what
    a value says, not which class says it: a dataclass or model is the mapping of its fields in any
    order, an enum member is its value, a tuple is a list, and an instant is the same in every time
    zone. ``members`` says what the fields of models are: by default `members_of`. Raises `NotCanonical` for
    anything else.
    """
    try:
        return _of(value, members or members_of)
    except NotCanonical:
        raise
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise NotCanonical(f"it has no canonical form: {error}") from error


def _of(value: Any, members: Members) -> bytes:
    simple = _SIMPLE[type(value)]
    if simple is not None:
        tag, render = simple
        return _leaf(tag, render(value))
    return _compound(value, members)


def of_simple(value: Any) -> bytes | None:
    """`of_value` of what has no parts, such as text and numbers; None of anything else. Raises `ValueError`."""
    simple = _SIMPLE[type(value)]
    if simple is None:
        return None
    tag, render = simple
    body = render(value)
    return b"%s%d:%s" % (tag, len(body), body)


def of_json(text: bytes) -> bytes:
    """Return a canonical form of JSON text: no white space, members sorted, numbers exact.

    Numbers compare by their exact decimal value, never through a binary float, so 1.0 equals 1 but
    0.1 differs from 0.1000000000000000055. Duplicate member names, NaN, Infinity, invalid UTF-8 and
    lone surrogates are refused with `NotCanonical`. Strings are opaque: no Unicode normalisation.
    """
    from decimal import Decimal

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
        raise NotCanonical("an object has the same member name twice")
    return members


def _no_constant(name: str) -> Any:
    raise NotCanonical(f"{name} is not JSON")


def _leaf(tag: bytes, body: bytes) -> bytes:
    return b"%s%d:%s" % (tag, len(body), body)


def _float(value: float) -> bytes:
    if not math.isfinite(value):
        raise NotCanonical(f"{value} has no canonical form")
    return float.__repr__(value + 0.0).encode()  # a subclass may print anything


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


_SIMPLE: TypeTable[tuple[bytes, Callable[[Any], bytes]] | None] = TypeTable(
    {
        type(None): (b"n", lambda _: b""),
        bool: (b"b", lambda value: b"1" if value else b"0"),
        int: (b"i", lambda value: b"%x" % value),
        float: (b"f", _float),
        str: (b"s", str.encode),
        bytes: (b"y", bytes),
        datetime: (b"t", _instant),
        date: (b"d", lambda value: value.isoformat().encode()),
        time: (b"c", lambda value: value.isoformat().encode()),
        timedelta: (b"p", lambda value: f"{value.days},{value.seconds},{value.microseconds}".encode()),
    },
    late={
        "decimal.Decimal": (b"m", _decimal),
        "uuid.UUID": (b"u", lambda value: value.bytes),
    },
    other=None,
)


def members_of(value: Any) -> list[Member] | None:
    """The members of a value: of a model, the fields of its own class as they are."""
    return _members(value, _fields_of_model)


def dump_members_of(value: Any) -> list[Member] | None:
    """`members_of`, with what a model dumps: without excluded fields, and only the fields of the annotated class."""
    return _members(value, _dump_of_model)


def is_model(value: Any) -> bool:
    """Tell whether it is a pydantic model."""
    return hasattr(type(value), "__pydantic_fields__") and not hasattr(type(value), "__dataclass_fields__")


def _members(value: Any, of_model: Members) -> list[Member] | None:
    if _SIMPLE[type(value)] is not None or isinstance(value, Enum):
        return None
    if isinstance(value, Mapping):
        return [Member(name, member, NO_DEFAULT) for name, member in value.items()]
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses

        return [
            Member(field.name, getattr(value, field.name), _default(field.default, field.default_factory))
            for field in dataclasses.fields(value)
        ]
    return of_model(value) if is_model(value) else None


def _fields_of_model(model: Any) -> list[Member] | None:
    """Return the fields of a model; a field that cannot be a payload counts as the model dumps it, if it does."""
    if _is_root(model):
        return None
    values = {name: vars(model)[name] for name in type(model).__pydantic_fields__ if name in vars(model)}
    values |= model.__pydantic_extra__ or {}
    odd = {name for name, value in values.items() if not _has_form(value)}
    if odd:
        dumped = model.model_dump()
        values = {
            name: dumped[name] if name in odd else value
            for name, value in values.items()
            if name in dumped or name not in odd
        }
    return [Member(name, value, _default_in(model, name)) for name, value in values.items()]


def _dump_of_model(model: Any) -> list[Member] | None:
    dumped = model.model_dump()
    if not isinstance(dumped, dict):
        return None
    return [Member(name, value, _default_in(model, name)) for name, value in dumped.items()]


def _is_root(model: Any) -> bool:
    return bool(getattr(type(model), "__pydantic_root_model__", False))


def _default_in(model: Any, name: str) -> Any:
    field = type(model).__pydantic_fields__.get(name)
    return NO_DEFAULT if field is None else _default(field.default, field.default_factory)


_EMPTY_OF: dict[type, Any] = {list: [], dict: {}, set: set(), tuple: (), frozenset: frozenset()}


def _default(default: Any, factory: Any) -> Any:
    """A field's default; factories are not called, as they may count or tell the time."""
    if isinstance(factory, type):
        return _EMPTY_OF.get(factory, NO_DEFAULT)
    return default if _has_form(default) else NO_DEFAULT  # placeholders of libraries for a missing default have no form


def _has_form(value: Any) -> bool:
    """Tell whether a value may have a canonical form, by its type."""
    return (
        isinstance(value, Enum | Mapping | AbstractSet)
        or _simple_base(type(value)) is not None
        or (isinstance(value, Sequence) and not isinstance(value, bytearray | memoryview))
        or hasattr(type(value), "__dataclass_fields__")
        or is_model(value)
    )


def _simple_base(kind: type) -> tuple[bytes, Callable[[Any], bytes]] | None:
    """Return the notation for values of a class that derives from a simple type."""
    return next((_SIMPLE[base] for base in kind.__mro__ if _SIMPLE[base] is not None), None)


def _compound(value: Any, members: Members) -> bytes:
    if isinstance(value, Enum):
        return _leaf(b"e", _of(value.value, members))
    found = members(value)
    if found is not None:
        pairs = (_leaf(b"", _of(name, members) + _of(member, members)) for name, member, _ in found)
        return _leaf(b"D", b"".join(sorted(pairs)))
    if isinstance(value, AbstractSet):
        return _leaf(b"S", b"".join(sorted(_of(member, members) for member in value)))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return _leaf(b"L", b"".join(_of(member, members) for member in value))
    if is_model(value):
        model: Any = value
        return _of(model.model_dump() if members is dump_members_of else model.root, members)
    simple = _simple_base(type(value))
    if simple is not None:
        tag, render = simple
        return _leaf(tag, render(value))
    raise NotCanonical(f"a value of type {type(value).__name__} has no canonical form")
