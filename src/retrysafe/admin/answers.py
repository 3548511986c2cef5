"""The result that a person gives for a key, in its stored form."""

from __future__ import annotations

import json
from typing import Any

from retrysafe.claims.codec import MEDIA_TYPE, VERSION
from retrysafe.claims.responses import Response, respond, type_of_text
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.records import StoredResult


def json_result(text: str) -> StoredResult:
    """JSON as the result of a key; raise `ValueError` for any other text."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        stored = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)  # 1e999 is read as inf
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return StoredResult(stored.encode(), MEDIA_TYPE, VERSION)


def response_of(text: str) -> Response:
    """The response to an HTTP request, written as on the wire: the status, lines of headers, an empty line, the body.

    Raises `ValueError` for any other text.
    """
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    status, *lines = [line for line in head.strip().split("\n") if line.strip()] or [""]
    if not status.strip().isdigit():
        raise ValueError("its first line is not a status, such as 201")
    return response_from_form(status, "\n".join(lines), body)


def response_from_form(status: str, headers: str, body: str, content_type: str = "") -> Response:
    """The response that fields of a form give; ``headers`` has one on each line. Raises `ValueError`."""
    fields = [
        (name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in headers.splitlines())
    ]
    named = any(name.lower() == "content-type" for name, _ in fields)
    try:
        return respond(
            int(status) if status.strip().isdigit() else 0,
            body.encode(),
            headers=[one for one in fields if any(one)],
            content_type=content_type or (type_of_text(body.encode()) if body and not named else None),
        )
    except ConfigurationError as error:
        raise ValueError(error.detail) from error


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
