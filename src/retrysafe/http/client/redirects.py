"""The target of a request, and of a redirect. Rule C16; RFC 9110 section 15.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

from retrysafe.errors import ConfigurationError
from retrysafe.http.client.headers import OF_THE_LIBRARY, SECRETS, secrets_among
from retrysafe.http.client.hosts import address, origin_of
from retrysafe.http.client.results import ServerAnswer
from retrysafe.http.key_header import HEADER

_OF_THE_BODY = frozenset(
    {"content-type", "content-length", "content-encoding", "content-language", "content-location", "transfer-encoding"}
)


class RequestTarget(NamedTuple):
    """One request as it is sent: how it differs from the one that the caller made."""

    method: str
    url: str
    keyed: bool
    """True if the key goes with it."""
    with_body: bool = True
    at_home: bool = True
    """True if no other origin was on its way here: only then it has the caller's credentials."""
    moved: bool = False
    """True if it is the caller's request no longer, so that its Host is made anew."""
    dropped: frozenset[str] = frozenset()
    """Names of headers, in lower case, that do not go with it."""
    added: Mapping[str, str] = {}
    """Headers in place of the caller's of the same name."""
    header: str = HEADER
    """The header that carries the key."""


def follow(target: RequestTarget, answer: ServerAnswer, secrets: frozenset[str] = SECRETS) -> RequestTarget | None:
    """The request that a redirect asks for; None if it leads nowhere that HTTP goes.

    ``secrets`` are the names of headers, in lower case, that no other origin must see. The key is the first origin's
    as well, and so is all that a refresh has added.
    """
    url = _resolve(target.url, answer.headers["location"])
    if url is None:
        return None
    elsewhere = address(url) != address(target.url)
    becomes_get = _becomes_get(target.method, answer.status)
    dropped = target.dropped
    keyed = target.keyed and not elsewhere and not becomes_get
    if not keyed:
        dropped |= {target.header.lower()}
    if becomes_get:
        dropped |= _OF_THE_BODY
    if elsewhere:
        dropped |= secrets | {name.lower() for name in target.added}
    return target._replace(
        method="GET" if becomes_get else target.method,
        url=url,
        keyed=keyed,
        with_body=target.with_body and not becomes_get,
        at_home=target.at_home and not elsewhere,
        moved=True,
        dropped=dropped,
        added={name: value for name, value in target.added.items() if name.lower() not in dropped},
    )


def credentials_to_leave(url: str, answer: ServerAnswer, names: Iterable[str]) -> frozenset[str]:
    """Name the headers of a request that a client library must not send along when it follows a redirect itself.

    Nothing where the redirect stays at the origin of ``url``. What libraries take away by themselves is left to them:
    they may have other such headers for the other origin.
    """
    target = _resolve(url, answer.headers.get("location", ""))
    stays = target is not None and address(target) == address(url)
    return frozenset() if stays else secrets_among(names) - OF_THE_LIBRARY


def _resolve(base: str, location: str) -> str | None:
    """The URL that a Location means; None if it is none, or if clients could read it in two ways."""
    try:
        url, _ = urldefrag(urljoin(base, location.strip()))
        origin_of(url)
    except (ValueError, ConfigurationError):
        return None
    return None if "@" in urlsplit(url).netloc or "\\" in url or not url.isprintable() else url


def _becomes_get(method: str, status: int) -> bool:
    """303 asks for it; of 301 and 302 every client makes it for a POST, and the RFC has given in."""
    return (status == 303 and method not in ("GET", "HEAD")) or (status in (301, 302) and method == "POST")
