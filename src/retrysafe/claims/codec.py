"""The codec protocol, and results as JSON: exact types by tags, classes only where the return annotation names them."""

from __future__ import annotations

import binascii
import functools
import json
import math
import operator
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, Flag
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from retrysafe import lazy
from retrysafe.claims.differences import difference
from retrysafe.claims.sealing import MEDIA_TYPE as ENCRYPTED
from retrysafe.errors import ResultNotEncodable, ResultUnreadable, RetrysafeError
from retrysafe.protocol.records import StoredResult
from retrysafe.protocol.type_table import TypeTable

if TYPE_CHECKING:
    from decimal import Decimal
    from uuid import UUID


class Codec(Protocol):
    """Turns results into bytes and back. Decoding must give back the value that was encoded, types included.

    The boundary checks it: it decodes what it has encoded, and stores it only if nothing differs.
    """

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode ``value``; ``annotation`` is the declared return type, or None when there is none.

        Of what it returns the ``body`` is bytes, and never None, the media type printable ASCII of up to 255
        characters, and the version an int from 0 to 2³¹ - 1: every store keeps that. Raises `ResultNotEncodable` when
        the value could not be decoded to an equal one.
        """
        ...

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        """Decode; raises `ResultUnreadable` when the bytes cannot be read by this version.

        The boundary makes that of any other exception too, and never asks for a result that was withheld.
        """
        ...


class AnswerCodec(ABC):
    """A codec of answers to requests, such as HTTP responses.

    A stored failure of its media type is an answer too, which retries get. Observers are told of both ends: of
    "received" what ``arrived`` gives, of "replayed" what ``describe`` gives, without secrets and without content.
    """

    media_type: str

    @abstractmethod
    def arrived(self, annotation: Any) -> Mapping[str, Any]:
        """Describe the request that is the annotation."""

    @abstractmethod
    def describe(self, value: Any, annotation: Any) -> Mapping[str, Any]:
        """Describe a replayed answer, and its request."""

    @abstractmethod
    def respond(self, status: int, body: Any, **fields: Any) -> Any:
        """Make the answer that a probe gives."""


MEDIA_TYPE = "application/vnd.retrysafe+json"
VERSION = 1
_TAG = "$"
_PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})
_NAMES = frozenset({str})
_NESTED = frozenset({dict, list})
_OBJECT = b'{"$":["object",'
"""With what every object begins that a constructor or an enum rebuilds; in a string its quotes would be escaped."""
_DECODER: Any = json.JSONDecoder()
_from_json, _scan = _DECODER.decode, _DECODER.scan_once
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_make_chunks: Any = getattr(json.encoder, "c_make_encoder", None)
_to_chunks: Callable[[Any, int], Iterable[str]] = (
    (lambda plain, _: (_ENCODER.encode(plain),))
    if _make_chunks is None
    else _make_chunks(None, None, json.encoder.encode_basestring, None, ":", ",", False, False, False)
)
"""`_ENCODER`, whose C part is made once and not for every value."""


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is not a number")
    return str(value)


def _read_decimal(text: str) -> Decimal:
    return lazy.decimal.Decimal(text)


def _read_uuid(text: str) -> UUID:
    return lazy.uuid.UUID(text)


def _write_time(value: Any) -> Any:
    """A datetime or time as ISO 8601; with its fold and its zone's name where ISO 8601 would not tell."""
    zone = value.tzinfo
    if not value.fold and (zone is None or type(zone) is timezone):
        return value.isoformat()
    if zone is not None and type(zone).__module__ == "zoneinfo" and zone.key is not None:
        return [value.replace(tzinfo=None).isoformat(), value.fold, zone.key]
    if zone is not None and zone.utcoffset(None) is None:
        raise TypeError(f"the time zone {zone!r} could not be rebuilt: use zoneinfo.ZoneInfo, or convert to UTC")
    return [value.isoformat(), value.fold, None]


def _read_time(kind: Any, written: Any) -> Any:
    if isinstance(written, str):
        return kind.fromisoformat(written)
    text, fold, zone = written
    read = kind.fromisoformat(text).replace(fold=fold)
    return read if zone is None else read.replace(tzinfo=lazy.zoneinfo.ZoneInfo(zone))


