"""Guards around guards: a request is claimed once, and nothing that an inner guard asks for is dropped in silence.

A guard that can see that one further in will serve the request leaves it to that one, and hands on how it finds its
own principal: keys are then kept apart by both. A guard that meets a request which has been claimed around it lets it
pass only if the guard around it keeps everything that it would keep itself; any other pair is refused before the
handler runs, because a retry would be answered by the outer guard without ever coming here.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol
from urllib.parse import unquote

from retrysafe.claims.claim import Claim
from retrysafe.errors import ConfigurationError
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Request
from retrysafe.http.policy import Policy

EXCHANGE = "retrysafe.exchange"
"""The key under which the scope or environ of a guarded request has its exchange; None for one that needs no key."""
OUTER_PRINCIPALS = "retrysafe.outer"
"""The key of a request left to an inner guard: functions that find the principals of the guards around."""
_MAY_DIFFER = frozenset({"required", "routes", "methods", "problem_base"})
"""Options that only say whether a request is guarded, which this one is, or where to read about errors."""


class OuterExchange(Protocol):
    """A request that a guard has claimed, or is about to."""

    guard: Guard
    claim: Claim | None
    request: Request
    settled: bool


AROUND: ContextVar[OuterExchange | None] = ContextVar("retrysafe_http_exchange", default=None)
"""The exchange around the running code: between servers of different kinds there is no other way to hand it on."""


def is_inside(guard: Guard, request: Request, held: OuterExchange | None = None, *, off: bool = False) -> bool:
    """Tell whether another guard serves this request already, and ``guard`` has nothing to add.

    ``held`` is the exchange that the request itself carries, where it can; ``off`` says that ``guard`` is not to guard
    the request at all. Raises `ConfigurationError` for a pair of which the inner one would be ignored.
    """
    outer = held if held is not None else _of_the_same(request)
    if outer is None:
        return False
    dropped = _find_dropped(outer.guard, guard, request, off=off)
    if dropped:
        if outer.claim is not None:
            outer.claim.not_executed()
        raise ConfigurationError(
            f"{request.method} {request.path.decode('latin-1')} is guarded twice, and the inner guard's "
            f"{', '.join(dropped)} would be ignored: retries are answered by the outer guard, which differs. Nothing "
            "was done. Guard the request once, or give both guards the same boundary, principal= and options."
        )
    return True


def _of_the_same(request: Request) -> OuterExchange | None:
    """The exchange around the running code if it is of this request, and not of one that a handler makes itself.

    Nor one that has ended: uvicorn begins a request that was pipelined behind another one in the context of that.
    """
    outer = AROUND.get()
    if outer is None or outer.settled:
        return None
    if outer.request.method != request.method or _path(outer.request) != _path(request):
        return None
    field = outer.guard.key_field
    return outer if outer.request.lines(field) == request.lines(field) else None


def _path(request: Request) -> str:
    return unquote(request.path.decode("latin-1"))


def _find_dropped(outer: Guard, inner: Guard, request: Request, *, off: bool) -> list[str]:
    """Return the names of the inner guard's settings that the outer one does not keep."""
    if inner is outer or request.method not in inner.policy.methods:
        return []
    if off or inner.need(request) == "off":
        return ['"off"']
    dropped = [f"{name}=" for name in sorted(_differing(outer, inner))]
    if inner.principal is not None and inner.principal != outer.principal:
        dropped.insert(0, "principal=")
    if inner.fields != outer.fields:
        dropped.append("fields=")
    return dropped


def _differing(outer: Guard, inner: Guard) -> set[str]:
    options = {
        name for name in set(Policy._fields) - _MAY_DIFFER if getattr(outer.policy, name) != getattr(inner.policy, name)
    }
    return options | set(inner.boundary.entrypoint.find_ignored_settings(outer.boundary.entrypoint))
