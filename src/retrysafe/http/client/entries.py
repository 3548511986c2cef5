"""Requests as a journal has them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from retrysafe.http.client.hosts import address, shown
from retrysafe.protocol import keys

_MADE_ANEW = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive", "idempotency-key"})


class Entry(NamedTuple):
    """A request in the journal. Times are seconds since 1970."""

    id: bytes
    scope: str
    key: str
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    created: float
    recognised_until: float | None
    """Until when its host recognises the key; None if that host was not known to honour keys."""
    attempts: int = 0
    last: str = ""
    """What its last attempt came to, as far as a living process could say."""
    owner: str = ""
    held_until: float = 0.0
    field: str = ""
    """The value of the header with the key, as it was sent: a server may take another form of it for another key."""
    runs: tuple[str, ...] = ()
    """The calls that are at it, in any process."""
    in_doubt: bool = False
    """Whether one of the calls that were at it at once has ended in doubt."""

    @property
    def name(self) -> str:
        """The key as logs and commands show it: the first eight digits of a hash."""
        return keys.redact(self.id)

    def __repr__(self) -> str:
        return f"<Entry {self}>"

    def __str__(self) -> str:
        """What it is, for people: no key, no body, no query."""
        return f"{self.method} {shown(self.url)} (key {self.name})"


def identity(scope: str, url: str, key: str) -> bytes:
    """The hash under which a key of one host is known here: in the journal, in events and in logs."""
    return keys.lookup(None, "http.client", scope, address(url), key)


def kept_headers(headers: Iterable[tuple[str, str]], secrets: Container[str]) -> tuple[tuple[str, str], ...]:
    """What of a request's headers is written: no credentials, and nothing that a client makes by itself."""
    lowered = ((name.lower(), value) for name, value in headers)
    return tuple((name, value) for name, value in lowered if name not in secrets and name not in _MADE_ANEW)
