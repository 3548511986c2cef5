"""The users of the console, and their rights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, NamedTuple

from starlette.requests import Request

from retrysafe.admin.operator import user
from retrysafe.errors import ConfigurationError


class Right(StrEnum):
    """A right of a principal, beside reading. No right contains another."""

    RESOLVE = "resolve"
    """Settle keys whose outcome is unknown: as completed, as failed, or released to be run again. Give up runs."""
    EXPIRE = "expire"
    """End the window of a settled key, so that its next use runs the work again."""
    REDRIVE = "redrive"
    """Have dead letters published or handled again."""
    PAUSE = "pause"
    """Pause and resume topics of the outbox."""
    REVEAL = "reveal"
    """See stored results and the payloads of messages. Each look is audited."""


EVERY_RIGHT = frozenset(Right)
_FORWARDED = frozenset({"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})
"""Headers by which a proxy says that it hands on the request of another."""


class Principal(NamedTuple):
    """The maker of a request: a name for the audit, and rights; without rights it reads only."""

    name: str
    rights: frozenset[Right] = frozenset()

    def may(self, right: Right) -> bool:
        return right in self.rights


Access = Callable[[Any], Principal | Awaitable[Principal | None] | None]
"""From the request of the application that the console is mounted in to who makes it; None refuses it."""


class Local:
    """Access from this machine alone, for a console that its user has started: every client there is that user.

    Arguments:
        rights: what they may do beside reading, such as "resolve".
    """

    def __init__(self, *rights: Right | str) -> None:
        self._principal = Principal(user(), rights_named(rights))

    def __call__(self, request: Request) -> Principal | None:
        """The user, unless the request comes from another machine, or through a proxy that says so."""
        client = request.client
        if client is None or not is_loopback(client.host) or not _FORWARDED.isdisjoint(request.headers):
            return None
        return self._principal


def rights_named(names: Iterable[Right | str]) -> frozenset[Right]:
    try:
        return frozenset(map(Right, names))
    except ValueError as error:
        raise ConfigurationError(f"{error}: the rights are {', '.join(Right)}.") from None


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
