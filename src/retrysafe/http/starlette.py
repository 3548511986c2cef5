"""Starlette: one middleware for an application, or a decorator for a route, with the principal from ``request.user``.

app = Starlette(routes=routes, middleware=[
    Middleware(AuthenticationMiddleware, backend=…),
    Middleware(IdempotencyMiddleware, boundary=orders, principal=user),
])
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Unpack

from retrysafe.boundary import Boundary
from retrysafe.extras import NeedsExtra
from retrysafe.http import asgi
from retrysafe.http.asgi import (
    ROUTE,
    App,
    Receive,
    Scope,
    Send,
    leave_to_inner,
    request_of,
    serve_guarded,
    serve_lifespan,
)
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.guard import Guard
from retrysafe.http.policy import (
    GUARDED_BY_DEFAULT,
    NEVER_GUARDED,
    UNSAFE,
    Options,
    Policed,
    ServedRoute,
    find_declared,
    own_policy,
    policy,
    policy_of,
    serving,
)
from retrysafe.http.principals import UNSAID, Principal, afind

with NeedsExtra("starlette"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.exceptions import ExceptionMiddleware
    from starlette.requests import Request
    from starlette.routing import Match, Router, request_response

__all__ = ["IdempotencyMiddleware", "check_preconditions", "idempotent", "policy", "user"]

_OTHER_SLASH = object()
"""Stands for the route of a request that is led on to the path with a slash more or less."""


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
        if scope["type"] == "lifespan":
            await serve_lifespan(self.guard, self.app, scope, receive, send)
            return
        guard = self._guard_of(scope) if scope["type"] == "http" else None
        try:
            if guard is None:
                await self.app(scope, receive, send)
            else:
                await serve_guarded(guard, self.app, scope, receive, send, self.whose, router_mark="endpoint")
        except _Raised as raised:
            if raised.by is not self:
                raise
            await _answer(raised.error, scope, receive, send)

    async def whose(self, scope: Scope) -> object:
        """The principal of the request."""
        try:
            return await afind(self.guard.principal, Request(scope))
        except HTTPException as error:
            raise _Raised(self, error) from error

    def _guard_of(self, scope: Scope) -> Guard | None:
        """The guard of a request; None where its route, or what is mounted on the way to it, guards itself."""
        method, router = scope["method"].upper(), self._router(scope)
        if self.guard.policy.routes is not None:
            self.guard.warn_of_unmatched(lambda: self._list_served(getattr(router, "routes", ()), ""))
        if method in NEVER_GUARDED:
            return self.guard
        found = list(self._find_in(router, scope)) if router is not None else [(None, scope.get("endpoint"))]
        if found and found[-1][0] is _OTHER_SLASH:
            return None
        if any(method in self.own_methods(route, endpoint) for route, endpoint in found):
            leave_to_inner(self.guard, scope, self.whose)
            return None
        scope[ROUTE] = "".join(getattr(route, "path", "") for route, _ in found)
        return self.guard.of(_handler(found[-1][1], method)) if found else self.guard

    def _router(self, scope: Scope) -> Any:
        """Return the router inside this middleware, if there is one."""
        app = scope.get("app")
        if app is not None and scope.get("endpoint", app) is app:
            return app
        inner: Any = self.app
        while inner is not None:
            inner = getattr(inner, "__self__", inner)  # a router has its middleware around a method of its own
            if isinstance(inner, Router | Starlette):
                break
            inner = getattr(inner, "app", None)
        return inner

    def _find_in(self, app: Any, scope: Scope) -> Iterator[tuple[object, object]]:
        """The routes on the way from a router to the handler of a request, each with its endpoint.

        The last one is `_OTHER_SLASH` if the router only leads the client on to the path with a slash more or less.
        """
        routes, seen, partly = _matching(getattr(app, "routes", None) or ()), dict(scope), False
        for matcher, route in self.flat(routes):
            match, child = matcher.matches(seen)
            if match is Match.FULL:
                yield route, child.get("endpoint")
                yield from self._find_in(getattr(route, "_base_app", route), {**scope, **child})
                return
            partly = partly or match is Match.PARTIAL
        path: str = scope["path"]
        if not partly and getattr(getattr(app, "router", app), "redirect_slashes", False):
            other = {**scope, "path": path.rstrip("/") if path.endswith("/") else f"{path}/"}
            if any(matcher.matches(other)[0] is not Match.NONE for matcher, _ in self.flat(routes)):
                yield _OTHER_SLASH, None

    def _list_served(self, routes: Iterable[Any], prefix: str) -> Iterator[tuple[Container[str], str]]:
        """Every route's methods and template, with those of mounted applications."""
        for matcher, _ in self.flat(_matching(routes)):
            template, inner = prefix + (getattr(matcher, "path", None) or ""), getattr(matcher, "routes", None)
            if inner is None:
                yield getattr(matcher, "methods", None) or UNSAFE, template
            else:
                yield UNSAFE, f"{template}/{{rest}}"
                yield from self._list_served(inner, template)

    def flat(self, routes: Iterable[Any]) -> Iterator[tuple[Any, object]]:
        """Every route with what matches requests for it."""
        return ((route, route) for route in routes)

    def late(self, matcher: Any) -> tuple[str, ...]:
        """Names of what a route's handler depends on that ends after its response."""
        return ()

    def own_methods(self, route: object, endpoint: object) -> frozenset[str]:
        """The methods by which a route, or an application that is mounted there, is guarded on its own."""
        app = endpoint if isinstance(endpoint, _Guarded) else getattr(route, "app", None)
        while app is not None and not isinstance(app, asgi.IdempotencyMiddleware):
            for added in getattr(app, "user_middleware", ()):
                if _guards(added.cls):
                    options: Any = {name: added.kwargs[name] for name in ("methods",) if name in added.kwargs}
                    return policy_of(options).methods
            app = getattr(app, "app", None)
        return frozenset() if app is None else app.guard.policy.methods


