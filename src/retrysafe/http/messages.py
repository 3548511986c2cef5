"""Requests and responses as the protocol sees them, whatever server and framework carry them.

A response is stored as bytes (`ResponseCodec`). Version 2, which is written, is a byte 2, the length of the head in
four bytes, the head, and the body. The head is lines: the status, followed by " omitted" if the body was not kept, then
the name and the value of each field in turn. Version 1 was a line of JSON and the body; it is still read, and still
written for a response with a line feed in a field, which no field may have (RFC 9110 section 5.5).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from retrysafe.claims.codec import kept_body
from retrysafe.errors import ResultUnreadable
from retrysafe.protocol.records import StoredResult

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
_OF_THE_BODY = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"content-range", b"content-md5", b"content-digest"}
)
BODYLESS = frozenset({204, 205, 304})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

MARKER = b"idempotent-replayed"
OMITTED = b"idempotency-replay"
_OF_A_REPLAY = ((b"cache-control", b"no-store"), (MARKER, b"true"))
_SET_ANEW = frozenset(name for name, _ in _OF_A_REPLAY)
MEDIA_TYPE = "application/vnd.retrysafe.http-response"
VERSION = 2
_BEGINNING = struct.Struct(">BI")
"""The version of a stored response, and the length of its head."""
_AT_HEAD = _BEGINNING.size
_NOT_STORED = b" omitted"
_line = json.JSONEncoder(separators=(",", ":")).encode
_MOST_DIGITS = 19
"""Of a length; a longer one is over every limit, and Python reads no number of more than 4300 digits."""


class Request:
    """The head of a request: its method, the path and query as they were on the wire, and its field lines."""

    __slots__ = ("_given", "fields", "method", "path", "query", "routed")

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        routed: tuple[str, ...] = (),
    ) -> None:
        self.method = method.upper()
        """In capitals, as most frameworks read it, although methods are case-sensitive (RFC 9110 section 9.1)."""
        self.path = path
        self.query = query
        self.routed = routed
        """The path as the application routes it: decoded, without the prefix where it is mounted, or its route."""
        self._given = headers
        fields: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            name = name.lower()
            if name in fields:
                fields[name].append(value)
            else:
                fields[name] = [value]
        self.fields = fields
        """The values of all lines, in their order, by name."""

    @property
    def headers(self) -> Headers:
        """The field lines in their order."""
        return lower(self._given)

    def lines(self, name: bytes) -> Sequence[bytes]:
        """The values of the lines named ``name``, in their order."""
        return self.fields.get(name, ())


def path_of(target: str) -> str:
    """The path of a request's target, which may be in the absolute form, as proxies are asked in."""
    path = target.partition("?")[0].partition("#")[0]
    return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]


class Response(NamedTuple):
    """A response: what is stored, and what a replay shows. ``body`` is None when it was too large to keep."""

    status: int
    headers: Headers
    body: bytes | None


