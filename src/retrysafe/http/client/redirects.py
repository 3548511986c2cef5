"""Where a request goes, and where a redirect sends it. Rule C16; RFC 9110 section 15.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin

from retrysafe.http.client.hosts import address
from retrysafe.http.client.results import Answer

CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})
"""What another origin must not see. The key is the first origin's as well."""
_OF_THE_BODY = frozenset(
    {"content-type", "content-length", "content-encoding", "content-language", "content-location", "transfer-encoding"}
)


class Target(NamedTuple):
    """One request as it is sent: how it differs from the one that the caller made."""

    method: str
    url: str
    keyed: bool
    """Whether the key goes with it."""
    with_body: bool = True
    moved: bool = False
    """Whether it is the caller's request no longer, so that its Host is made anew."""
    dropped: frozenset[str] = frozenset()
    """Names of headers, in lower case, that do not go with it."""
    added: Mapping[str, str] = {}
    """Headers in place of the caller's of the same name."""


def follow(target: Target, answer: Answer) -> Target | None:
    """The request that a redirect asks for; None if it leads nowhere that HTTP goes."""
    url, _ = urldefrag(urljoin(target.url, answer.headers["location"]))
    if not url.lower().startswith(("http://", "https://")):
        return None
    elsewhere = address(url) != address(target.url)
    becomes_get = _becomes_get(target.method, answer.status)
    dropped = target.dropped
    if becomes_get:
        dropped |= _OF_THE_BODY
    if elsewhere:
        dropped |= CREDENTIALS
    return target._replace(
        method="GET" if becomes_get else target.method,
        url=url,
        keyed=target.keyed and not elsewhere and not becomes_get,
        with_body=target.with_body and not becomes_get,
        moved=True,
        dropped=dropped,
        added={name: value for name, value in target.added.items() if name.lower() not in dropped},
    )


def _becomes_get(method: str, status: int) -> bool:
    """303 asks for it; of 301 and 302 every client makes it for a POST, and the RFC has given in."""
    return (status == 303 and method not in ("GET", "HEAD")) or (status in (301, 302) and method == "POST")
