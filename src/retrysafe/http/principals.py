"""Principals: whose a request is, as text in which no two of them meet."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeGuard
from uuid import UUID

from retrysafe.cancellation import is_cancelled
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.keys import LONGEST

SHARED: Literal["shared"] = "shared"
Principal: TypeAlias = Callable[..., Any] | Literal["shared"]
"""A function that finds whose a request is; or "shared": all clients are one tenant, on purpose."""
Named: TypeAlias = str | int | UUID

_PREFIXED = re.compile(r"\d+:|sha256:")


UNSAID: Any = None
"""The default of ``principal=``, which is refused with the lines to paste."""


_FINDER = "principal=…,  # a function of the request that returns the client's id: text, an int or a UUID"


def check(principal: object, finder: str = _FINDER, shared: str = f'principal="{SHARED}",') -> None:
    """Raise `ConfigurationError` for what finds no principals; ``finder`` and ``shared`` are lines that say it."""
    if principal == SHARED or callable(principal):
        return
    given = "is missing" if principal is None else f"{principal!r} finds none"
    raise ConfigurationError(
        f"principal= {given}: it tells whose a request is, so that no client gets the response to another one's. "
        f"Add\n    {finder}\nor, if all clients are one,\n    {shared}"
    )


def is_named(principal: object) -> TypeGuard[Named]:
    """Tell whether a principal has a text that stays the same: text, an int or a UUID."""
    return isinstance(principal, str | int | UUID) and not isinstance(principal, bool) and principal != ""


def find(principal: Callable[[Any], Any] | None, request: Any) -> object:
    """Find the principal of a request, in sync code; exceptions of ``principal`` pass through."""
    found = None if principal is None else principal(request)
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()
        raise ConfigurationError(
            f"principal={principal!r} is a coroutine function, which sync code cannot await: make it a plain function."
        )
    return found


async def afind(principal: Callable[[Any], Any] | None, request: Any) -> object:
    """`find` on an event loop, where ``principal`` may be a coroutine function.

    A cancellation that did not come from outside is an error of the function's, as any other.
    """
    found = None if principal is None else principal(request)
    if not inspect.isawaitable(found):
        return found
    try:
        return await found
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise RuntimeError("principal= was cancelled by itself, or by something that it waited for.") from error


def make_scope(tenant: str, *principals: Named) -> str:
    """One scope of a tenant and the principals of a request, such that no two such lists meet.

    A single text without a tenant is its own scope. The number 7 is not the text "7": they come from two ways of
    authentication, which need not mean the same client.
    """
    first = principals[0]
    if len(principals) > 1:
        framed = "".join(f"{len(text)}:{text}" for text in map(_tag, principals))
        scope = f"{len(tenant)}:{tenant}+{_hash(framed)}"
    elif isinstance(first, int):
        scope = f"{len(tenant)}:{tenant}#{first}"
    else:
        plain = not tenant and _PREFIXED.match(str(first)) is None
        scope = str(first) if plain else f"{len(tenant)}:{tenant}:{first}"
    return as_name(scope)


def as_name(text: str) -> str:
    """The text itself where it can be a name in a store, and else its hash."""
    return text if len(text) <= LONGEST and text.isprintable() else _hash(text)


def _tag(principal: Named) -> str:
    return f"#{principal}" if isinstance(principal, int) else f":{principal}"


def _hash(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
