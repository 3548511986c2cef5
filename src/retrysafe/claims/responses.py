"""HTTP responses as the results of requests: how they are stored, and how a probe or a person gives one.

A response is stored as bytes (`ResponseCodec`). Version 2, which is written, is a byte 2, the length of the head in
four bytes, the head, and the body. The head is lines: the status, followed by " omitted" if the body was not kept, then
the name and the value of each field in turn. Version 1 was a line of JSON and the body; it is still read, and still
written for a response with a line feed in a field, which no field may have (RFC 9110 section 5.5).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple, cast

from retrysafe.claims.codec import AnswerCodec, require_body
from retrysafe.errors import ConfigurationError, ResultUnreadable
from retrysafe.protocol.records import HTTP, Outcome, StoredResult, key_space

OPERATION = HTTP
"""The operation of guarded requests; where each endpoint has keys of its own, it begins with this and a space."""
Headers = tuple[tuple[bytes, bytes], ...]
"""Field lines in the order in which they stand, names in lower case."""


HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade", b"trailer"}
)
"""RFC 9110 section 7.6.1: what concerns one connection and not the response."""
RENEWED = frozenset({b"date", b"content-length"})
SECRETS = frozenset(
    {
        b"set-cookie",
        b"www-authenticate",
        b"proxy-authenticate",
        b"authorization",
        b"proxy-authorization",
        b"authentication-info",
        b"proxy-authentication-info",
        b"x-auth-token",
        b"x-access-token",
        b"x-refresh-token",
        b"x-session-token",
        b"x-csrf-token",
        b"x-xsrf-token",
        b"x-api-key",
        b"x-amz-security-token",
    }
)
"""Credentials and what asks for them (RFC 9110 section 11, RFC 6265): bound to a session or to a moment."""
MEDIA_TYPE = "application/vnd.retrysafe.http-response"
VERSION = 2
_BEGINNING = struct.Struct(">BI")
"""The version of a stored response, and the length of its head."""
_AT_HEAD = _BEGINNING.size
_NOT_STORED = b" omitted"
_line = json.JSONEncoder(separators=(",", ":")).encode
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_GIVEN = HOP_BY_HOP | RENEWED
_WITHOUT_CONTENT = frozenset({204, 205, 304})


class Response(NamedTuple):
    """A response: what is stored, and what a replay shows. ``body`` is None when it was too large to keep."""

    status: int
    headers: Headers
    body: bytes | None


def is_http(operation: str) -> bool:
    """Tell whether keys of an operation belong to HTTP requests, so that their results are responses."""
    return key_space(operation).partition(" ")[0] == OPERATION


def respond(
    status: int,
    body: Any = b"",
    *,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    content_type: str | None = None,
) -> Response:
    """The response to a request whose key is settled: ``result=`` of `Boundary.resolve` and of operators.

    ``body`` is bytes, text, or anything else as JSON; ``content_type`` is by default what it is of these.
    Raises `ConfigurationError` for what is no response.
    """
    if type(status) is not int or not 200 <= status <= 599:
        raise ConfigurationError(f"status={status!r}: a response has a number from 200 to 599.")
    if isinstance(body, bytes | bytearray | memoryview):
        kind, content = "application/octet-stream", bytes(body)
    elif isinstance(body, str):
        kind, content = "text/plain; charset=utf-8", body.encode()
    else:
        kind, content = "application/json", _as_json(body)
    if content and status in _WITHOUT_CONTENT:
        raise ConfigurationError(f"status={status} with a body: such a response has none (RFC 9110). Leave it out.")
    given = cast("Iterable[tuple[str, str]]", headers.items() if isinstance(headers, Mapping) else headers)
    lines = [_line_of(name, value) for name, value in given]
    if content_type is not None:
        lines.append(_line_of("content-type", content_type))
    elif content and all(name != b"content-type" for name, _ in lines):
        lines.append((b"content-type", kind.encode()))
    told = next((value for name, value in lines if name == b"content-type"), b"").partition(b";")[0].strip()
    if content and (told == b"application/json" or told.endswith(b"+json")) and isinstance(_parse(content), Exception):
        raise ConfigurationError(f"body= is not JSON, as its content type {told.decode()} says.")
    return Response(status, tuple(lines), content)


def type_of_text(body: bytes) -> str:
    """The content type of a body that a person has typed: JSON if it is an object or a list, else text."""
    return "application/json" if isinstance(_parse(body), dict | list) else "text/plain; charset=utf-8"


def _parse(body: bytes) -> Any:
    """The value of JSON, the error of anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        return error


def _as_json(body: Any) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"body= is neither bytes nor text, and no JSON: {error}.") from error


def _line_of(name: str, value: Any) -> tuple[bytes, bytes]:
    """One field line (RFC 9110 section 5.5); raises `ConfigurationError`."""
    if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ConfigurationError(f"headers=: {name!r}: {value!r} is no header, a name and printable ASCII.")
    line = name.lower().encode(), value.strip().encode()
    if line[0] in _NOT_GIVEN:
        raise ConfigurationError(f"headers=: {name} is made anew for each response, or concerns one connection.")
    if line[0] in SECRETS:
        raise ConfigurationError(
            f"headers=: {name} is of one session or moment, and retries come in others: leave it out."
        )
    return line


