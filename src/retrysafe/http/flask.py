"""The extension for Flask: views behind authentication, errors and sessions as Flask's users write them.

It works around views, not around the WSGI application: whose request it is, Flask knows only when its
``before_request`` functions have run, and a replay must not be given to a client that they would have refused. What
``after_request`` functions do (CORS, compression, the session's cookie) they do to replays too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import ExitStack
from functools import wraps
from io import BufferedReader
from types import FunctionType
from typing import Any, TypeVar, Unpack, cast, overload

from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import messages, nested
from retrysafe.http.bodies import Body
from retrysafe.http.chunks import ChunkedExchange, Chunks, StreamedResponse
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.guard import Guard, ResponseOrigin
from retrysafe.http.messages import latin
from retrysafe.http.nested import EXCHANGE
from retrysafe.http.policy import (
    GUARDED_BY_DEFAULT,
    UNSAFE,
    Options,
    Policed,
    ServedRoute,
    own_policy,
    policy_of,
    serving,
)
from retrysafe.http.principals import UNSAID, Principal, check, find
from retrysafe.http.problems import Refusal
from retrysafe.http.routes import NEEDS, Need
from retrysafe.http.wsgi import Environ, Input, OutgoingResponse, StartResponse, request_of

with NeedsExtra("flask"):
    from flask import Blueprint, Flask, Request, Response, abort, current_app, request, request_started, url_for

View = TypeVar("View", bound=Callable[..., Any])
Guarded = TypeVar("Guarded", bound="Callable[..., Any] | Blueprint")

_EXTENSION, _BLUEPRINTS = "retrysafe", "retrysafe.blueprints"
_MARK, _BARE = "__retrysafe__", "__retrysafe_bare__"
_KEPT = "retrysafe.rule"
"""The environ's key for the kept rule of a request that is guarded here."""
_INPUT, _OPEN = "retrysafe.input", "retrysafe.open"
_PARSED = ("stream", "data", "form", "files", "values", "_cached_data", "_cached_json")
"""The attributes in which a Flask request keeps a body that it has read."""


class RouteRule:
    """The rule of one view or blueprint."""

    def __init__(self, need: Need, boundary: Boundary | None, principal: Principal | None, options: Options) -> None:
        if need not in NEEDS:
            raise ConfigurationError(f"idempotent({need!r}): expected one of {', '.join(NEEDS)}.")
        policy_of(options)
        if principal is not None:
            check(principal)
        self.need = need
        self.boundary = boundary
        self.principal: Principal | None = principal
        self.options = options