_TAGGED: TypeTable[tuple[str, Callable[[Any], Any]] | None] = TypeTable(
    {
        datetime: ("datetime", _write_time),
        date: ("date", date.isoformat),
        time: ("time", _write_time),
        timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
        bytes: ("bytes", lambda value: binascii.b2a_base64(value, newline=False).decode()),
    },
    late={
        "decimal.Decimal": ("decimal", _decimal),
        "uuid.UUID": ("uuid", str),
    },
    other=None,
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": functools.partial(_read_time, datetime),
    "date": date.fromisoformat,
    "time": functools.partial(_read_time, time),
    "timedelta": lambda parts: timedelta(*parts),
    "bytes": binascii.a2b_base64,
    "decimal": _read_decimal,
    "uuid": _read_uuid,
}


class JSONCodec:
    """JSON with tags for datetime, date, time, timedelta, Decimal, UUID, bytes, tuple, set and odd dicts.

    Dataclasses, enums and pydantic models are written as plain data and rebuilt from the return
    annotation; a stored name is never imported, and nothing is ever unpickled. NaN and Infinity are
    refused, as are objects that the annotation does not account for, and those that would not come back
    as they are: what holds objects is decoded, and compared strictly, before it is stored.
    """

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode ``value``; raises `ResultNotEncodable` naming the part that cannot be."""
        try:
            plain = _to_plain(value, annotation)
            body = "".join(_to_chunks(plain, 0)).encode()
            if plain is not value and _OBJECT in body:  # everything else is exact by construction
                found = difference(value, _from_plain(_from_json(body.decode()), annotation))
                if found is not None:
                    raise TypeError(f"result{found}")
        except Exception as error:  # the constructors and validators of a result may raise anything
            raise ResultNotEncodable(f"The result is a {type(value).__qualname__}: {error}") from error
        return StoredResult(body, MEDIA_TYPE, VERSION)

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        """Decode; raises `ResultUnreadable` when this version cannot read the bytes."""
        body, media_type, version = stored
        if body is None:
            body = require_body(stored)
        if media_type != MEDIA_TYPE or version != VERSION:
            kind = f"{media_type} version {version}"
            raise ResultUnreadable(f"The stored result is {kind}; this codec reads {MEDIA_TYPE} version {VERSION}.")
        try:
            text = body.decode()
            try:
                plain, end = _scan(text, 0)
            except StopIteration:
                plain, end = None, -1
            if end != len(text):  # of another writer, or not JSON
                plain = _from_json(text)
            return _from_plain(plain, annotation)
        except Exception as error:  # as above
            raise ResultUnreadable(
                f"The stored result does not fit the return annotation: {error}. Nothing was run, the operation was "
                "completed before: let the annotation fit what it stored."
            ) from error

    def decode_given(self, stored: StoredResult, annotation: Any) -> Any:
        """Decode the result that a person or a probe gave, in plain JSON too where the annotation names another type.

        Raises `ResultUnreadable` for a result of no type that the annotation names; None fits every one.
        """
        value = self.decode(stored, annotation)
        if annotation in (None, types.NoneType) or value is None:
            return value
        plain = _name_types(_from_json(require_body(stored).decode()), annotation)
        value = self.decode(stored._replace(body=_ENCODER.encode(plain).encode()), annotation)
        if not _fits(value, annotation):
            raise ResultUnreadable(
                f"The result that was given for the key, {plain!r:.80}, is not of the type that the operation returns, "
                f"{annotation!r}. Nothing was run."
            )
        return value


def require_body(stored: StoredResult) -> bytes:
    """The encoded result; raises `ResultNotEncodable` for one that was withheld, which its attempt could not store."""
    if stored.body is None:
        raise ResultNotEncodable("The result was withheld when the operation completed.")
    return stored.body


LONGEST_MEDIA_TYPE = 255
"""Characters that a column of MySQL takes."""
LARGEST_VERSION = 2**31 - 1
"""The largest integer of PostgreSQL."""


def _check_stored(stored: object) -> None:
    """Refuse what a codec has made and some store cannot keep as it is; raises `ResultNotEncodable`.

    A store would refuse it only when the effect has happened, and the attempt would end without an answer.
    """
    if not isinstance(stored, StoredResult):
        raise ResultNotEncodable(f"The codec gave no StoredResult, but a value of type {type(stored).__name__}")
    made: tuple[Any, ...] = stored
    body, media_type, version = made
    if body is None:
        raise ResultNotEncodable("The codec gave no body, which stands for a result that is withheld: let it give b''")
    if type(body) is not bytes:
        raise ResultNotEncodable(f"The codec gave a body of type {type(body).__name__}: let it give bytes")
    if not (isinstance(media_type, str) and media_type.isascii() and media_type.isprintable()):
        raise ResultNotEncodable(f"The codec gave the media type {media_type!r:.80}: it is printable ASCII")
    if len(media_type) > LONGEST_MEDIA_TYPE or media_type == ENCRYPTED:
        raise ResultNotEncodable(
            f"The codec gave the media type {media_type:.80}: it has at most {LONGEST_MEDIA_TYPE} characters, and is "
            f"not {ENCRYPTED}"
        )
    if type(version) is not int or not 0 <= version <= LARGEST_VERSION:
        raise ResultNotEncodable(
            f"The codec gave the version {version!r:.80}: it is an int from 0 to {LARGEST_VERSION}"
        )


class CheckedCodec:
    """A codec of the user's, whose every result is decoded and compared strictly before it is stored.

    So is what it is stored as: see `_check_stored`.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode; raises `ResultNotEncodable` unless the value would come back as it is."""
        stored = self._codec.encode(value, annotation)
        _check_stored(stored)
        try:
            found = difference(value, self._codec.decode(stored, annotation))
        except Exception as error:
            why = error.detail if isinstance(error, RetrysafeError) else repr(error)
            raise ResultNotEncodable(f"The codec failed to read what it had encoded: {why}") from error
        if found is not None:
            raise ResultNotEncodable(f"The codec does not restore the value that it encoded: result{found}.")
        return stored

    def decode(self, stored: StoredResult, annotation: Any) -> Any:
        """Decode; raises whatever the codec does, see `retrysafe.claims.outcome.decode_result`."""
        return self._codec.decode(stored, annotation)


def _to_plain(value: Any, annotation: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
        return value
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
    tagged = _TAGGED[kind]
    if tagged is not None:
        tag, write = tagged
        return {_TAG: [tag, write(value)]}
    return _object_to_plain(value, annotation)


def _dict_to_plain(value: dict[Any, Any], annotation: Any) -> Any:
    is_object = _NAMES.issuperset(map(type, value)) and _TAG not in value
    if is_object and _PLAIN.issuperset(map(type, value.values())):
        return value
    of_key, of_value = _argument(annotation, dict, 0), _argument(annotation, dict, 1)
    if is_object:
        return {name: _to_plain(member, of_value) for name, member in value.items()}
    pairs = [[_to_plain(name, of_key), _to_plain(member, of_value)] for name, member in value.items()]
    return {_TAG: ["dict", pairs]}


def _object_to_plain(value: Any, annotation: Any) -> Any:
    kind: Any = type(value)
    choices = _choices(annotation)
    if kind not in choices:
        raise TypeError(
            f"{kind.__qualname__} objects are rebuilt only where the return annotation names exactly that class"
        )
    name = kind.__qualname__ if len(choices) == 1 else _name_among(choices, kind)
    if isinstance(value, Enum):
        return {_TAG: ["object", name, _member_names(value)]}
    if _is_dataclass(kind):
        hints = _hints(kind)
        body = {field: _to_plain(getattr(value, field), hints.get(field)) for field in _fields(kind)}
        return {_TAG: ["object", name, body]}
    if hasattr(kind, "__pydantic_fields__"):
        plain, by_name = _pydantic_models().write(value)
        return {_TAG: ["model" if by_name else "object", name, plain]}
    raise TypeError(f"{kind.__qualname__} is neither a dataclass, an enum nor a pydantic model")


def _name_among(choices: tuple[Any, ...], kind: Any) -> str:
    """Return a name that tells a class from the others of its annotation: its own, or with its module's."""
    for name_of in (_name, _long_name):
        if sum(1 for choice in set(choices) if name_of(choice) == name_of(kind)) == 1:
            return name_of(kind)
    raise TypeError(f"the return annotation names two classes {_long_name(kind)}")


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", "")


