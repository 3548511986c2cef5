"""Routes that find out by themselves who calls: a guard that keeps no clients apart must not answer in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.http.guard import Guard

_AUTHENTICATING = (
    "aiohttp_security",
    "aiohttp_session",
    "authlib.integrations",
    "django.contrib.auth",
    "flask_httpauth",
    "flask_jwt_extended",
    "flask_login",
    "flask_principal",
    "flask_security",
    "litestar.middleware.authentication",
    "oauth2_provider",
    "starlette.authentication",
    "starlette.middleware.authentication",
)
"""Modules whose decorators, mixins and middleware let in only whom they know."""
_DEEPEST = 20
"""How many decorators or middlewares are looked through."""


def refuse_without_principal(guard: Guard, found: str | None, *, around: bool = False) -> None:
    """Raise `ConfigurationError` for a route with security (``found``) whose guard knows no principal.

    Any client that knows a key would get the response to one that was let in. ``around`` says that a guard further out
    keeps clients apart.
    """
    if found is not None and guard.principal is None and not guard.shared and not around:
        raise ConfigurationError(
            f"{found} is guarded without principal=: whoever knows a key would get the response to a client that was "
            'let in. Say whose requests they are by principal=; or, where all clients are one, by principal="shared".'
        )


def secured(handler: object) -> str | None:
    """A name for a handler beneath or in a decorator, or of a class, that authenticates; None for any other."""
    try:
        return _secured(handler)
    except TypeError:  # not hashable
        return None


def secured_stack(app: object) -> str | None:
    """A name for an ASGI application whose middleware, at or beneath ``app``, authenticates; None for any other.

    It is asked behind the guard, so not at all on a replay.
    """
    return next(filter(None, map(secured, _stacked(app))), None)


def _stacked(app: Any) -> Iterator[type]:
    """The classes of an application's middleware, as far as it can be told from outside."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        yield type(app)
        yield from (added.cls for added in getattr(app, "user_middleware", ()))
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)


@lru_cache(maxsize=4096)
def _secured(handler: object) -> str | None:
    for function in _chain(handler):
        if any(_authenticates(part) for part in (function, *_enclosed(function))):
            return f"{handler!r}, which authenticates by itself,"
    mixins = handler.__mro__ if isinstance(handler, type) else ()
    if any(_is_of(mixin.__module__) for mixin in mixins):
        return f"{handler!r}, which authenticates by itself,"
    return None


def _chain(handler: Any) -> Iterator[Any]:
    """The handler and what its decorators have wrapped."""
    for _ in range(_DEEPEST):
        if handler is None:
            return
        handler = getattr(handler, "__func__", handler)
        yield handler
        handler = getattr(handler, "func", None) or getattr(handler, "__wrapped__", None)


def _enclosed(function: Any) -> Iterable[Any]:
    """What a decorator that is applied later, such as one of ``method_decorator``, is made of."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield from content if isinstance(content, list | tuple) else (content,)


def _authenticates(function: Any) -> bool:
    named = getattr(function, "__globals__", None)  # ``functools.wraps`` leaves it as it is, unlike ``__module__``
    return isinstance(function, Callable) and isinstance(named, dict) and _is_of(named.get("__name__"))  # type: ignore[arg-type]


def _is_of(module: object) -> bool:
    return isinstance(module, str) and any(module == name or module.startswith(f"{name}.") for name in _AUTHENTICATING)
