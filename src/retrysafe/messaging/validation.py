"""A message's payload as bytes, and its attributes checked before it is written.

What no broker can carry would be found when the message is to leave: over and over, and with it whatever is sent at the
same time. What a database cannot store would end the caller's transaction. The trace is kept with the message, because
it leaves later, from another process.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from retrysafe.messaging.cloudevents import DATA, OWN, RESERVED
from retrysafe.messaging.errors import MessageRefused
from retrysafe.protocol.ordering import LARGEST_SEQUENCE


def trace_headers() -> dict[str, str]:
    """The headers that carry the current trace (W3C Trace Context by default); none where OpenTelemetry is not used."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


JSON, BYTES = "application/json", "application/octet-stream"


def encode(payload: Any, media_type: str | None) -> tuple[bytes, str]:
    """The bytes of a payload, and what kind of bytes they are.

    Bytes stay as they are. All else is JSON: dataclasses and pydantic models as objects, UUIDs and decimals as text,
    dates and times as in ISO 8601, enums as their values. Raises `MessageRefused` for what JSON cannot say.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), media_type or BYTES
    try:
        text = json.dumps(payload, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(), media_type or JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageRefused(
            f"payload= is a {type(payload).__qualname__}: {error}. Give JSON types, dataclasses, models or bytes."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a number")
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__qualname__} is not JSON")


LONGEST_NAME = 255
"""Bytes of a topic, a type and a media type: AMQP counts bytes."""
LONGEST_HEADER_NAME = 100
LARGEST_HEADERS = 32_768
"""Bytes of all headers as they are stored: they have to fit into one frame of AMQP, and into 64 KiB of MySQL."""
_HEADER_NAME = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
"""The form of names that every broker takes: SQS has the narrowest."""


def name(text: Any, argument: str) -> str:
    """A topic, a type or a media type."""
    if not isinstance(text, str):
        raise MessageRefused(f"{argument}= must be text, not {type(text).__name__}.")
    if not text:
        raise MessageRefused(f"{argument}= is empty.")
    if (not text.isprintable() and _has_control(text)) or len(text.encode()) > LONGEST_NAME:
        raise MessageRefused(f"{argument}= has up to {LONGEST_NAME} bytes, and no control character among them.")
    return text


def sequence(number: Any) -> int | None:
    """The version of what a message is about."""
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > LARGEST_SEQUENCE:
        raise MessageRefused(f"sequence={number!r} must be a whole number of at most 63 bits.")
    return number


def headers(given: Mapping[Any, Any]) -> Mapping[str, str]:
    """Attributes beside those of every message; as in CloudEvents, text without control characters."""
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(f"headers= maps text to text; {name!r} has {value!r}.")
        if not _HEADER_NAME.fullmatch(name) or len(name) > LONGEST_HEADER_NAME:
            raise MessageRefused(
                f"headers=: the name {name!r} must be 1 to {LONGEST_HEADER_NAME} ASCII letters, digits, hyphens and "
                "underscores, with single dots between them, which every broker carries."
            )
        if name.lower().startswith(RESERVED) or name.lower() in DATA:
            raise MessageRefused(
                f"headers=: {name!r} would be read as an attribute of the message, as its payload, or as an order to a "
                "broker. Give the header another name; the media type has an argument, media_type=."
            )
        if name.lower() in OWN:
            raise MessageRefused(f"headers=: {name!r} is an attribute of every message, which has an argument for it.")
        if _has_control(value):
            raise MessageRefused(f"headers=: the value of {name!r} has a control character.")
    if (size := len(json.dumps(dict(given)))) > LARGEST_HEADERS:
        raise MessageRefused(f"headers= have {size} bytes; at most {LARGEST_HEADERS} are taken.")
    return given


def _has_control(text: str) -> bool:
    return not text.isprintable() and any(unicodedata.category(one) in ("Cc", "Cs") for one in text)
