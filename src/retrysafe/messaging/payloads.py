"""Payloads as bytes that any consumer can read: plain JSON, or the bytes themselves."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from retrysafe.messaging.errors import MessageRefused

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
        raise MessageRefused(f"payload= is a {type(payload).__qualname__}: {error}") from error


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
