"""Results as JSON: exact types by tags, classes only where the return annotation names them."""

from __future__ import annotations

import binascii
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from retrysafe.errors import ResultNotEncodable
from retrysafe.types import Stored

MEDIA_TYPE = "application/vnd.retrysafe+json"
VERSION = 1
_TAG = "$"
_PLAIN = frozenset({str, int, bool, type(None)})
_NESTED = frozenset({dict, list})
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is not a number")
    return str(value)


_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: ("timedelta", lambda d: [d.days, d.seconds, d.microseconds], lambda parts: timedelta(*parts)),
    Decimal: ("decimal", _decimal, Decimal),
    UUID: ("uuid", str, UUID),
    bytes: ("bytes", lambda b: binascii.b2a_base64(b, newline=False).decode(), binascii.a2b_base64),
}
_READERS = {tag: read for tag, _, read in _TAGGED.values()}


class JSONCodec:
    """JSON with tags for datetime, date, time, timedelta, Decimal, UUID, bytes, tuple, set and odd dicts.

    Dataclasses, enums and pydantic models are written as plain data and rebuilt from the return
    annotation; a stored name is never imported, and nothing is ever unpickled. NaN and Infinity are
    refused, as are objects that the annotation does not account for.
    """

    def encode(self, value: Any, annotation: Any) -> Stored:
        """Encode ``value``; raises `ResultNotEncodable` naming the part that cannot be."""
        try:
            return Stored(_to_json(_to_plain(value, annotation)).encode(), MEDIA_TYPE, VERSION)
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultNotEncodable(f"The result is a {type(value).__qualname__}: {error}") from error

    def decode(self, stored: Stored, annotation: Any) -> Any:
        """Decode; raises `ResultNotEncodable` when this version cannot read the bytes."""
        if stored.body is None:
            raise ResultNotEncodable("The result was withheld when the operation completed.")
        if (stored.media_type, stored.codec_version) != (MEDIA_TYPE, VERSION):
            kind = f"{stored.media_type} version {stored.codec_version}"
            raise ResultNotEncodable(f"The stored result is {kind}; this codec reads {MEDIA_TYPE} version {VERSION}.")
        try:
            return _from_plain(json.loads(stored.body), annotation)
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise ResultNotEncodable(f"The stored result does not fit the return annotation: {error}") from error