class Idempotency:
    """Lets the requests of a Flask application that carry an ``Idempotency-Key`` run once.

    Arguments:
        app: the application; without it, call `init_app`.
        boundary: where the guarantee holds. With ``effects="transactional"`` the view's work, the record and the
            response commit together: the view finds the transaction as ``current().tx``.
        principal: called with Flask's request when the ``before_request`` functions have run, it returns whose request
            it is (text, an int or a UUID): keys of two principals never meet, and a request without a principal is
            refused with 403. With Flask-Login: ``lambda request: current_user.get_id()``.
        session: the application's `scoped_session`, such as Flask-SQLAlchemy's ``db.session``: during a transactional
            request it is ``current().tx``. The boundary's ``store`` is then a `sessionmaker`.
        options: see `retrysafe.http.policy.Options`. They hold for every view; `idempotent` says otherwise for a view
            or a blueprint.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(
        self,
        app: Flask | None = None,
        boundary: Boundary | None = None,
        *,
        principal: Principal = UNSAID,
        session: Any = None,
        **options: Unpack[Options],
    ) -> None:
        policy_of(options)
        check(principal)
        self._boundary = boundary
        self._principal: Principal = principal
        self._session = session
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, boundary: Boundary | None = None) -> None:
        """Guard the views of ``app``, including those that are registered later."""
        boundary = boundary or self._boundary
        if boundary is None:
            raise ConfigurationError("Idempotency() has no boundary=: give it there, or to init_app().")
        if _EXTENSION in app.extensions:
            raise ConfigurationError("The application has an Idempotency() already; a view may name its own boundary=.")
        Installed(app, boundary, self._principal, self._session, self._options)


class Installed:
    """The extension in one application."""

    def __init__(self, app: Flask, boundary: Boundary, principal: Principal, session: Any, options: Options) -> None:
        self._app = app
        self._boundary = boundary
        self._principal: Principal = principal
        self._session = session
        self._options = options
        self._guard = Guard(boundary, options, principal, login_pages=self._login_pages)
        self._guards: dict[RouteRule, Guard] = {}
        self._wsgi_app = app.wsgi_app
        self._dispatch_request = app.dispatch_request
        app.extensions[_EXTENSION] = self
        app.wsgi_app = self._serve_wsgi  # type: ignore[method-assign]
        app.dispatch_request = self._dispatch  # type: ignore[method-assign]
        app.register_error_handler(Refusal, self._refuse)
        request_started.connect(self._keep_body, app, weak=False)

    # ------------------------------------------------------------ which guard

    def guard(self, rule: RouteRule | None) -> Guard:
        """The guard by which a rule is kept."""
        if rule is None:
            return self._guard
        if rule not in self._guards:
            options: dict[str, Any] = {**self._options, **rule.options, "required": rule.need == "required"}
            options.pop("routes", None)
            self._guards[rule] = Guard(
                rule.boundary or self._boundary,
                cast("Options", options),
                rule.principal or self._principal,
                login_pages=self._login_pages,
            )
        return self._guards[rule]

    def _login_pages(self) -> Iterator[str]:
        """The pages to which Flask-Login sends those who have to log in."""
        manager: Any = getattr(self._app, "login_manager", None)
        for view in (getattr(manager, "login_view", None), *getattr(manager, "blueprint_login_views", {}).values()):
            if view is not None:
                yield view if view.startswith(("/", "http://", "https://")) else url_for(view)

    def _list_served(self) -> Iterator[tuple[Container[str], str]]:
        return ((rule.methods or (), rule.rule) for rule in self._app.url_map.iter_rules())

    def _rule(self) -> RouteRule | None:
        """Return the rule of the requested view, or of the innermost blueprint that has one."""
        marked = self._find_mark()
        if marked is not None:
            return marked
        rules: dict[str, RouteRule] = self._app.extensions.get(_BLUEPRINTS, {})
        return next((rules[name] for name in request.blueprints if name in rules), None)

    def _find_mark(self) -> RouteRule | None:
        """Return the rule that a decorator has set on the view, or on the method of a class of views."""
        view = self._app.view_functions.get(request.endpoint or "")
        found = _mark_of(view) or _mark_of(getattr(getattr(view, "view_class", None), request.method.lower(), None))
        if found is None and hasattr(view, _BARE):
            raise ConfigurationError(
                f"@idempotent stands above the decorator that registers {request.endpoint!r}, which has not seen it: "
                "put it beneath, directly above the function."
            )
        return found

    # ------------------------------------------------------------ where Flask is met

    def _serve_wsgi(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve a request; all resources opened for it are closed with it, also after a failure."""
        stack = environ[_OPEN] = ExitStack()
        try:
            chunks = self._wsgi_app(environ, start_response)
        except BaseException:
            stack.close()
            raise
        return OutgoingResponse(chunks, stack)

    def _keep_body(self, app: Flask, **signal: Any) -> None:
        """Begin to keep what is read of the body, before its first reader."""
        self._guard.warn_of_unmatched(self._list_served)
        rule = self._rule()
        guard = self.guard(rule)
        guarded = request.method in guard.policy.methods and not (rule is not None and rule.need == "off")
        if guarded and guard.policy.header in request.headers and EXCHANGE not in request.environ:
            _input_of(request.environ, guard)

    def _dispatch(self, *args: Any) -> Any:
        """A decorated view is guarded beneath the decorators that stand above; every other one here."""
        if request.routing_exception is not None or self._find_mark() is not None:
            return self._dispatch_request(*args)
        return self.serve(self._rule(), lambda: self._dispatch_request(*args))

    def _refuse(self, refusal: Refusal) -> Response:
        """A body that is refused while a ``before_request`` function reads it."""
        return self._ours(self.guard(self._rule()).answer(refusal))

    def _ours(self, answer: messages.Response) -> Response:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        return self._app.response_class(answer.body or b"", answer.status, headers)

    # ------------------------------------------------------------ the course of a request

    def serve(self, rule: RouteRule | None, view: Callable[[], Any]) -> Any:
        """Answer the request with ``view``, or in its place."""
        if request.environ.get(_KEPT, rule) is not rule:
            raise ConfigurationError(
                f"@idempotent on the view of {request.endpoint!r} was not seen: the decorators above it must use "
                "functools.wraps."
            )
        guard, off = self.guard(rule), rule is not None and rule.need == "off"
        held: ChunkedExchange | None = request.environ.get(EXCHANGE)
        asked = _make_request()
        if nested.is_inside(guard, asked, held, off=off) or off:
            return view()
        try:
            exchange = self._admit(guard)
        except Refusal as refusal:
            return self._ours(guard.answer(refusal))
        if exchange is None:
            return view()
        request.environ[_KEPT] = rule
        return self._exchange(exchange, view)

    def _admit(self, guard: Guard) -> ChunkedExchange | None:
        """Read the request, its body last; None when it passes untouched. Raises `Refusal`."""
        asked = _make_request()
        key = guard.admit(asked)
        if key is None:
            return None
        scope = guard.scope(find(guard.principal, request))
        source = _input_of(request.environ, guard)
        source.finish()
        return ChunkedExchange(guard, asked, key, source.body, scope)

    def _exchange(self, exchange: ChunkedExchange, view: Callable[[], Any]) -> Response:
        environ = request.environ
        environ[EXCHANGE] = exchange
        response = self._app.response_class()

        def handler() -> StreamedResponse:
            nonlocal response
            if exchange.restarts:
                _forget_body(exchange.body)
            swapped.use(None if exchange.claim is None else exchange.claim.tx)
            response, error = self._response(view)
            origin = ResponseOrigin(raised=error is not None)
            return StreamedResponse(
                response.status_code, latin(response.headers), _Chunks(response), error, origin=origin
            )

        with _Swapped(self._session) as swapped:
            answer = exchange.serve(handler)
        if isinstance(answer, messages.Response):
            return self._ours(answer)
        if isinstance(answer.chunks, Chunks):
            environ[_OPEN].callback(answer.chunks.close)
            response.response = list(answer.chunks) if answer.chunks.settled else answer.chunks
        return response

    def _response(self, view: Callable[[], Any]) -> tuple[Response, Exception | None]:
        """Return the view's answer, or the error handler's answer to its exception, with that exception."""
        try:
            returned, raised = view(), None
        except Exception as error:  # noqa: BLE001 - raised again where there is no handler
            returned, raised = self._app.handle_user_exception(error), error
        return self._app.make_response(returned), raised