def encode_answer(operation: str, outcome: Outcome, result: Any) -> StoredResult | None:
    """The answer that a person or program gives for an HTTP key, as it is stored; None where there is none to give.

    ``result`` is a `Response`, or one that is stored. Raises `ConfigurationError` for what retries could not be shown.
    """
    if outcome == "released":
        return None
    stored = _CODEC.encode(result, None) if isinstance(result, Response) else result
    try:
        shown = _CODEC.decode(stored, None) if isinstance(stored, StoredResult) else None
    except ResultUnreadable:
        shown = None
    if shown is None:
        raise ConfigurationError(
            f"Keys of operation {operation!r} belong to HTTP requests, whose retries get a response: give "
            "result=respond(201, {…}, headers={…}) of retrysafe.http (--status, --header, --content-type and --body of "
            "the command line). Nothing was changed."
        )
    if outcome == "failed" and shown.status < 400:
        raise ConfigurationError(
            f"status {shown.status} is no failure: settle the key as completed, or give a status from 400 on. Nothing "
            "was changed."
        )
    return stored


def refuse_response(operation: str, result: Any) -> None:
    """Raise `ConfigurationError` for a response that is given as the answer of a key that belongs to no request."""
    if isinstance(result, Response) or (isinstance(result, StoredResult) and result.media_type == MEDIA_TYPE):
        raise ConfigurationError(
            f"The result is an HTTP response, and keys of operation {operation!r} belong to no HTTP request: give what "
            "the operation returns. Nothing was changed."
        )


class ResponseCodec(AnswerCodec):
    """Responses as bytes, for a record: see the head of this file."""

    media_type = MEDIA_TYPE

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode a `Response`."""
        response: Response = value
        status = b"%d%b" % (response.status, _NOT_STORED if response.body is None else b"")
        head = b"\n".join((status, *chain.from_iterable(response.headers)))
        if head.count(b"\n") != 2 * len(response.headers):
            return _encode_first(response)
        beginning = _BEGINNING.pack(VERSION, len(head))
        return StoredResult(b"".join((beginning, head, response.body or b"")), MEDIA_TYPE, VERSION)

    def describe(self, value: Any, annotation: Any) -> dict[str, Any]:
        """The status, and the endpoint of the `Request` that is the annotation."""
        response: Response = value
        return {"status": response.status, **self.arrived(annotation)}

    def arrived(self, annotation: Any) -> dict[str, str]:
        """The endpoint of the `Request` that is the annotation: its method and path."""
        return {"endpoint": f"{annotation.method} {annotation.path.decode('latin-1')}"}

    def respond(self, status: int, body: Any, **fields: Any) -> Response:
        """A response that a probe gives."""
        return respond(status, body, **fields)

    def decode(self, stored: StoredResult, annotation: Any) -> Response:
        """Decode; raises `ResultUnreadable` for what is no response, or of a version that we do not know."""
        body = require_body(stored)
        version = stored.codec_version
        if stored.media_type != MEDIA_TYPE or version not in (1, VERSION):
            kind = f"{stored.media_type} version {version}"
            raise ResultUnreadable(f"The stored result is {kind}; this reads {MEDIA_TYPE} up to version {VERSION}.")
        try:
            return _decode(body) if version == VERSION else _decode_first(body)
        except (ValueError, TypeError, LookupError, AttributeError, struct.error) as error:
            raise ResultUnreadable(f"The stored response cannot be read: {error!r}") from error


def _decode(stored: bytes) -> Response:
    version, length = _BEGINNING.unpack_from(stored)
    end = _AT_HEAD + length
    parts = stored[_AT_HEAD:end].split(b"\n")
    if version != VERSION or end > len(stored) or not len(parts) % 2:
        raise ValueError("it is cut off, or damaged")
    status, fields = parts[0], iter(parts[1:])
    headers = tuple(zip(fields, fields, strict=True))
    if status.endswith(_NOT_STORED):
        return Response(int(status.removesuffix(_NOT_STORED)), headers, None)
    return Response(int(status), headers, stored[end:])


def _encode_first(response: Response) -> StoredResult:
    head = {
        "status": response.status,
        "headers": [[name.decode("latin-1"), text.decode("latin-1")] for name, text in response.headers],
        "omitted": response.body is None,
    }
    return StoredResult(b"%b\n%b" % (_line(head).encode(), response.body or b""), MEDIA_TYPE, 1)


def _decode_first(stored: bytes) -> Response:
    line, _, body = stored.partition(b"\n")
    head = json.loads(line)
    headers = tuple((name.encode("latin-1"), text.encode("latin-1")) for name, text in head["headers"])
    return Response(int(head["status"]), headers, None if head["omitted"] else body)


_CODEC = ResponseCodec()
