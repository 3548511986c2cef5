"""What a person gives as the result of a key, as it is stored."""

from __future__ import annotations

import json
from typing import Any

from retrysafe.claims.codec import MEDIA_TYPE, VERSION
from retrysafe.protocol.records import StoredResult


def stored_json(text: str) -> StoredResult:
    """JSON as the result of a key; raise `ValueError` for any other text."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        stored = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # 1e999 is read as inf
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return StoredResult(stored.encode(), MEDIA_TYPE, VERSION)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