class _Chunks:
    """The chunks of a response as the view made it."""

    def __init__(self, response: Response) -> None:
        self._chunks = response.iter_encoded()
        self._close = getattr(response.response, "close", None)

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        if self._close is not None:
            self._close()


class _Swapped:
    """Lets the application's scoped session be the transaction's, and puts its own back in the end."""

    def __init__(self, session: Any) -> None:
        self._registry = None if session is None else session.registry
        self._own: list[Any] = []

    def __enter__(self) -> _Swapped:
        if self._registry is not None and self._registry.has():
            self._own.append(self._registry())
        return self

    def use(self, tx: Any) -> None:
        """Make ``tx`` the session of this request."""
        if self._registry is None or tx is None:
            return
        if not hasattr(tx, "get_bind"):
            raise ConfigurationError(
                f"session= was given, but current().tx is a {type(tx).__name__}: make the boundary with "
                "store=sessionmaker(engine)."
            )
        self._registry.set(tx)

    def __exit__(self, *error: object) -> None:
        if self._registry is None:
            return
        if self._own:
            self._registry.set(self._own[0])
        elif self._registry.has():
            self._registry.clear()


# ------------------------------------------------------------ the body


def _make_request() -> messages.Request:
    """The head of Flask's request, with the rule by which it is routed."""
    asked = request_of(request.environ)
    if request.url_rule is not None:
        asked.routed += (request.url_rule.rule,)
        asked.route = request.url_rule.rule
    return asked


