"""Django REST framework: a mixin for its views, and a decorator for what ``as_view()`` and ``@api_view`` make.

The claim stands where REST framework calls the handler: after authentication, permissions and throttles, which every
retry must pass again, and around its exception handler and renderers, so that what is stored is what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar, Unpack

from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import openapi
from retrysafe.http.conditional import Unmet, Version, evaluate
from retrysafe.http.exchange import AnswerInstead
from retrysafe.http.guard import Guard
from retrysafe.http.policy import UNSAFE, Options
from retrysafe.http.problems import Refusal
from retrysafe.http.routes import NEEDS, Need

with NeedsExtra("drf", "django", "asgiref", "rest_framework"):
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase
    from rest_framework.exceptions import APIException
    from rest_framework.renderers import JSONRenderer
    from rest_framework.schemas.openapi import AutoSchema as _AutoSchema
    from rest_framework.views import APIView
    from rest_framework.viewsets import ViewSetMixin

    from retrysafe.http.django import Principal, TakenOver, atomic_requests, guard_of, own_alias
    from retrysafe.http.django_serving import GUARDED, GuardedRequest, admit, request_of, response_of

V = TypeVar("V", bound=Callable[..., Any])


class Idempotency:
    """The settings of a guarded view: the attribute ``idempotency`` of a class with `IdempotentMixin`.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` it is on an alias of ``DATABASES``.
        principal: whose the request is: "user", the default, for ``request.user`` as REST framework authenticated it;
            a function that takes REST framework's request; or "shared", so that keys of all users are one space.
        actions: action of a view set, or method in small letters, to "required", "optional" or "off". Others follow
            ``required``, true by default, if their method is one of ``methods``: POST, PUT, PATCH and DELETE, unless
            you say otherwise.
        options: see `retrysafe.http.policy.Options`.

    Raises `ConfigurationError` for choices that cannot be kept, and in a class without `IdempotentMixin`; before Python
    3.12 that is the ``__cause__`` of a `RuntimeError`.
    """

    def __init__(
        self,
        boundary: Boundary,
        *,
        principal: Principal = "user",
        actions: Mapping[str, Need] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.default = guard_of(boundary, principal, {"required": True, "methods": UNSAFE, **options})
        self._actions: dict[str, Guard | None] = {}
        for name, need in (actions or {}).items():
            if need not in NEEDS:
                raise ConfigurationError(f"actions=: {name!r} is {need!r}, which is none of {', '.join(NEEDS)}.")
            self._actions[name] = None if need == "off" else self.default.under(need, {})

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "idempotency" and not issubclass(owner, IdempotentMixin):
            raise ConfigurationError(
                f"{owner.__name__} has idempotency = Idempotency(…), but does not inherit IdempotentMixin, so nothing "
                f"would be guarded: class {owner.__name__}(IdempotentMixin, …)."
            )

    def refuse_unknown_actions(self, view: type[APIView]) -> None:
        """Raise `ConfigurationError` if ``actions`` name what is neither an action nor a method of a view."""
        unknown = [name for name in self._actions if not _is_action(view, name)]
        if unknown:
            raise ConfigurationError(f"actions=: {unknown[0]!r} is neither an action nor a method of {view.__name__}.")

    def guard(self, action: str | None, method: str) -> Guard | None:
        """The guard of an action; None where it is off."""
        for name in (action, method.lower()):
            if name in self._actions:
                return self._actions[name]
        return self.default


def _is_action(view: type[APIView], name: str) -> bool:
    is_method, is_there = name in view.http_method_names, callable(getattr(view, name, None))
    return is_method or is_there if issubclass(view, ViewSetMixin) else is_method and is_there


class IdempotentMixin(APIView):
    """Lets the requests of a view or view set that carry an ``Idempotency-Key`` run once.

    Put it first among the bases, and set ``idempotency``. The handler finds its claim as ``request.idempotency`` and
    `retrysafe.current()`. When the database wants a transaction again, the view is run again from its beginning, but
    for its throttles.
    """

    idempotency: Idempotency
    _guarded_request: GuardedRequest | Refusal | None = None
    _blocks: ExitStack | None = None
    _taken_over: TakenOver | None = None

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        """As REST framework's; ``ATOMIC_REQUESTS`` is kept inside the claim."""
        if not isinstance(getattr(cls, "idempotency", None), Idempotency):
            raise ConfigurationError(f"{cls.__name__} has IdempotentMixin, but no idempotency = Idempotency(boundary).")
        cls.idempotency.refuse_unknown_actions(cls)
        taken_over = TakenOver()
        view: Any = super().as_view(*args, **initkwargs, _taken_over=taken_over)
        taken_over.update(getattr(view, "_non_atomic_requests", ()))
        view._non_atomic_requests = taken_over
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Serve one request."""
        guard = self.idempotency.guard(self._action_of(request), request.method or "")
        dispatch: Any = super().dispatch

        def run() -> Any:
            with ExitStack() as self._blocks:
                if self._guarded_request is None:
                    self._open_atomic_requests(None)
                return dispatch(request, *args, **kwargs)

        if guard is None:
            return run()
        try:
            self._guarded_request = admit(guard, request)
        except Refusal as refusal:
            self._guarded_request = refusal
            return self._refuse(guard, refusal, run)
        return run() if self._guarded_request is None else self._guarded_request.serve(run)

    def _refuse(self, guard: Guard, refusal: Refusal, run: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """A refusal, to clients that pass authentication, permissions and throttles."""
        try:
            return run()
        except AnswerInstead:
            return response_of(guard.answer(refusal))

    def _open_atomic_requests(self, besides: str | None) -> None:
        if self._blocks is not None and self._taken_over is not None:
            self._blocks.enter_context(atomic_requests(self._taken_over, besides))

    def _action_of(self, request: HttpRequest) -> str | None:
        actions: Mapping[str, str] = getattr(self, "action_map", None) or {}
        return actions.get((request.method or "").lower())

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Authentication, permissions, throttles; then the claim."""
        super().initial(request, *args, **kwargs)
        guarded = self._guarded_request
        if isinstance(guarded, Refusal):
            raise AnswerInstead from guarded
        if guarded is not None:
            guard = guarded.exchange.guard
            guarded.begin(request)
            self._open_atomic_requests(own_alias(guard))

    def check_throttles(self, request: Any) -> None:
        """As REST framework's; a request that is run again counts once."""
        if not isinstance(self._guarded_request, GuardedRequest) or not self._guarded_request.restarts:
            super().check_throttles(request)

    def handle_exception(self, exc: Exception) -> Any:
        """As REST framework's; what was raised is noted."""
        if isinstance(self._guarded_request, GuardedRequest):
            self._guarded_request.caught = exc
        return super().handle_exception(exc)


setattr(IdempotentMixin, GUARDED, True)


def idempotent(
    boundary: Boundary,
    *,
    principal: Principal = "user",
    actions: Mapping[str, Need] | None = None,
    **options: Unpack[Options],
) -> Callable[[V], V]:
    """Decorate what ``@api_view`` or a view's ``as_view()`` makes: put it directly above, or around it in ``urls.py``.

    The arguments are those of `Idempotency`. Raises `ConfigurationError` for choices that cannot be kept, and for what
    is no view of REST framework.
    """
    promised = Idempotency(boundary, principal=principal, actions=actions, **options)

    def decorate(view: V) -> V:
        found: Any = view
        cls = getattr(found, "cls", None)
        if not (isinstance(cls, type) and issubclass(cls, APIView)):
            raise ConfigurationError(
                f"{view!r} is not a view of REST framework: put @idempotent above @api_view, or around as_view(). "
                "Views of Django's own have retrysafe.http.django.idempotent."
            )
        namespace = {"idempotency": promised, "__module__": cls.__module__, "__doc__": cls.__doc__}
        guarded: Any = type(cls.__name__, (IdempotentMixin, cls), namespace)
        of_a_set = () if getattr(found, "actions", None) is None else (found.actions,)
        return guarded.as_view(*of_a_set, **found.initkwargs)  # type: ignore[no-any-return]

    return decorate


class IdempotentSchema:
    """Adds guarded views to generated OpenAPI documents: the header, the layer's answers, the window.

    A base in front of the generator's own class of schemas, such as `drf_spectacular.openapi.AutoSchema`.
    """

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        """The generator's operation, and what is ours; takes the generator's arguments."""
        operation = super().get_operation(*args, **kwargs)  # type: ignore[misc]
        view: Any = getattr(self, "view")  # noqa: B009 - the generator's
        guard = _guard_of(view, str(getattr(self, "method", None) or args[1]).upper())
        if guard is None or operation is None:
            return operation
        more = openapi.extra(guard, required=guard.policy.required)
        operation["parameters"] = openapi.with_parameters(operation.get("parameters", ()), more.pop("parameters"))
        operation["responses"] = more.pop("responses") | operation["responses"]
        return operation | more


def _guard_of(view: Any, method: str) -> Guard | None:
    """The guard of a view's method; None where nothing is guarded."""
    promised = getattr(view, "idempotency", None)
    if not isinstance(promised, Idempotency):
        return None
    guard = promised.guard(getattr(view, "action", None), method)
    return guard if guard is not None and method in guard.policy.methods else None


class AutoSchema(IdempotentSchema, _AutoSchema):
    """`IdempotentSchema` for REST framework's own generator: ``DEFAULT_SCHEMA_CLASS`` names it."""


# ------------------------------------------------------------ conditional requests


class PreconditionUnmet(APIException):
    """A precondition of the request does not hold: 304, 412 or 428."""

    def __init__(self, unmet: Unmet) -> None:
        super().__init__(unmet.detail, "precondition")
        self.status_code = unmet.status


class _Shown(JSONRenderer):
    """Renders the exception handler's answer; 304 has no body."""

    media_type = "application/problem+json"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        context = renderer_context or {}
        if context["response"].status_code == 304:
            return b""
        return bytes(super().render(data, accepted_media_type, context))


def check_preconditions(request: Any, current: Version | None, *, required: bool = False) -> None:
    """Raise `PreconditionUnmet` unless If-Match and If-None-Match allow the request; see `conditional.evaluate`.

    The response has the current ETag. It is what the exception handler makes of it: with REST framework's own, a
    problem (RFC 9457) that has the member ``detail`` alone.
    """
    unmet = evaluate(request_of(request._request), current, required=required)
    if unmet is None:
        return
    request.accepted_renderer = _Shown()
    if unmet.etag is not None:
        request.parser_context["view"].headers["ETag"] = str(unmet.etag)
    raise PreconditionUnmet(unmet)