def lower(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Field lines with names in lower case, as ASGI has them."""
    return tuple([(name.lower(), value) for name, value in headers])


def as_sent(headers: Iterable[tuple[Any, Any]]) -> Headers:
    """Field lines as an ASGI application sends them, whose names and values may be any bytes-like objects."""
    return tuple(
        [
            (name.lower(), value)
            if name.__class__ is bytes and value.__class__ is bytes
            else (bytes(name).lower(), bytes(value))
            for name, value in headers
        ]
    )


def latin(headers: Iterable[tuple[str, str]]) -> Headers:
    """Field lines of text, as WSGI and most frameworks have them."""
    return tuple((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers)


def length_of(declared: str) -> int | None:
    """The number that a Content-Length is (RFC 9110 section 8.6); None for what is none.

    Of a longer one than any body has, the first digits, which are over every limit.
    """
    if not (declared.isascii() and declared.isdigit()):
        return None
    return int(declared.lstrip("0")[:_MOST_DIGITS] or "0")


def is_endless(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a response is an event stream, which may have no end."""
    for name, value in headers:
        if name == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream"):
            return True
    return False


def leads_to_login(request: Request, response: Response) -> bool:
    """Whether a redirect names the request's own path as where to come back to, as those to a page of login do.

    Django, Flask-Login and Starlette write ``?next=`` and the path, or the whole URL.
    """
    if response.status not in _REDIRECTS:
        return False
    target = next((value for name, value in response.headers if name == b"location"), b"").decode("latin-1")
    own = {unquote(request.path.decode("latin-1")), *request.routed}
    try:
        back = [value for name, value in parse_qsl(urlsplit(target).query, max_num_fields=100) if name == "next"]
        return any(unquote(urlsplit(value).path) in own for value in back)
    except ValueError:  # no URL
        return False


def dropped_fields(secrets: frozenset[bytes]) -> frozenset[bytes]:
    """The fields that are not stored: of one connection only, made anew, and secrets other than ``secrets``."""
    return HOP_BY_HOP | RENEWED | (SECRETS - secrets)


def kept(response: Response, allowed: frozenset[bytes] | None, dropped: frozenset[bytes]) -> Response:
    """The response without the ``dropped`` fields, those that it names in Connection, and what is not ``allowed``."""
    for name, value in response.headers:
        if name == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    headers = [line for line in response.headers if line[0] not in dropped and (allowed is None or line[0] in allowed)]
    return Response(response.status, tuple(headers), response.body)


def replayed(stored: Response) -> Response:
    """What a retry gets: the stored response, marked, not to be cached, and of the right length."""
    body = stored.body or b""
    headers = [line for line in stored.headers if line[0] not in _SET_ANEW]
    headers += _OF_A_REPLAY
    if stored.body is None:
        headers = [(name, value) for name, value in headers if name not in _OF_THE_BODY and name != OMITTED]
        headers.append((OMITTED, b"omitted"))
    if stored.status not in BODYLESS:
        headers.append((b"content-length", b"%d" % len(body)))
    return Response(stored.status, tuple(headers), body)


class ResponseCodec:
    """Responses as bytes, for a record: see the head of this file."""

    def encode(self, value: Any, annotation: Any) -> StoredResult:
        """Encode a `Response`."""
        response: Response = value
        status = b"%d%b" % (response.status, _NOT_STORED if response.body is None else b"")
        head = b"\n".join((status, *chain.from_iterable(response.headers)))
        if head.count(b"\n") != 2 * len(response.headers):
            return _encoded_first(response)
        beginning = _BEGINNING.pack(VERSION, len(head))
        return StoredResult(b"".join((beginning, head, response.body or b"")), MEDIA_TYPE, VERSION)

    def describe(self, value: Any, annotation: Any) -> dict[str, Any]:
        """The status, and the endpoint of the `Request` that is the annotation: its method and path."""
        response: Response = value
        request: Request = annotation
        return {"status": response.status, "endpoint": f"{request.method} {request.path.decode('latin-1')}"}

    def decode(self, stored: StoredResult, annotation: Any) -> Response:
        """Decode; raises `ResultUnreadable` for what is no response, or of a version that we do not know."""
        body = kept_body(stored)
        version = stored.codec_version
        if stored.media_type != MEDIA_TYPE or version not in (1, VERSION):
            kind = f"{stored.media_type} version {version}"
            raise ResultUnreadable(f"The stored result is {kind}; this reads {MEDIA_TYPE} up to version {VERSION}.")
        try:
            return _decoded(body) if version == VERSION else _decoded_first(body)
        except (ValueError, TypeError, LookupError, AttributeError, struct.error) as error:
            raise ResultUnreadable(f"The stored response cannot be read: {error!r}") from error


def _decoded(stored: bytes) -> Response:
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


def _encoded_first(response: Response) -> StoredResult:
    head = {
        "status": response.status,
        "headers": [[name.decode("latin-1"), text.decode("latin-1")] for name, text in response.headers],
        "omitted": response.body is None,
    }
    return StoredResult(b"%b\n%b" % (_line(head).encode(), response.body or b""), MEDIA_TYPE, 1)


def _decoded_first(stored: bytes) -> Response:
    line, _, body = stored.partition(b"\n")
    head = json.loads(line)
    headers = tuple((name.encode("latin-1"), text.encode("latin-1")) for name, text in head["headers"])
    return Response(int(head["status"]), headers, None if head["omitted"] else body)