def _long_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}:{_name(kind)}"


def _member_names(member: Enum) -> str | list[str]:
    """The name of an enum's member, or the names of those that a flag is made of."""
    named = type(member).__members__
    if named.get(member.name or "") is member:
        return member.name
    if isinstance(member, Flag):
        return [flag.name or "" for flag in member]
    raise TypeError(f"{member!r} is not a member of its class")


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
    if tag in ("object", "model"):
        return _rebuild(body[0], body[1], annotation, by_name=tag == "model")
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


def _rebuild(name: str, body: Any, annotation: Any, *, by_name: bool) -> Any:
    """Rebuild an object of the class in the annotation that has this name; the name is only compared."""
    fitting = {
        kind for kind in _choices(annotation) if isinstance(kind, type) and name in (_name(kind), _long_name(kind))
    }
    if len(fitting) != 1:
        named = "names two of" if fitting else "does not name"
        raise TypeError(f"it is a {name}, which the annotation {annotation!r} {named}")
    (kind,) = fitting
    if issubclass(kind, Enum):
        return kind[body] if isinstance(body, str) else _flag(kind, body)
    if _is_dataclass(kind):
        return _rebuild_dataclass(kind, body)
    if not hasattr(kind, "__pydantic_fields__"):
        raise TypeError(f"{name} is neither a dataclass, an enum nor a pydantic model")
    return _pydantic_models().read_whole(kind, body, by_name)