def _matching(routes: Iterable[Any]) -> list[Any]:
    """The routes that match as Starlette's do: of a mounted application of another framework none."""
    return [route for route in routes if hasattr(route, "matches")]


async def _answer(error: HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what ``principal`` raised as the application answers it from its handlers."""

    async def raising(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    handlers = getattr(scope.get("app"), "exception_handlers", {})
    await ExceptionMiddleware(raising, handlers=handlers)(scope, receive, send)


class _Raised(Exception):
    """The exception of ``principal``, outside of Starlette's exception handlers."""

    def __init__(self, by: IdempotencyMiddleware, error: HTTPException) -> None:
        super().__init__(error)
        self.by = by
        self.error = error


def _guards(middleware: object) -> bool:
    return isinstance(middleware, type) and issubclass(middleware, asgi.IdempotencyMiddleware)


def _handler(endpoint: Any, method: str) -> object:
    """Return the object that serves a method: of a class, the method of that name, if it has a policy."""
    own = getattr(endpoint, method.lower(), None) if inspect.isclass(endpoint) else None
    return endpoint if find_declared(own) is None else own


class _Guarded(asgi.IdempotencyMiddleware):
    """A handler of its own route, guarded."""

    async def whose(self, scope: Scope) -> object:
        return await afind(self.guard.principal, Request(scope))


def idempotent(
    boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], App]:
    """Decorate the handler of a route, a function or an `HTTPEndpoint`: it runs once per key.

    ``principal`` is called with the `Request`; ``options`` are those of `retrysafe.http.policy.Options`, ``required``
    being True, and ``methods`` POST, PUT, PATCH and DELETE, unless you say otherwise. It stands above other decorators,
    such as ``@requires``, and the route names its methods: ``Route("/orders", create, methods=["POST"])``.
    """
    merged: Options = {"required": True, "methods": UNSAFE, **options}

    def decorate(handler: Callable[..., Any]) -> App:
        app: Any = request_response(_wrap_endpoint(handler) if inspect.isclass(handler) else handler)
        made = _Guarded(app, boundary, principal=principal, **merged)
        made.guard = made.guard.of(handler)
        return functools.update_wrapper(made, handler, updated=())

    return decorate


def _wrap_endpoint(endpoint: Any) -> Callable[[Request], Any]:
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


def find_routes(app: Any, kind: type[IdempotencyMiddleware] = IdempotencyMiddleware) -> Iterator[ServedRoute]:
    """The routes for POST and PATCH of an application, and those that are guarded on their own."""
    looking = kind.__new__(kind)  # only looks at routes, and guards none
    whole = any(_guards(added.cls) for added in app.user_middleware)
    return _list_policed(looking, app.routes, "", whole=whole)


def _list_policed(
    looking: IdempotencyMiddleware, routes: Iterable[Any], prefix: str, *, whole: bool
) -> Iterator[ServedRoute]:
    for matcher, route in looking.flat(_matching(routes)):
        endpoint, inner = getattr(matcher, "endpoint", None), getattr(matcher, "routes", None)
        template = prefix + (getattr(matcher, "path", None) or "")
        guarded = looking.own_methods(route, endpoint)
        if inner is not None:
            yield from _list_policed(looking, inner, template, whole=whole or bool(guarded))
            continue
        for method in sorted(method for method in GUARDED_BY_DEFAULT | guarded if _serves(matcher, endpoint, method)):
            found: Policed = "guarded" if whole or method in guarded else "unguarded"
            policed = own_policy(_handler(endpoint, method), found)
            yield ServedRoute(f"{method} {template}", policed, serving(endpoint, method), looking.late(matcher))


def _serves(matcher: Any, endpoint: Any, method: str) -> bool:
    """Tell whether a route serves a method: a class says so by its methods."""
    if inspect.isclass(endpoint):
        return hasattr(endpoint, method.lower())
    return method in (getattr(matcher, "methods", None) or ())