def _to_plain(value: Any, annotation: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
        return value
    if kind in _TAGGED:
        tag, write, _ = _TAGGED[kind]
        return {_TAG: [tag, write(value)]}
    if kind is dict:
        return _dict_to_plain(value, annotation)
    if kind is list:
        if _PLAIN.issuperset(map(type, value)):
            return value
        item = _argument(annotation, list, 0)
        return [_to_plain(member, item) for member in value]
    if kind is tuple:
        return {_TAG: ["tuple", [_to_plain(member, _tuple_item(annotation, i)) for i, member in enumerate(value)]]}
    if kind in (set, frozenset):
        item = _argument(annotation, kind, 0)
        return {_TAG: [kind.__name__, [_to_plain(member, item) for member in value]]}
    return _object_to_plain(value, annotation)


def _dict_to_plain(value: dict[Any, Any], annotation: Any) -> Any:
    of_names = set(map(type, value))
    if of_names <= {str} and _TAG not in value and _PLAIN.issuperset(map(type, value.values())):
        return value
    of_key, of_value = _argument(annotation, dict, 0), _argument(annotation, dict, 1)
    if of_names <= {str} and _TAG not in value:
        return {name: _to_plain(member, of_value) for name, member in value.items()}
    pairs = [[_to_plain(name, of_key), _to_plain(member, of_value)] for name, member in value.items()]
    return {_TAG: ["dict", pairs]}


def _object_to_plain(value: Any, annotation: Any) -> Any:
    kind = type(value)
    if kind not in _choices(annotation):
        raise TypeError(
            f"{kind.__qualname__} objects are rebuilt only where the return annotation names exactly that class"
        )
    if isinstance(value, Enum):
        return {_TAG: ["object", kind.__qualname__, value.name]}
    if _is_dataclass(kind):
        fields = _init_fields(kind)
        hints = _hints(kind)
        body = {name: _to_plain(getattr(value, name), hints.get(name)) for name in fields}
        return {_TAG: ["object", kind.__qualname__, body]}
    if hasattr(kind, "__pydantic_fields__"):
        return {_TAG: ["object", kind.__qualname__, value.model_dump(mode="json", by_alias=True, round_trip=True)]}
    raise TypeError(f"{kind.__qualname__} is neither a dataclass, an enum nor a pydantic model")


def _from_plain(plain: Any, annotation: Any) -> Any:
    if isinstance(plain, list):
        if _NESTED.isdisjoint(map(type, plain)):
            return plain
        item = _argument(annotation, list, 0)
        return [_from_plain(member, item) for member in plain]
    if not isinstance(plain, dict):
        return plain
    if _TAG not in plain:
        if _NESTED.isdisjoint(map(type, plain.values())):
            return plain
        of_value = _argument(annotation, dict, 1)
        return {name: _from_plain(member, of_value) for name, member in plain.items()}
    tag, *body = plain[_TAG]
    if tag in _READERS:
        return _READERS[tag](body[0])
    if tag == "object":
        return _rebuild(body[0], body[1], annotation)
    return _container(tag, body[0], annotation)


def _container(tag: str, body: list[Any], annotation: Any) -> Any:
    if tag == "dict":
        of_key, of_value = _argument(annotation, dict, 0), _argument(annotation, dict, 1)
        return {_from_plain(name, of_key): _from_plain(member, of_value) for name, member in body}
    if tag == "tuple":
        return tuple(_from_plain(member, _tuple_item(annotation, i)) for i, member in enumerate(body))
    kind: type = {"set": set, "frozenset": frozenset}[tag]
    item = _argument(annotation, kind, 0)
    return kind(_from_plain(member, item) for member in body)


def _rebuild(name: str, body: Any, annotation: Any) -> Any:
    """Rebuild an object of the class in the annotation that has this name; the name is only compared."""
    for kind in _choices(annotation):
        if getattr(kind, "__qualname__", None) != name:
            continue
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind[body]
        if _is_dataclass(kind):
            hints = _hints(kind)
            rebuilt: Any = kind
            return rebuilt(**{field: _from_plain(member, hints.get(field)) for field, member in body.items()})
        return kind.model_validate_json(json.dumps(body))
    raise TypeError(f"it is a {name}, which the annotation {annotation!r} does not name")


def _is_dataclass(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _init_fields(kind: Any) -> list[str]:
    import dataclasses

    fields = dataclasses.fields(kind)
    computed = [field.name for field in fields if not field.init]
    if computed:
        raise TypeError(f"dataclass field {computed[0]!r} has init=False and could not be rebuilt")
    every = kind.__dataclass_fields__
    if len(every) > len(fields) and any(isinstance(field.type, dataclasses.InitVar) for field in every.values()):
        raise TypeError("a dataclass with an InitVar could not be rebuilt")
    return [field.name for field in fields]


def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone; Annotated and type aliases are looked through."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            break
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(choice for member in typing.get_args(annotation) for choice in _choices(member))
    return (annotation,)


_ABSTRACT: dict[type, tuple[Any, ...]] = {
    list: (list, Sequence),
    dict: (dict, Mapping),
    set: (set,),
    frozenset: (frozenset,),
}


def _argument(annotation: Any, kind: type, index: int) -> Any:
    """The type argument of the choice that is a ``kind``: of list[Order], Order."""
    for choice in _choices(annotation):
        origin = typing.get_origin(choice)
        accepted = _ABSTRACT[kind]
        if origin in accepted or (isinstance(origin, type) and issubclass(kind, origin)):
            arguments = typing.get_args(choice)
            return arguments[index] if index < len(arguments) else None
    return None


def _tuple_item(annotation: Any, index: int) -> Any:
    for choice in _choices(annotation):
        if typing.get_origin(choice) is tuple:
            arguments = typing.get_args(choice)
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return arguments[0]
            return arguments[index] if index < len(arguments) else None
    return None


def encode_failure(type_name: str, message: str, data: Any) -> Stored:
    """Encode a failure that is kept as the answer."""
    return JSONCodec().encode({"type": type_name, "message": message, "data": data}, None)


def decode_failure(stored: Stored | None) -> tuple[str, str, Any]:
    """Type name, message and data of a stored failure."""
    if stored is None:
        return "Failure", "the operation failed", None
    failure = JSONCodec().decode(stored, None)
    return failure["type"], failure["message"], failure["data"]