def _name_types(plain: Any, annotation: Any) -> Any:
    """JSON with the tag of the type that the annotation names, where that is a single one, and no type of JSON."""
    choices = [choice for choice in _choices(annotation) if choice not in (None, types.NoneType)]
    kind: Any = typing.get_origin(choices[0]) or choices[0] if len(choices) == 1 else None
    if not isinstance(kind, type) or (isinstance(plain, dict) and _TAG in plain):
        return plain
    tagged = _TAGGED[kind]
    if isinstance(plain, dict):
        if _is_dataclass(kind):
            hints = _hints(kind)
            return {
                _TAG: ["object", _name(kind), {name: _name_types(one, hints.get(name)) for name, one in plain.items()}]
            }
        if hasattr(kind, "__pydantic_fields__"):
            return {_TAG: ["object", _name(kind), plain]}
        return {name: _name_types(one, _argument(annotation, dict, 1)) for name, one in plain.items()}
    if isinstance(plain, list):
        return [_name_types(one, _argument(annotation, list, 0)) for one in plain]
    if tagged is not None and plain is not None:
        return {_TAG: [tagged[0], str(plain)]}
    return {_TAG: ["object", _name(kind), plain]} if issubclass(kind, Enum) and isinstance(plain, str) else plain


def _fits(value: Any, annotation: Any) -> bool:
    """Tell whether a value is of a type that an annotation names, as far as that can be told."""
    for choice in _choices(annotation):
        kind = typing.get_origin(choice) or choice
        try:
            if not isinstance(kind, type) or isinstance(value, kind) or (kind is float and type(value) is int):
                return True
        except TypeError:  # a protocol, a TypedDict, Any
            return True
    return False


def _pydantic_models() -> Any:
    return import_module("retrysafe.claims.pydantic_models")


def _flag(kind: Any, names: list[str]) -> Any:
    return functools.reduce(operator.or_, (kind[name] for name in names), kind(0))


def _rebuild_dataclass(kind: Any, body: dict[str, Any]) -> Any:
    """Construct it, then set every field to what was stored: a ``__post_init__`` may have computed it once already."""
    fields = _fields(kind)
    unknown = [name for name in body if name not in fields]
    if unknown:
        raise TypeError(f"{kind.__qualname__} has no field {unknown[0]!r}: was it renamed or removed?")
    hints = _hints(kind)
    values = {name: _from_plain(member, hints.get(name)) for name, member in body.items()}
    rebuilt = kind(**{name: value for name, value in values.items() if fields[name]})
    for name, value in values.items():
        now = getattr(rebuilt, name, None)
        if now is not value and difference(value, now) is not None:
            object.__setattr__(rebuilt, name, value)
    return rebuilt


