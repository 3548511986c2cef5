"""The hosts that honour an `Idempotency-Key`, and their terms: no client can find these out by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations
from retrysafe.protocol.records import Duration

KeyForm = Literal["quoted", "bare"]

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods whose repetition has one effect by definition (RFC 9110 section 9.2.2)."""
_PORTS = {"http": 80, "https": 443}
_LONGEST_NAME = 253
"""Characters of a name in the DNS; what is longer is none, and would take the encoder long."""
_IS_HOST = re.compile(r"[a-z0-9._~-]+|[0-9a-z.:%]+").fullmatch


class Host:
    """A server that runs a request once per key, as its documentation says.

    Arguments:
        origin: scheme, host and port: "https://api.example.com".
        retention: how long the server remembers a key. Beyond it a retry could run twice, and is not sent.
        key_syntax: "quoted" sends ``Idempotency-Key: "k"``, as the draft has it; "bare" sends ``k``, as Stripe wants.
        methods: which requests get a key.
        should_retry: the name of a response header by which the server says whether to retry, such as
            "Stripe-Should-Retry"; its "true" and "false" go before the status.

    Durations are seconds, `datetime.timedelta`, or text such as "24h". Raises `ConfigurationError` for an origin
    that is none. Source: draft-ietf-httpapi-idempotency-key-header-07, sections 2.1 and 2.3.
    """

    __slots__ = ("key_syntax", "methods", "origin", "retention", "should_retry")

    def __init__(
        self,
        origin: str,
        *,
        retention: Duration = "24h",
        key_syntax: KeyForm = "quoted",
        methods: Iterable[str] = ("POST", "PATCH"),
        should_retry: str | None = None,
    ) -> None:
        if key_syntax not in ("quoted", "bare"):
            raise ConfigurationError(f'key_syntax={key_syntax!r} must be "quoted" or "bare".')
        if isinstance(methods, str):
            raise ConfigurationError(f"methods={methods!r} must be a list of methods.")
        self.origin = origin_of(origin)
        if urlsplit(origin).path.strip("/") or urlsplit(origin).query:
            raise ConfigurationError(f"{origin!r} is more than an origin: leave its path out.")
        self.retention = durations.seconds(retention, "retention")
        self.key_syntax = key_syntax
        self.methods = frozenset(method.upper() for method in methods)
        self.should_retry = should_retry

    def __repr__(self) -> str:
        return f"Host({self.origin!r}, retention={self.retention:g}, key_syntax={self.key_syntax!r})"

    def field(self, key: str) -> str:
        """The value of the header that carries ``key``."""
        return key if self.key_syntax == "bare" else quoted(key)


def quoted(key: str) -> str:
    """A key as a structured string (RFC 9651 section 3.3.3)."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, always with the port (RFC 6454 section 4)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"{without_password(url)!r} has no usable host and port.") from None
    scheme, host = parts.scheme.lower(), _ascii((parts.hostname or "").lower())
    if scheme not in _PORTS or not _IS_HOST(host):
        raise ConfigurationError(f'{without_password(url)!r} is not an origin: write "https://api.example.com".')
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port or _PORTS[scheme]}"


def _ascii(host: str) -> str:
    """A name as it is sent, as the client libraries have it (UTS 46); empty if it is none."""
    if host.isascii():
        return host
    if len(host) > _LONGEST_NAME:
        return ""
    try:
        import idna
    except ImportError:  # every client library has it
        return ""
    try:
        return idna.encode(host, uts46=True).decode()
    except idna.IDNAError:
        return ""


def shown(url: str) -> str:
    """A URL as errors name it: without its query, which may be confidential."""
    return url.partition("?")[0]


@lru_cache(maxsize=1024)
def address(url: str) -> str:
    """Return the server of a URL, as far as it shows: for budgets, events and the journal."""
    try:
        return origin_of(url)
    except ConfigurationError:
        return urlsplit(url).scheme or "?"
