"""Starlette: one middleware for an application, or a decorator for a route, with the principal from ``request.user``.

app = Starlette(routes=routes, middleware=[
    Middleware(AuthenticationMiddleware, backend=…),
    Middleware(IdempotencyMiddleware, boundary=orders, principal=user),
])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, request_response

from retrysafe.boundary import Boundary
from retrysafe.http import asgi
from retrysafe.http.asgi import HELD, App, Receive, Scope, Send, guarded, request_of, whose_of
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.declared import declared_by, guard_for, policy
from retrysafe.http.guard import Guard
from retrysafe.http.policy import Options

__all__ = ["IdempotencyMiddleware", "check_preconditions", "idempotent", "policy", "user"]


def user(request: Request) -> str | None:
    """The principal of a request that ``AuthenticationMiddleware`` has let in: ``request.user.identity``."""
    return request.user.identity if request.user.is_authenticated else None


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """Lets the requests of an application, a `Mount` or a `Route` that carry an ``Idempotency-Key`` run once.

    As `retrysafe.http.asgi.IdempotencyMiddleware`, but ``principal`` is called with the `Request` (see `user`), and
    a handler's own policy wins: one decorated with `policy`, or guarded by `idempotent` or by a middleware of its
    own route.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or HELD in scope:
            await self.app(scope, receive, send)
            return
        guard = self._guard_of(scope)
        if guard is None:
            await self.app(scope, receive, send)
        else:
            await guarded(guard, self.app, scope, receive, send, self.whose)

    async def whose(self, scope: Scope) -> str | None:
        """The scope of the request's keys."""
        return await whose_of(self.guard, Request(scope))

    def _guard_of(self, scope: Scope) -> Guard | None:
        """The guard of a request; None where its route guards itself."""
        if "app" not in scope or "endpoint" in scope:  # stands alone, or around one route
            return self.guard
        route, endpoint = next(self.endpoints(scope), (None, None))
        if self.guards_itself(route, endpoint):
            return None
        if declared_by(endpoint) is None:
            return self.guard
        found = self._declared.get(endpoint)
        if found is None:
            found = self._declared[endpoint] = guard_for(self.guard, endpoint)
        return found

    @functools.cached_property
    def _declared(self) -> dict[object, Guard]:
        return {}

    def endpoints(self, scope: Scope) -> Iterator[tuple[object, object]]:
        """The route that serves a request, and its handler."""
        return found_in(scope["app"].routes, scope)

    def guards_itself(self, route: object, endpoint: object) -> bool:
        """Whether a route is guarded on its own."""
        app = endpoint if isinstance(endpoint, _Guarded) else getattr(route, "app", None)
        while app is not None and not isinstance(app, asgi.IdempotencyMiddleware):
            app = getattr(app, "app", None)
        return app is not None


def matches(route: Any, scope: Scope) -> Scope | None:
    """What a route adds to the scope of a request that it serves; None for other requests."""
    match, child = route.matches(dict(scope))
    return child if match is Match.FULL else None


def found_in(routes: Iterable[Any], scope: Scope) -> Iterator[tuple[object, object]]:
    """The first route that serves a request, and its handler; looked for in what is mounted, too."""
    for route in routes:
        child = matches(route, scope)
        if child is not None:
            inner = getattr(route, "routes", None)
            if inner:
                yield from found_in(inner, {**scope, **child})
            else:
                yield route, child.get("endpoint")
            return


class _Guarded(asgi.IdempotencyMiddleware):
    """A handler of its own route, guarded."""

    async def whose(self, scope: Scope) -> str | None:
        return await whose_of(self.guard, Request(scope))


def idempotent(
    boundary: Boundary, *, principal: Callable[[Request], Any] | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], App]:
    """Decorate the handler of a route, a function or an `HTTPEndpoint`: it runs once per key.

    ``principal`` is called with the `Request`; ``options`` are those of `retrysafe.http.policy.Options`, ``required``
    being True unless you say otherwise. It stands above other decorators, such as ``@requires``, and the route names
    its methods: ``Route("/orders", create, methods=["POST"])``.
    """
    merged: Options = {"required": True, **options}

    def decorate(handler: Callable[..., Any]) -> App:
        app: Any = request_response(_called(handler) if inspect.isclass(handler) else handler)
        return functools.update_wrapper(_Guarded(app, boundary, principal=principal, **merged), handler, updated=())

    return decorate


def _called(endpoint: Any) -> Callable[[Request], Any]:
    """A class of handlers as a function, so that what it raises is made a response inside the claim."""

    async def handler(request: Request) -> Any:
        return endpoint

    return handler


def check_preconditions(request: Request, current: Version | None, *, required: bool = False) -> None:
    """Raise `HTTPException` unless If-Match and If-None-Match allow the request; see `conditional.evaluate`.

    Its status is 304, 412 or 428, its ``detail`` the body, a problem (RFC 9457), and its headers have the current ETag.
    """
    unmet = evaluate(request_of(request.scope), current, required=required)
    if unmet is not None:
        raise HTTPException(unmet.status, unmet.problem, unmet.fields)
