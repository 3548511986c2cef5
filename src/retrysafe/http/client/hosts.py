"""The hosts that honour an `Idempotency-Key`, and their terms: no client can find these out by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError
from retrysafe.http.key_header import HEADER, field_name
from retrysafe.protocol import durations
from retrysafe.protocol.records import Duration
from retrysafe.providers import Provider, provider

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
        provider: its name in the catalogue, such as "stripe": what is not said below is as its own page says.
        retention: how long the server remembers a key; by default 24 hours, or the provider's. Beyond it a retry could
            run twice, and is not sent.
        header: the header that carries the key, by default Idempotency-Key, or the provider's. A key that a caller has
            given as Idempotency-Key is sent in it.
        key_syntax: "quoted" sends ``Idempotency-Key: "k"``, as the draft has it; "bare" sends ``k``, as providers want.
        methods: which requests get a key.
        requires_key: refuse those without a key of the caller's, by `InvalidKey`: a call that is made anew after an
            error then cannot get a new one.
        should_retry: the name of a response header by which the server says whether to retry, such as
            "Stripe-Should-Retry"; its "true" and "false" go before the status.

    Durations are seconds, `datetime.timedelta`, or text such as "24h". Raises `ConfigurationError` for an origin
    that is none, and for a provider that takes no key in a header, or does not say for how long unless you do.
    Source: draft-ietf-httpapi-idempotency-key-header-07, sections 2.1 and 2.3.
    """

    __slots__ = ("header", "key_syntax", "methods", "origin", "provider", "requires_key", "retention", "should_retry")

    def __init__(
        self,
        origin: str,
        *,
        provider: str | None = None,
        retention: Duration | None = None,
        header: str | None = None,
        key_syntax: KeyForm | None = None,
        methods: Iterable[str] = ("POST", "PATCH"),
        requires_key: bool = False,
        should_retry: str | None = None,
    ) -> None:
        terms = self.provider = None if provider is None else _terms(provider, retention)
        if terms is not None:
            retention = retention or min(terms.kept or 0.0, durations.LONGEST)
            header, key_syntax = header or terms.header, key_syntax or "bare"
            should_retry = should_retry or terms.retry
        key_syntax = key_syntax or "quoted"
        if key_syntax not in ("quoted", "bare"):
            raise ConfigurationError(f'key_syntax={key_syntax!r} must be "quoted" or "bare".')
        if isinstance(methods, str):
            raise ConfigurationError(f"methods={methods!r} must be a list of methods.")
        self.origin = origin_of(origin)
        if urlsplit(origin).path.strip("/") or urlsplit(origin).query:
            raise ConfigurationError(f"{origin!r} is more than an origin: leave its path out.")
        self.retention = durations.seconds("24h" if retention is None else retention, "retention")
        self.header = HEADER if header is None else field_name(header)
        self.key_syntax = key_syntax
        self.methods = frozenset(method.upper() for method in methods)
        self.requires_key = requires_key
        self.should_retry = should_retry

    def __repr__(self) -> str:
        other = "" if self.header == HEADER else f", header={self.header!r}"
        return f"Host({self.origin!r}, retention={self.retention:g}, key_syntax={self.key_syntax!r}{other})"

    def field(self, key: str) -> str:
        """The value of the header that carries ``key``. Raises `InvalidKey` for one that the provider does not take."""
        if self.provider is not None:
            self.provider.accept(key)
        return key if self.key_syntax == "bare" else quote_key(key)


def _terms(name: str, retention: Duration | None) -> Provider:
    """The terms of a provider that takes keys in a header."""
    terms = provider(name)
    if terms.header is None:
        place = f"in {terms.field}, which you set by provider({name!r}).key_for(…)" if terms.field else "nowhere"
        raise ConfigurationError(f"provider={name!r}: {terms.title} takes a key {place}; no header carries it.")
    if terms.kept is None and retention is None:
        raise ConfigurationError(
            f"provider={name!r}: {terms.title} does not say how long it remembers a key. Give retention=, so that a "
            f"retry is not sent later. See {terms.source}."
        )
    return terms


def quote_key(key: str) -> str:
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


def hide_query(url: str) -> str:
    """A URL as errors name it: without its query, which may be confidential."""
    return url.partition("?")[0]


@lru_cache(maxsize=1024)
def address(url: str) -> str:
    """Return the server of a URL, as far as it shows: for budgets, events and the journal."""
    try:
        return origin_of(url)
    except ConfigurationError:
        return urlsplit(url).scheme or "?"
