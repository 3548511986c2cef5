"""FastAPI: routers whose routes run once per key, with the principal, claim and session as dependencies.

    idempotency = Idempotency(orders, principal=account)
    router = APIRouter(route_class=idempotency.route_class)

The key is claimed by a dependency that comes after those of the application, the router and the route itself: who is
not let in by them has met no key.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NoReturn, Unpack

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim
from retrysafe.claims.functions import is_generator_function
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import openapi
from retrysafe.http.asgi import (
    AsgiExchange,
    Receive,
    Scope,
    Send,
    request_of,
    serve_guarded,
)
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.guard import Guard
from retrysafe.http.nested import EXCHANGE
from retrysafe.http.policy import Options, ServedRoute, find_declared, policy
from retrysafe.http.principals import UNSAID, Principal

with NeedsExtra("fastapi", "fastapi", "starlette"):
    from fastapi import Depends, HTTPException, Request, routing
    from fastapi.dependencies.models import Dependant
    from fastapi.routing import APIRoute

    from retrysafe.http import starlette

__all__ = ["Idempotency", "IdempotencyMiddleware", "check_preconditions", "policy"]


class Idempotency:
    """Guards the routes of a router: ``APIRouter(route_class=Idempotency(boundary, principal=…).route_class)``.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler's work, the record and the
            response commit together.
        principal: a dependency that returns whose request it is (text, an int or a UUID): keys of two principals
            never meet. What it raises is answered as ever, and no key is claimed; for None there is 403.
        options: see `retrysafe.http.policy.Options`; ``required`` is True unless you say otherwise.

    A handler's own choice is `policy`: ``@policy("optional")`` under ``@router.post(…)``.

    Attributes:
        route_class: for ``APIRouter(route_class=…)`` or ``app.router.route_class``.
        claim: a dependency: the `Claim` of the request; None for a request without a key, where that is allowed.
        session: a dependency: the transaction of the request, ``claim.tx``: with a sessionmaker as ``store=``, its
            session. It is committed by the layer, with the record and before the response leaves.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(self, boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]) -> None:
        merged: Options = {"required": True, **options}
        self.guard = Guard(boundary, merged, principal)
        boundary.entrypoint.refuse_bound_to_threads()
        self.begin = _beginning(self.guard)
        self.route_class: type[APIRoute] = type("IdempotentRoute", (_Route,), {"idempotency": self})
        self.claim, self.session = _claiming(self.begin)

    def __call__(self, *args: object, **options: object) -> NoReturn:
        """Refuse to be used as the class of routes itself."""
        raise ConfigurationError("An Idempotency is no class of routes: write route_class=idempotency.route_class.")

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Keep an application from starting on a store that its guarded routes cannot use.

        Give it to the router, ``APIRouter(route_class=idempotency.route_class, lifespan=idempotency.lifespan)``, or to
        ``FastAPI``. Raises what `Boundary.check` raises, but starts while the store does not answer. `FastAPI`'s own
        lifespan comes first, and may migrate the store.
        """
        refused = await self.guard.entry.find_unusable()
        if refused is not None:
            raise refused
        yield


async def _nobody() -> None:
    """The principal where none is asked for."""


def _beginning(guard: Guard) -> Callable[..., Any]:
    """The dependency that claims the key."""

    async def begin(request: Request, found: Any = Depends(guard.principal or _nobody)) -> None:
        exchange: AsgiExchange | None = request.scope.get(EXCHANGE)
        if exchange is not None:
            await exchange.begin_for(found)
        elif EXCHANGE not in request.scope and request.method in guard.methods:
            raise ConfigurationError(
                f"{request.method} {request.url.path} uses the claim of its request, but the request is not guarded. "
                "It was not run. Make its router by APIRouter(route_class=idempotency.route_class), or set "
                "app.router.route_class before the route is added."
            )

    return begin


def _claiming(begin: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def claim(request: Request, _: None = Depends(begin)) -> Claim | None:
        exchange: AsgiExchange | None = request.scope.get(EXCHANGE)
        return None if exchange is None else exchange.claim

    async def session(found: Claim | None = Depends(claim)) -> Any:
        if found is None:
            raise ConfigurationError(
                "The request has no key, so there is no transaction to share: keep keys required, or open a session "
                "of your own where the claim is None."
            )
        if found.tx is None:
            raise ConfigurationError(
                f"Boundary {found.boundary!r} has no transaction to share: give it effects='transactional'."
            )
        return found.tx

    return claim, session


class _Route(APIRoute):
    """A route that runs once per key."""

    idempotency: ClassVar[Idempotency]

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        self._declared = find_declared(endpoint)
        self._guard = self.idempotency.guard.of(endpoint)
        chosen = self._guard.policy
        methods = {method.upper() for method in kwargs.get("methods") or ("GET",)} & chosen.methods
        needs = {chosen.need(method, path) for method in methods} - {"off"}
        if methods:  # also where ``path``, which has no prefix of an including router yet, is "off"
            begin = self.idempotency.begin
            given: Sequence[Any] = kwargs.get("dependencies") or ()
            kwargs["dependencies"] = [*(one for one in given if one.dependency is not begin), Depends(begin)]
        if needs:
            kwargs["openapi_extra"] = _document(
                kwargs.get("openapi_extra"), openapi.extra(self._guard, required=needs == {"required"})
            )
        super().__init__(path, endpoint, **kwargs)

    @property
    def guarded(self) -> frozenset[str]:
        return self._guard.policy.methods

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        if find_declared(self.endpoint) is not self._declared:
            raise ConfigurationError(
                f"@policy stands above the decorator that makes a route of {self.endpoint!r}, which has not seen it: "
                "put it beneath, directly on the function."
            )
        await serve_guarded(self._guard, super().handle, scope, receive, send, None)


def _list_included(routes: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Every route as it is served, and as its router has it: older versions of FastAPI copy those of included ones."""
    contexts = getattr(routing, "iter_route_contexts", None)
    if contexts is None:
        return ((route, route) for route in routes)
    return ((context, context.original_route) for context in contexts(list(routes)))


