"""The OpenAPI description of a guarded route: its header, the answers of the layer, and the terms of a retry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from retrysafe.http.guard import Guard
from retrysafe.http.key_header import ULID, KeyPolicy
from retrysafe.http.messages import MARKER
from retrysafe.http.problems import PROBLEMS

EXTENSION = "x-idempotency"
_SHOWN = ("key-missing", "key-invalid", "in-progress", "outcome-unknown", "key-reused", "store-unavailable")
_KEYS: dict[KeyPolicy, str] = {
    "any": "1 to 255 printable characters",
    "uuid": "a UUID or a ULID made at random",
    "strong": "a UUID, or at least 16 characters that are hard to guess",
}


def extra(guard: Guard, *, required: bool) -> dict[str, Any]:
    """Return our additions to an operation; ``required`` is whether it wants a key."""
    return {
        "parameters": [parameter(guard, required=required)],
        "responses": responses(guard),
        EXTENSION: extension(guard, required=required),
    }


def with_parameters(given: Iterable[Any], over: Iterable[Any]) -> list[Any]:
    """Parameters with those ``over`` them, each header once: names of headers do not differ by case (RFC 9110)."""
    over = list(over)
    named = set(map(_header, over)) - {None}
    return [*(one for one in given if _header(one) not in named), *over]


def _header(parameter: Any) -> str | None:
    """The name of a header; None of any other parameter."""
    is_header = isinstance(parameter, Mapping) and parameter.get("in") == "header"
    return str(parameter.get("name")).lower() if is_header else None


def parameter(guard: Guard, *, required: bool) -> dict[str, Any]:
    """The request header."""
    policy = guard.policy
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 255}
    if policy.key_policy == "uuid":
        schema |= {"anyOf": [{"format": "uuid"}, {"pattern": ULID}]}
    return {
        "name": policy.header,
        "in": "header",
        "required": required,
        "schema": schema,
        "description": (
            f"Names this one operation, for {_duration(guard.boundary.window)}: {_KEYS[policy.key_policy]}. A retry "
            "with the same key and the same request gets the first response, and nothing is done twice."
        ),
    }


def responses(guard: Guard) -> dict[str, Any]:
    """The layer's own answers, by status."""
    found: dict[int, list[str]] = {}
    for code in (*_SHOWN, *(() if guard.principal is None else ("principal-missing",))):
        found.setdefault(guard.status(code), []).append(code)
    return {str(status): _response(status, codes) for status, codes in sorted(found.items())}


def _response(status: int, codes: list[str]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {'; '.join(PROBLEMS[code].title for code in codes)}",
        "content": {"application/problem+json": {"schema": _schema(codes)}},
    }
    if any(PROBLEMS[code].retry_after for code in codes):
        response["headers"] = {
            "Retry-After": {"description": "Seconds after which to ask again.", "schema": {"type": "integer"}}
        }
    return response


def _schema(codes: list[str]) -> dict[str, Any]:
    """RFC 9457, and what we add."""
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "safe_new_key"],
        "properties": {
            "type": {"type": "string", "format": "uri"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": codes},
            "safe_new_key": {"type": "boolean", "description": "Whether the client may start over with a new key."},
            "key_hash": {"type": "string", "description": "By which the operator of the service finds the key."},
            "operator_command": {"type": "string", "description": "The operator's command that shows the key."},
        },
    }


def extension(guard: Guard, *, required: bool) -> dict[str, Any]:
    """Return for how many seconds a retry is recognised, and which parts must be equal (section 2.5 of the draft)."""
    window = guard.boundary.window
    return {
        "header": guard.policy.header,
        "required": required,
        "window": int(window) if window.is_integer() else window,
        "effects": guard.boundary.effects,
        "fingerprint": ["method", "path", "query", *(field.decode() for field in guard.fields), "body"],
        "body": "canonical JSON" if guard.policy.canonical_json else "bytes",
        "replayed": MARKER.decode(),
    }


def _duration(seconds: float) -> str:
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit and seconds % unit == 0:
            number = int(seconds // unit)
            return f"{number} {name}{'' if number == 1 else 's'}"
    return f"{seconds:g} seconds"