def _input_of(environ: Environ, guard: Guard) -> Input:
    """The body, kept from the first time that this is asked."""
    found: Input | None = environ.get(_INPUT)
    if found is None:
        body = Body(request_of(environ), guard.policy)
        environ.setdefault(_OPEN, ExitStack()).callback(body.close)
        found = environ[_INPUT] = Input(environ, body)
        environ["wsgi.input"] = BufferedReader(found)
    return found


def _forget_body(body: Body) -> None:
    """Let the view read the body again."""
    request.close()
    request.environ["wsgi.input"] = body.open()
    for name in _PARSED:
        request.__dict__.pop(name, None)


# ------------------------------------------------------------ what is said of views and blueprints


@overload
def idempotent(view: View, /) -> View: ...


@overload
def idempotent(
    need: Need = "required",
    /,
    *,
    boundary: Boundary | None = None,
    principal: Principal | None = None,
    **options: Unpack[Options],
) -> Callable[[Guarded], Guarded]: ...


def idempotent(
    need: Any = "required",
    /,
    *,
    boundary: Boundary | None = None,
    principal: Principal | None = None,
    **options: Unpack[Options],
) -> Any:
    """Say of one view, or of a blueprint, whether its requests need a key: "required", "optional" or "off".

    On a view it stands directly above the function, beneath ``@login_required`` and the like, which so are asked
    before a response is replayed; POST, PUT, PATCH and DELETE are guarded, unless ``methods`` says otherwise. A
    blueprint is given to it before it is registered: ``idempotent("off")(blueprint)``. ``boundary``, ``principal`` and
    ``options`` hold instead of those of `Idempotency`.
    """
    if not isinstance(need, str):
        return idempotent()(need)
    if "required" in options or "routes" in options:
        raise ConfigurationError("idempotent() says itself what is required: 'required', 'optional' or 'off'.")

    def decorate(guarded: Any) -> Any:
        if isinstance(guarded, Blueprint):
            _mark_blueprint(guarded, RouteRule(cast("Need", need), boundary, principal, options))
            return guarded
        chosen: Options = {"methods": UNSAFE, **options}
        return _guard_view(guarded, RouteRule(cast("Need", need), boundary, principal, chosen))

    return decorate


def _mark_blueprint(blueprint: Blueprint, rule: RouteRule) -> None:
    def remember(state: Any) -> None:
        name = f"{state.name_prefix}.{state.name}".lstrip(".")
        state.app.extensions.setdefault(_BLUEPRINTS, {})[name] = rule

    blueprint.record(remember)


def _guard_view(view: Callable[..., Any], rule: RouteRule) -> Callable[..., Any]:
    @wraps(view)
    def serve_guarded(*args: Any, **kwargs: Any) -> Any:
        installed: Installed | None = current_app.extensions.get(_EXTENSION)
        if installed is None:
            raise ConfigurationError(
                "@idempotent needs Idempotency(app, boundary), which this application does not have."
            )
        return installed.serve(rule, lambda: current_app.ensure_sync(view)(*args, **kwargs))

    setattr(serve_guarded, _MARK, rule)
    if isinstance(view, FunctionType):
        setattr(view, _BARE, True)
    return serve_guarded


def _mark_of(view: object) -> RouteRule | None:
    return getattr(view, _MARK, None)


# ------------------------------------------------------------ conditional requests


def check_preconditions(request: Request, current: Version | None, *, required: bool = False) -> None:
    """Abort with 304, 412 or 428 unless If-Match and If-None-Match allow the request; see `conditional.evaluate`.

    The response has the current ETag and is a problem (RFC 9457); error handlers find it as ``error.response``.
    """
    unmet = evaluate(request_of(request.environ), current, required=required)
    if unmet is None:
        return
    response = current_app.response_class(unmet.problem, unmet.status, unmet.fields)
    if unmet.status == 304:
        abort(response)
    abort(unmet.status, unmet.detail, response)


def find_routes(app: Flask) -> Iterator[ServedRoute]:
    """The routes for POST and PATCH of an application, guarded if it has an `Idempotency`."""
    found: Policed = "guarded" if _EXTENSION in app.extensions else "unguarded"
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        view = getattr(view, "view_class", view)
        for method in sorted(GUARDED_BY_DEFAULT & set(rule.methods or ())):
            handler = serving(view, method)
            yield ServedRoute(f"{method} {rule.rule}", own_policy(handler, found), handler)