def _document(given: dict[str, Any] | None, made: dict[str, Any]) -> dict[str, Any]:
    """Merge the user's OpenAPI fields, which override ours."""
    given = given or {}
    if openapi.EXTENSION in given:
        return given
    made["parameters"] = _Parameters(openapi.with_parameters(made["parameters"], given.get("parameters", ())))
    for name, value in copy.deepcopy(given).items():
        if name == "parameters":
            continue
        if isinstance(value, dict):
            made[name] = {**made.get(name, {}), **value}
        else:
            made[name] = [*made.get(name, []), *value] if isinstance(value, list) else value
    return made


def _late(dependant: Dependant) -> Iterator[str]:
    """Generators among dependencies that are not of the scope "function", and so end after the response."""
    for one in dependant.dependencies:
        call: Any = None if one.call is None else inspect.unwrap(one.call)
        if call is not None and is_generator_function(call) and getattr(one, "scope", None) != "function":
            yield f"{call.__module__}.{getattr(call, '__qualname__', type(call).__qualname__)}"
        yield from _late(one)


class _Parameters(list[Any]):
    """Parameters that stand in place of what handlers and dependencies declare by the same names.

    Those are known when FastAPI adds these to them, at the earliest.
    """

    def __radd__(self, declared: list[Any]) -> list[Any]:
        return openapi.with_parameters(declared, self)


class IdempotencyMiddleware(starlette.IdempotencyMiddleware):
    """Guards a whole FastAPI application: ``app.add_middleware(IdempotencyMiddleware, boundary=…, principal=…)``.

    As `retrysafe.http.starlette.IdempotencyMiddleware`: routes decorated with `policy`, and those of `Idempotency`,
    keep their own policy.
    """

    def flat(self, routes: Iterable[Any]) -> Iterator[tuple[Any, object]]:
        """Every route with what matches requests for it: those of included routers know their prefix."""
        for served, route in _list_included(routes):
            yield served, route if isinstance(route, _Route) else served

    def own_methods(self, route: object, endpoint: object) -> frozenset[str]:
        """The methods by which a route is guarded on its own."""
        return route.guarded if isinstance(route, _Route) else super().own_methods(route, endpoint)

    def late(self, matcher: Any) -> tuple[str, ...]:
        """Names of the generators among a route's dependencies that end after its response."""
        found = () if getattr(matcher, "dependant", None) is None else _late(matcher.dependant)
        return tuple(dict.fromkeys(found))


def check_preconditions(request: Request, current: Version | None, *, required: bool = False) -> None:
    """Raise `HTTPException` unless If-Match and If-None-Match allow the request; see `conditional.evaluate`.

    Its status is 304, 412 or 428. FastAPI makes of it a problem (RFC 9457) that has the member ``detail`` alone.
    """
    unmet = evaluate(request_of(request.scope), current, required=required)
    if unmet is not None:
        raise HTTPException(unmet.status, unmet.detail, unmet.fields)


def find_routes(app: Any) -> Iterator[ServedRoute]:
    """The routes for POST and PATCH of an application."""
    return starlette.find_routes(app, IdempotencyMiddleware)
