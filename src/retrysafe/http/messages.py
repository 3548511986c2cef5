"""Requests and responses as the protocol sees them, whatever server and framework carry them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

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
_MOST_DIGITS = 19
"""Of a length; a longer one is over every limit, and Python reads no number of more than 4300 digits."""


class Request:
    """The head of a request: its method, the path and query as they were on the wire, and its field lines."""

    __slots__ = ("_lines", "headers", "method", "path", "query", "routed")

    def __init__(self, method: str, path: bytes, query: bytes, headers: Headers, routed: tuple[str, ...] = ()) -> None:
        self.method = method.upper()
        """In capitals, as most frameworks read it, although methods are case-sensitive (RFC 9110 section 9.1)."""
        self.path = path
        self.query = query
        self.headers = headers
        self.routed = routed
        """The path as the application routes it: decoded, without the prefix where it is mounted, or its route."""
        self._lines: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            if name in self._lines:
                self._lines[name].append(value)
            else:
                self._lines[name] = [value]

    def lines(self, name: bytes) -> Sequence[bytes]:
        """The values of the lines named ``name``, in their order."""
        return self._lines.get(name, ())


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
    return tuple((name.lower(), value) for name, value in headers)


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
    return any(
        name == b"content-type" and value.lstrip().lower().startswith(b"text/event-stream") for name, value in headers
    )


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


def kept(response: Response, allowed: frozenset[bytes] | None, secrets: frozenset[bytes]) -> Response:
    """The response without what must not be stored.

    That is what concerns one connection only, what is made anew, secrets other than ``secrets``, and if there is
    an allow-list what is not on it.
    """
    named = {
        token.strip().lower()
        for name, value in response.headers
        if name == b"connection"
        for token in value.split(b",")
    }
    dropped = _dropped(secrets) | named if named else _dropped(secrets)
    headers = tuple(
        (name, value)
        for name, value in response.headers
        if name not in dropped and (allowed is None or name in allowed)
    )
    return Response(response.status, headers, response.body)


@lru_cache(maxsize=8)
def _dropped(secrets: frozenset[bytes]) -> frozenset[bytes]:
    return HOP_BY_HOP | RENEWED | (SECRETS - secrets)


def replayed(stored: Response) -> Response:
    """What a retry gets: the stored response, marked, not to be cached, and of the right length."""
    body = stored.body or b""
    headers = [(name, value) for name, value in stored.headers if name not in (b"cache-control", MARKER)]
    headers += [(b"cache-control", b"no-store"), (MARKER, b"true")]
    if stored.body is None:
        headers = [(name, value) for name, value in headers if name not in _OF_THE_BODY and name != OMITTED]
        headers.append((OMITTED, b"omitted"))
    if stored.status not in BODYLESS:
        headers.append((b"content-length", str(len(body)).encode()))
    return Response(stored.status, tuple(headers), body)