def _is_dataclass(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


@functools.lru_cache(maxsize=1024)
def _fields(kind: Any) -> dict[str, bool]:
    """The fields of a dataclass, and whether its constructor takes them."""
    return {field.name: field.init for field in lazy.dataclasses.fields(kind)}


@functools.lru_cache(maxsize=1024)
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
    """The type argument of what is a ``kind`` in the annotation: of list[Order], Order; of several, their union."""
    found: list[Any] = []
    for choice in _choices(annotation):
        origin = typing.get_origin(choice)
        if origin in _ABSTRACT[kind] or (isinstance(origin, type) and issubclass(kind, origin)):
            found += typing.get_args(choice)[index : index + 1]
    return _any_of(found)


def _tuple_item(annotation: Any, index: int) -> Any:
    found: list[Any] = []
    for choice in _choices(annotation):
        if typing.get_origin(choice) is tuple:
            arguments = typing.get_args(choice)
            endless = len(arguments) == 2 and arguments[1] is Ellipsis
            found += arguments[:1] if endless else arguments[index : index + 1]
    return _any_of(found)


def _any_of(annotations: list[Any]) -> Any:
    if len(annotations) < 2:
        return annotations[0] if annotations else None
    return typing.Union[tuple(annotations)]  # noqa: UP007 - they are known at run time only


def encode_failure(type_name: str, message: str, data: Any) -> StoredResult:
    """Encode a failure that is kept as the answer."""
    return JSONCodec().encode({"type": type_name, "message": message, "data": data}, None)


BY_A_PERSON = {"by": "a person"}
"""The data of a failure that a person has declared, and whose message is meant for clients."""


def encode_verdict(kind: str, *said: object, default: str) -> StoredResult:
    """Encode a failure that a person has declared; its message is the first that was said, or the default."""
    return encode_failure(kind, str(next(filter(None, said), default)), BY_A_PERSON)


def decode_failure(stored: StoredResult | None) -> tuple[str, str, Any]:
    """Type name, message and data of a stored failure."""
    if stored is None:
        return "Failure", "the operation failed", None
    failure = JSONCodec().decode(stored, None)
    return failure["type"], failure["message"], failure["data"]


_EXACT: tuple[type, ...] = (*_PLAIN, float, dict, list, tuple, set, frozenset, datetime, date, time, timedelta, bytes)
"""The types whose values are stored wherever they stand, beside `Decimal` and `UUID`."""


def unstorable(annotation: Any, seen: frozenset[Any] = frozenset()) -> str | None:
    """The class in a return annotation no object of which could be stored, if there is one.

    Of what a type does not tell, such as Any, a protocol or a base that also plain values have, nothing is said.
    """
    for choice in _choices(annotation):
        kind = typing.get_origin(choice) or choice
        if not isinstance(kind, type) or kind in seen or _TAGGED[kind] is not None:
            continue
        has_fields, is_plain = _is_dataclass(kind) or typing.is_typeddict(kind), _may_be_plain(kind)
        if has_fields or is_plain:
            is_protocol = getattr(kind, "_is_protocol", False)
            inner = _hints_known(kind) if has_fields else () if is_protocol else typing.get_args(choice)
            found = (unstorable(one, seen | {kind}) for one in inner)
            if (name := next(filter(None, found), None)) is not None:
                return name
        elif not (issubclass(kind, Enum) or hasattr(kind, "__pydantic_fields__")):
            return kind.__qualname__
    return None


def _hints_known(kind: Any) -> tuple[Any, ...]:
    try:
        return tuple(_hints(kind).values())
    except (NameError, TypeError, AttributeError):  # its names may not exist yet: the first result tells
        return ()


def _may_be_plain(kind: Any) -> bool:
    """Tell whether a plain value can be one of these; so can be what cannot tell."""
    if kind is Any or kind in _EXACT or getattr(kind, "_is_protocol", False):
        return True
    try:
        return any(issubclass(plain, kind) for plain in _EXACT)
    except TypeError:
        return True
