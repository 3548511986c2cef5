"""Litestar: a plugin for the whole application, with each handler's own choice in ``opt``.

    app = Litestar([create], plugins=[IdempotencyPlugin(orders, principal=lambda request: request.user.id)])

The middleware stands inside those of the application, authentication among them, and outside the guards, dependencies
and exception handlers of the route.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import asgi, openapi
from retrysafe.http.asgi import ROUTE, App, Receive, Scope, Send, request_of, serve_guarded
from retrysafe.http.conditional import Unmet, Version, evaluate
from retrysafe.http.guard import Guard
from retrysafe.http.nested import EXCHANGE
from retrysafe.http.policy import GUARDED_BY_DEFAULT, Options, Policed, ServedRoute
from retrysafe.http.principals import UNSAID, Principal, afind
from retrysafe.http.routes import NEEDS

with NeedsExtra("litestar"):
    from litestar.config.app import AppConfig
    from litestar.connection import Request
    from litestar.exceptions import HTTPException
    from litestar.handlers import HTTPRouteHandler
    from litestar.middleware import DefineMiddleware
    from litestar.openapi.spec import Operation
    from litestar.plugins import InitPlugin
    from litestar.plugins.base import ReceiveRoutePlugin
    from litestar.response import Response
    from litestar.routes import BaseRoute, HTTPRoute
    from litestar.types import Empty
    from litestar.utils.scope.state import ScopeState

__all__ = ["IdempotencyMiddleware", "IdempotencyPlugin", "PreconditionUnmet", "check_preconditions", "show_unmet"]

OPT = "idempotency"
"""The key in a handler's ``opt``: "required", "optional", "off", or a mapping of options with ``need``."""


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """Lets the requests of an application, router, controller or handler run once per key.

    For ``middleware=[DefineMiddleware(IdempotencyMiddleware, boundary=orders, principal=…)]``; `IdempotencyPlugin` adds
    it for you, and tells OpenAPI. ``principal`` is called with the `Request`.
    """

    def __init__(
        self,
        app: App,
        boundary: Boundary,
        *,
        principal: Principal = UNSAID,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(app, boundary, principal=principal, **options)
        self.guards = _Guards(self.guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        guard = self.guards.of(scope["route_handler"])
        hooks = scope["litestar_app"].after_exception
        if _note not in hooks:
            hooks.append(_note)
        scope[ROUTE] = scope["path_template"]
        asked = request_of(scope)
        if guard.key_field in asked.fields and guard.need(asked) != "off":
            receive = _replay_body(scope, receive)
        await serve_guarded(guard, self.app, scope, receive, send, self.whose)

    async def whose(self, scope: Scope) -> object:
        """The principal of the request."""
        request: Any = Request(scope)  # type: ignore[arg-type]
        return await afind(self.guard.principal, request)


def _replay_body(scope: Any, receive: Receive) -> Receive:
    """``receive``, which gives the body from where Litestar keeps it if a middleware around has read it.

    Raises `ConfigurationError` for a form with files, which is kept without its bytes.
    """
    state = ScopeState.from_scope(scope)
    body: Any = state.body
    if body is Empty:
        if state.form is Empty:
            return receive
        raise ConfigurationError(
            "A middleware around the guard, such as a log of requests, has parsed a form with files, whose bytes "
            "Litestar does not keep. Nothing was done. Let it not read the bodies of guarded requests: "
            'LoggingMiddlewareConfig(request_log_fields=…) without "body", or exclude=.'
        )
    given = iter(({"type": "http.request", "body": body, "more_body": False},))

    async def receiving() -> Any:
        return next(given, None) or await receive()

    return receiving


class _Guards:
    """The guard of every handler: that of the application, or with the options of its own."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._found: dict[object, Guard] = {}

    def of(self, handler: Any) -> Guard:
        found = self._found.get(handler)
        if found is None:
            found = self._found[handler] = self._make(handler.opt.get(OPT))
        return found

    def _make(self, said: object) -> Guard:
        if said is None:
            return self.guard
        options: dict[str, Any] = dict(said) if isinstance(said, Mapping) else {"need": said}
        need = options.pop("need", "required")
        if need not in NEEDS:
            raise ConfigurationError(f"opt {OPT}={said!r}: expected one of {', '.join(NEEDS)}.")
        return self.guard.under(need, Options(**options))  # type: ignore[typeddict-item]


class IdempotencyPlugin(InitPlugin, ReceiveRoutePlugin):
    """Guards a Litestar application: ``Litestar(…, plugins=[IdempotencyPlugin(boundary, principal=…)])``.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler's work, the record and the
            response commit together.
        principal: called with the `Request`, it returns whose request it is (text, an int or a UUID; also a
            coroutine): keys of two principals never meet, and a request without a principal is refused with 403.
        options: see `retrysafe.http.policy.Options`.

    A handler, controller or router chooses by ``opt={"idempotency": "required"}``, "optional" or "off", or by a
    mapping of options: ``{"need": "required", "key_policy": "uuid"}``.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(self, boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]) -> None:
        self._guards = _Guards(Guard(boundary, options, principal))
        boundary.entrypoint.refuse_bound_to_threads()
        middleware: Any = IdempotencyMiddleware
        self._middleware = DefineMiddleware(middleware, boundary=boundary, principal=principal, **options)

    async def _check_store(self) -> None:
        refused = await self._guards.guard.entry.find_unusable()
        if refused is not None:
            raise refused

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the middleware, innermost of the application's; compression, which would be inside, comes around it."""
        compression = app_config.compression_config
        if compression is not None:
            app_config.middleware.append(DefineMiddleware(compression.middleware_class, config=compression))
            app_config.compression_config = None
        app_config.middleware.append(self._middleware)
        app_config.on_startup.append(self._check_store)
        app_config.exception_handlers.setdefault(PreconditionUnmet, show_unmet)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Let OpenAPI tell of the route."""
        if not isinstance(route, HTTPRoute):
            return
        for handler in route.route_handlers:
            guard = self._guards.of(handler)
            needs = {guard.policy.need(method, route.path) for method in handler.http_methods & guard.policy.methods}
            if needs - {"off"} and not issubclass(handler.operation_class, _Guarded):
                handler.operation_class = _operation(handler, guard, required=needs == {"required"})


def find_routes(app: Any) -> Iterator[ServedRoute]:
    """The routes for POST and PATCH of an application."""
    names = [getattr(hook, "__qualname__", type(hook).__qualname__) for hook in app.before_send]
    late = tuple(name for name in names if "commit" in name)
    for route in app.routes:
        handlers: list[Any] = getattr(route, "route_handlers", [])
        for handler in handlers:
            guarded = any(_guards(middleware) for middleware in handler.resolve_middleware())
            found: Policed = "off" if _is_off(handler.opt.get(OPT)) else "guarded" if guarded else "unguarded"
            for method in sorted(GUARDED_BY_DEFAULT & handler.http_methods):
                yield ServedRoute(f"{method} {route.path}", found, handler.fn, late)


def _guards(middleware: Any) -> bool:
    kind = getattr(middleware, "middleware", middleware)
    return isinstance(kind, type) and issubclass(kind, asgi.IdempotencyMiddleware)


def _is_off(said: object) -> bool:
    return (said.get("need") if isinstance(said, Mapping) else said) == "off"


async def _note(error: Exception, scope: Any) -> None:
    """Litestar makes a response of an error before it could reach us."""
    exchange: asgi.AsgiExchange | None = scope.get(EXCHANGE)
    if exchange is not None:
        exchange.error = error


@dataclass
class _Guarded(Operation):
    """An operation with what we say of it."""

    retrysafe: ClassVar[dict[str, Any]]
    idempotency: dict[str, Any] | None = field(default=None, metadata={"alias": openapi.EXTENSION})

    def to_schema(self) -> dict[str, Any]:
        """The operation, as it is shown."""
        shown = super().to_schema()
        ours = self.retrysafe
        shown["parameters"] = openapi.with_parameters(shown.get("parameters", ()), ours["parameters"])
        responses = shown.setdefault("responses", {})
        for status, response in ours["responses"].items():
            there = responses.get(status)
            if there is None:
                responses[status] = response
            else:
                there["description"] = f"{there['description']}. {response['description']}"
                there["content"] = {**there.get("content", {}), **response["content"]}
        return {**shown, openapi.EXTENSION: ours[openapi.EXTENSION]}


def _operation(handler: HTTPRouteHandler, guard: Guard, *, required: bool) -> type[Operation]:
    made = openapi.extra(guard, required=required)
    return type("GuardedOperation", (_Guarded, handler.operation_class), {"retrysafe": made})


# ------------------------------------------------------------ conditional requests


class PreconditionUnmet(HTTPException):
    """A precondition of the request does not hold. `show_unmet` makes its response.

    `IdempotencyPlugin` registers that; without the plugin, ``exception_handlers={PreconditionUnmet: show_unmet}``.
    Litestar's own handler cannot answer 304, for it writes a body.
    """

    def __init__(self, unmet: Unmet) -> None:
        super().__init__(detail=unmet.detail, status_code=unmet.status, headers=unmet.fields)
        self.unmet = unmet


def show_unmet(request: Request[Any, Any, Any], error: PreconditionUnmet) -> Response[Any]:
    """The response: 304 without a body, 412 and 428 with a problem (RFC 9457)."""
    unmet = error.unmet
    return Response(unmet.problem.encode(), status_code=unmet.status, headers=unmet.fields)


def check_preconditions(request: Request[Any, Any, Any], current: Version | None, *, required: bool = False) -> None:
    """Raise `PreconditionUnmet` unless If-Match and If-None-Match allow the request; see `conditional.evaluate`."""
    unmet = evaluate(request_of(request.scope), current, required=required)  # type: ignore[arg-type]
    if unmet is not None:
        raise PreconditionUnmet(unmet)
