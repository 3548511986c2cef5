"""What a handler says of itself: a policy of its own, which wins over that of the application or router around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, Unpack

from retrysafe.errors import ConfigurationError
from retrysafe.http.guard import Guard
from retrysafe.http.policy import Options
from retrysafe.http.routes import NEEDS, Need

H = TypeVar("H", bound=Callable[..., Any])
_MARK = "__retrysafe_http__"
_PLAIN = frozenset({"required", "routes"})


class Declared(NamedTuple):
    """Whether a handler needs a key, and which options differ for it."""

    need: Need
    options: Options


def policy(need: Need, **options: Unpack[Options]) -> Callable[[H], H]:
    """Decorate a handler with a policy of its own, under the decorator that makes a route of it.

    ``need`` is "required", "optional" or "off", and holds for POST, PUT, PATCH and DELETE, unless ``methods`` says
    otherwise; ``options`` are those of `retrysafe.http.policy.Options` that differ
    from the guard around it. Raises `ConfigurationError` for what cannot be kept.
    """
    if need not in NEEDS:
        raise ConfigurationError(f"policy({need!r}): expected one of {', '.join(NEEDS)}.")
    if _PLAIN & options.keys():
        raise ConfigurationError("policy(): whether a key is required is its first argument; it has no routes.")

    def mark(handler: H) -> H:
        setattr(handler, _MARK, Declared(need, options))
        return handler

    return mark


def declared_by(handler: object) -> Declared | None:
    """The policy that a handler was decorated with."""
    found = getattr(handler, _MARK, None)
    return found if isinstance(found, Declared) else None


def guard_for(guard: Guard, handler: object) -> Guard:
    """The guard of a handler: the one around it, or that with the handler's own policy."""
    declared = declared_by(handler)
    return guard if declared is None else guard.under(declared.need, declared.options)
