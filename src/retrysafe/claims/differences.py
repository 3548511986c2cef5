"""Finds the difference of two values by their types and contents, never by an ``__eq__`` of the user's.

Dataclasses and pydantic models are compared by all their attributes, those in slots and the private ones included. Any
other object, such as a path or an address, is compared by how it would be copied: what its class reduces it to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any

from retrysafe.protocol.type_table import TypeTable

if TYPE_CHECKING:
    from decimal import Decimal

_OTHER = " would come back with another value"
_BUILTIN = (list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float)


def difference(one: Any, other: Any) -> str | None:
    """Find a difference of ``other`` from ``one``, as a path and a reason, such as ".lines[0] would …"; or None.

    Only a time zone may have another type: all of a fixed offset are one. Sets and attributes have no order, dicts
    have one. What is derived is left out: cached properties, and which fields of a pydantic model were given.

    Raises TypeError for an object that cannot be looked into, such as a lock.
    """
    kind = type(one)
    if kind is not type(other):
        return f" is a {kind.__qualname__} and would come back as a {type(other).__qualname__}"
    if one is other:
        return None
    return _COMPARED[kind](one, other)


def _of_scalars(one: Any, other: Any) -> str | None:
    return None if one == other else _OTHER


def _of_floats(one: float, other: float) -> str | None:
    return None if repr(one) == repr(other) else _OTHER


def _of_decimals(one: Decimal, other: Decimal) -> str | None:
    return None if one.as_tuple() == other.as_tuple() else _OTHER


def _of_times(one: Any, other: Any) -> str | None:
    if one.replace(tzinfo=None) != other.replace(tzinfo=None) or one.fold != other.fold:
        return _OTHER
    return None if _is_same_zone(one.tzinfo, other.tzinfo) else " would come back in another time zone"


def _is_same_zone(one: tzinfo | None, other: tzinfo | None) -> bool:
    if one is other:
        return True
    if one is None or other is None:
        return False
    if type(one) is type(other) and getattr(one, "key", None) is not None:
        return bool(one.key == other.key)  # type: ignore[attr-defined]
    fixed = one.utcoffset(None)
    return fixed is not None and fixed == other.utcoffset(None)


def _of_sequences(one: Any, other: Any) -> str | None:
    if len(one) != len(other):
        return f" has {len(one)} members and would come back with {len(other)}"
    for index, (member, twin) in enumerate(zip(one, other, strict=True)):
        found = difference(member, twin)
        if found is not None:
            return f"[{index}]{found}"
    return None


def _of_dicts(one: dict[Any, Any], other: dict[Any, Any]) -> str | None:
    if difference(list(one), list(other)) is not None:
        return " would come back with other keys, or in another order"
    for name, member, twin in zip(one, one.values(), other.values(), strict=True):
        found = difference(member, twin)
        if found is not None:
            return f"[{name!r}]{found}" if type(name) in (str, int) else f"[…]{found}"
    return None


def _of_sets(one: Any, other: Any) -> str | None:
    twins = {twin: twin for twin in other}
    if len(one) != len(twins):
        return f" has {len(one)} members and would come back with {len(twins)}"
    for member in one:
        twin = twins.get(member, _NONE)
        if twin is _NONE or difference(member, twin) is not None:  # its class may compare by identity
            twin = next((twin for twin in twins if difference(member, twin) is None), _NONE)
        if twin is _NONE:
            return " would come back with another member"
        del twins[twin]
    return None


_NONE: Any = object()


def _of_objects(one: Any, other: Any) -> str | None:
    if isinstance(one, Enum):
        return _OTHER
    kind: Any = type(one)
    if _is_record(kind):
        return _of_attributes(_attributes(one), _attributes(other), kind)
    return _of_reductions(_reduction(one), _reduction(other))


@functools.lru_cache(maxsize=1024)
def _is_record(kind: Any) -> bool:
    """Tell whether the class declares fields, and all that an instance holds is in its attributes."""
    declared = hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__pydantic_fields__")
    return declared and not issubclass(kind, _BUILTIN)


def _attributes(value: Any) -> dict[str, Any]:
    """Everything in an object's dict and slots, whatever its class says of its state."""
    state: Any = object.__getstate__(value)
    if not isinstance(state, tuple):
        return state or {}
    attributes = {**(state[0] or {}), **(state[1] or {})}
    if hasattr(type(value), "__pydantic_fields__"):
        attributes.pop("__pydantic_fields_set__", None)
        for optional in ("__pydantic_extra__", "__pydantic_private__"):
            attributes[optional] = attributes.get(optional) or None
    return attributes


def _of_attributes(one: dict[str, Any], other: dict[str, Any], kind: type) -> str | None:
    found = _of_members(one, other)
    if found is None:
        return None
    cached = {name for name in {*one, *other} if isinstance(_declares(kind, name), functools.cached_property)}
    if not cached:
        return found
    return _of_members(_without(one, cached), _without(other, cached))


def _of_members(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    for name in one.keys() - other.keys():
        return f".{name} would be lost"
    for name in other.keys() - one.keys():
        return f".{name} would be added"
    for name, member in one.items():
        found = difference(member, other[name])
        if found is not None:
            return f".{name}{found}"
    return None


def _declares(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _without(attributes: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in names}


def _reduction(value: Any) -> tuple[Any, ...]:
    """Return the parts by which the value would be copied: its maker, the arguments, its state, and its members."""
    reduced = value.__reduce_ex__(2)
    if isinstance(reduced, str):
        raise TypeError(f"a {type(value).__qualname__} cannot be compared by its contents")
    maker, arguments, state, members, pairs = (*reduced, None, None, None)[:5]
    return maker, arguments, state, list(members or ()), list(pairs or ())


def _of_reductions(one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    if one[0] is not other[0]:
        return _OTHER
    for part, twin in zip(one[1:], other[1:], strict=True):
        compare = _of_members if type(part) is type(twin) is dict else difference
        if compare(part, twin) is not None:
            return _OTHER
    return None


_COMPARED: TypeTable[Callable[[Any, Any], str | None]] = TypeTable(
    {
        **dict.fromkeys((bool, int, str, bytes, type(None), date, timedelta), _of_scalars),
        **dict.fromkeys((datetime, time), _of_times),
        **dict.fromkeys((list, tuple), _of_sequences),
        **dict.fromkeys((set, frozenset), _of_sets),
        float: _of_floats,
        dict: _of_dicts,
    },
    late={"decimal.Decimal": _of_decimals, "uuid.UUID": _of_scalars},
    other=_of_objects,
)
