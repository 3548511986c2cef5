"""Requests and responses as the protocol sees them, whatever server and framework carry them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from retrysafe.claims.responses import HOP_BY_HOP as HOP_BY_HOP
from retrysafe.claims.responses import RENEWED, SECRETS
from retrysafe.claims.responses import Headers as Headers
from retrysafe.claims.responses import Response as Response

_OF_THE_BODY = frozenset(
    {b"content-type", b"content-encoding", b"content-language", b"content-range", b"content-md5", b"content-digest"}
)
BODYLESS = frozenset({204, 205, 304})
REDIRECTS = frozenset({301, 302, 303, 307, 308})

MARKER = b"idempotent-replayed"
OMITTED = b"idempotency-replay"
_OF_A_REPLAY = ((b"cache-control", b"no-store"), (MARKER, b"true"))
_SET_ANEW = frozenset(name for name, _ in _OF_A_REPLAY)
_MOST_DIGITS = 19
"""Of a length; a longer one is over every limit, and Python reads no number of more than 4300 digits."""


class Request:
    """The head of a request: its method, the path and query as they were on the wire, and its field lines."""

    __slots__ = ("_given", "fields", "method", "path", "query", "route", "routed")

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        routed: tuple[str, ...] = (),
        route: str = "",
    ) -> None:
        self.method = method.upper()
        """In capitals, as most frameworks read it, although methods are case-sensitive (RFC 9110 section 9.1)."""
        self.path = path
        self.query = query
        self.routed = routed
        """The path as the application routes it: decoded, without the prefix where it is mounted, or its route."""
        self.route = route
        """The template of the path, such as "/orders/{id}", where the framework tells it."""
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


def lower(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Field lines with names in lower case, as ASGI has them."""
    return tuple([(name.lower(), value) for name, value in headers])


def as_sent(headers: Iterable[tuple[Any, Any]]) -> Headers:
    """Field lines as an ASGI application sends them, whose names and values may be any bytes-like objects."""
    lines = []
    for name, value in headers:
        if name.__class__ is bytes and value.__class__ is bytes:
            lines.append((name.lower(), value))
        else:
            lines.append((bytes(name).lower(), bytes(value)))
    return tuple(lines)


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
    """Tell whether a response is an event stream, which may have no end."""
    for name, value in headers:
        if name == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream"):
            return True
    return False


def leads_to_login(request: Request, response: Response, pages: Iterable[str]) -> bool:
    """Tell whether a redirect leads to one of the ``pages``, which is told to send the client back to this path.

    Django, Flask-Login and Starlette write ``?next=`` and the path, or the whole URL.
    """
    target = next((value for name, value in response.headers if name == b"location"), b"").decode("latin-1")
    own = {unquote(request.path.decode("latin-1")), *request.routed}
    try:
        led = urlsplit(target)
        back = [value for _, value in parse_qsl(led.query, max_num_fields=100)]
        return any(_is_at(led, urlsplit(page)) for page in pages) and any(
            unquote(urlsplit(value).path) in own for value in back
        )
    except ValueError:  # no URL
        return False


def _is_at(target: SplitResult, page: SplitResult) -> bool:
    return unquote(target.path) == unquote(page.path) and page.netloc in ("", target.netloc)


def find_dropped_fields(secrets: frozenset[bytes]) -> frozenset[bytes]:
    """The fields that are not stored: of one connection only, made anew, and secrets other than ``secrets``."""
    return HOP_BY_HOP | RENEWED | (SECRETS - secrets)


def strip_fields(response: Response, allowed: frozenset[bytes] | None, dropped: frozenset[bytes]) -> Response:
    """The response without the ``dropped`` fields, those that it names in Connection, and what is not ``allowed``."""
    for name, value in response.headers:
        if name == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    headers = [line for line in response.headers if line[0] not in dropped and (allowed is None or line[0] in allowed)]
    if len(headers) == len(response.headers):
        return response
    return Response(response.status, tuple(headers), response.body)


def mark_replay(stored: Response) -> Response:
    """Build the response to a retry: the stored one, marked, not to be cached, and of the right length."""
    body = stored.body or b""
    headers = [line for line in stored.headers if line[0] not in _SET_ANEW]
    headers += _OF_A_REPLAY
    if stored.body is None:
        headers = [(name, value) for name, value in headers if name not in _OF_THE_BODY and name != OMITTED]
        headers.append((OMITTED, b"omitted"))
    if stored.status not in BODYLESS:
        headers.append((b"content-length", b"%d" % len(body)))
    return Response(stored.status, tuple(headers), body)
