"""Django: a decorator for views, and a middleware for a whole project.

Both run in the thread of the view, so that a transactional boundary on an alias of ``DATABASES`` holds one
``transaction.atomic()`` around everything that the view does. Never put an ASGI middleware around Django for that: it
would hold a connection of another thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, Literal, TypeVar, Unpack

from retrysafe.boundary import Boundary, require_boundary
from retrysafe.cancellation import run_to_completion
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.django_serving import (
    GUARDED,
    Again,
    find_guarded_request,
    guards_itself,
    leave_to_inner,
    login_pages,
    of_user,
    request_of,
    response_of,
    serve,
)
from retrysafe.http.guard import Guard
from retrysafe.http.policy import GUARDED_BY_DEFAULT, UNSAFE, Options, Policed, ServedRoute, own_policy, serving
from retrysafe.http.principals import SHARED, UNSAID, check

with NeedsExtra("django", "django", "asgiref"):
    from asgiref.sync import AsyncToSync, async_to_sync, iscoroutinefunction, sync_to_async
    from django.conf import settings
    from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
    from django.core.handlers.exception import response_for_exception
    from django.core.signals import got_request_exception
    from django.db import connections, transaction
    from django.http import Http404, HttpRequest
    from django.http.multipartparser import MultiPartParserError
    from django.http.response import HttpResponseBase
    from django.urls import Resolver404, get_resolver, resolve
    from django.utils.module_loading import import_string
    from django.views.generic.base import RedirectView

Principal = Literal["user", "shared"] | Callable[[Any], Any]
V = TypeVar("V", bound=Callable[..., Any])


def guard_of(boundary: Boundary, principal: Principal, options: Options) -> Guard:
    """The guard for a Django view. Raises `ConfigurationError` for choices that cannot be kept."""
    require_boundary(boundary)
    if boundary.effects == "transactional" and boundary.entrypoint.alias is None:
        raise ConfigurationError(
            f"{boundary!r} is transactional, but not on an alias of Django's DATABASES: what the ORM does would not "
            "commit with the record. Use store='default', or effects='keyed'."
        )
    return Guard(boundary, options, of_user if principal == "user" else principal, login_pages=login_pages)


# ------------------------------------------------------------ the decorator


def idempotent(boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]) -> Callable[[V], V]:
    """Decorate a view: a request runs once per ``Idempotency-Key``, and its retries get the first response.

    For function views, for what ``as_view()`` returns, and with ``method_decorator(…, name="dispatch")`` for classes,
    of async ones with ``name="post"``.
    Authentication by decorators goes around it. For views of REST framework see `retrysafe.http.drf`.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` it is on an alias of ``DATABASES``; the
            view then runs in its transaction, and also otherwise no longer inside the one of ``ATOMIC_REQUESTS``, which
            would commit after the record, but around one of its own.
        principal: whose the request is, so that keys of two never meet, and a request without one is refused with 403:
            "user" for ``request.user``, or a function that takes the request and returns text, an int or a UUID.
        options: see `retrysafe.http.policy.Options`; ``required`` is true, and ``methods`` are POST, PUT, PATCH and
            DELETE, unless you say otherwise.

    The view finds its claim as ``request.idempotency`` and `retrysafe.current()`. Raises `ConfigurationError` for
    choices that cannot be kept, such as an async view under a transactional boundary.
    """
    guard = guard_of(boundary, principal, {"required": True, "methods": UNSAFE, **options})

    def decorate(view: V) -> V:
        guarded: V = _guard_view(guard, view)
        setattr(guarded, GUARDED, True)
        return guarded

    return decorate


def _guard_view(guard: Guard, view: Any) -> Any:
    if iscoroutinefunction(view):
        return _guard_async_view(guard, view)

    @wraps(view)
    def serve_guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        run = partial(view, request, *args, **kwargs)
        inside = partial(in_atomic_requests, serve_guarded, run, besides=own_alias(guard))
        return serve(guard, request, partial(_answer, request, inside), partial(in_atomic_requests, serve_guarded, run))

    take_over_atomic_requests(serve_guarded)
    return serve_guarded


def _guard_async_view(guard: Guard, view: Any) -> Any:
    """As Django adapts async views to sync middleware: the guard in the thread of sync code, the view on the loop."""
    if guard.transactional:
        raise ConfigurationError(ASYNC_VIEW.format(view=view, alias=guard.entry.alias))

    @wraps(view)
    async def serve_guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        run = partial(to_its_end(async_to_sync(view)), request, *args, **kwargs)
        inside = partial(_answer, request, run)
        response: HttpResponseBase = await sync_to_async(serve)(guard, request, inside, run)
        return response

    return serve_guarded


_REFUSALS = (Http404, PermissionDenied, BadRequest, SuspiciousOperation, MultiPartParserError)
"""Exceptions by which a view refuses a request, and which Django answers by a 4xx."""


def _answer(request: HttpRequest, run: Callable[[], HttpResponseBase]) -> Any:
    """Run a view; its refusals become responses as Django makes them, so that they are kept like others."""
    try:
        return run()
    except _REFUSALS as error:
        if (guarded := find_guarded_request(request)) is not None:
            guarded.caught = error
        return response_for_exception(request, error)


ASYNC_VIEW = (
    "{view!r} is an async view (or in sync_to_async), and its boundary is transactional on the alias {alias!r}: "
    "Django's transactions belong to one thread and cannot be kept to it there. Make the view sync, or use a boundary "
    "with effects='keyed'."
)


# ------------------------------------------------------------ ATOMIC_REQUESTS


def own_alias(guard: Guard) -> str | None:
    """The alias whose transaction the guard holds."""
    return guard.entry.alias if guard.transactional else None


class TakenOver(set[str]):
    """The aliases that `transaction.non_atomic_requests` names for a view; Django is told that it names all of them."""

    def __contains__(self, alias: object) -> bool:
        return True


def take_over_atomic_requests(view: Any) -> TakenOver:
    """Keep Django from opening the transactions of ``ATOMIC_REQUESTS`` around a view: they end after the record."""
    taken_over = view._non_atomic_requests = TakenOver(getattr(view, "_non_atomic_requests", ()))
    return taken_over


def atomic_requests(exempt: TakenOver, besides: str | None = None) -> ExitStack:
    """The transactions that ``ATOMIC_REQUESTS`` wants around a view, but for the alias ``besides``."""
    stack = ExitStack()
    for alias in _atomic_aliases(exempt):
        if alias != besides:
            block: Any = transaction.atomic(using=alias)
            stack.enter_context(block)
    return stack


def _atomic_aliases(exempt: set[str]) -> list[str]:
    databases: Any = connections.settings
    return [
        alias for alias, configured in databases.items() if configured["ATOMIC_REQUESTS"] and alias not in set(exempt)
    ]


def in_atomic_requests(view: Any, run: Callable[[], HttpResponseBase], *, besides: str | None = None) -> Any:
    """Run a view in the transactions that ``ATOMIC_REQUESTS`` wants.

    That of the claim on the alias ``besides`` stands for its own: after an exception it is marked to be rolled back.
    """
    exempt = view._non_atomic_requests
    try:
        with atomic_requests(exempt, besides):
            return run()
    except Exception:
        if besides in _atomic_aliases(exempt) and connections[besides].in_atomic_block:
            connections[besides].set_rollback(True)
        raise


# ------------------------------------------------------------ the middleware


class IdempotencyMiddleware:
    """Lets the requests of a Django project that carry an ``Idempotency-Key`` run once.

    Put it last in ``MIDDLEWARE``, or at least after compression, conditional responses, sessions and authentication,
    and say in the setting ``RETRYSAFE`` what it guards: ``BOUNDARY``, a `retrysafe.Boundary` or the dotted path to
    one; ``PRINCIPAL``, "user", a function that takes the request or the dotted path to one; and the names of
    `retrysafe.http.policy.Options` in capitals, such as ``REQUIRED`` and ``ROUTES``. For other settings make a subclass
    with another `setting`.

    Views that are guarded themselves, by a decorator or by the mixin of REST framework, are left to their own guard,
    which knows whose request it is. Other views of REST framework authenticate inside the claim, and are refused with
    `ConfigurationError` where there is no ``PRINCIPAL``.

    It is sync; under ASGI Django runs it in the thread of the request's sync code. With a transactional boundary the
    view must be sync and run in that thread, or it is refused with `ConfigurationError`.

    Attributes:
        setting: the name of the setting.
    """

    sync_capable = True
    async_capable = False
    setting = "RETRYSAFE"

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.guard = guard_of_settings(self.setting)
        self._get_response = to_its_end(get_response)
        self._passing = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Serve one request."""
        passing = partial(self._passing, request)
        if request.method in self.guard.policy.methods:
            view = _view_of(request)
            if guards_itself(view, request.method):
                leave_to_inner(self.guard, request)
                return passing()
        return serve(self.guard, request, partial(self._get_response, request), passing, of_view=False)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:
        """Refuse views that find out later who calls, or would leave the thread of the transaction."""
        guarded = find_guarded_request(request)
        if guarded is None or guarded.exchange.guard is not self.guard or guarded.exchange.claim is None:
            return
        guarded.reached = True
        if not self.guard.transactional:
            return
        if iscoroutinefunction(view):
            raise ConfigurationError(ASYNC_VIEW.format(view=view, alias=self.guard.entry.alias))
        if threading.get_ident() != guarded.thread:
            raise ConfigurationError(
                f"{view!r} runs in another thread than IdempotencyMiddleware, whose transaction on the alias "
                f"{self.guard.entry.alias!r} belongs to its own: a middleware between the two has moved it, as "
                "sync_to_async(…, thread_sensitive=False) does. Put IdempotencyMiddleware after that one."
            )
        if self.guard.entry.alias in _atomic_aliases(getattr(view, "_non_atomic_requests", set())):
            guarded.savepoint = ""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Take note of what a view raised, before a response is made of it."""
        guarded = find_guarded_request(request)
        if guarded is None:
            return None
        guarded.caught = exception
        wanted = self.guard.find_restart(500, exception) if self.guard.transactional else None
        if isinstance(wanted, Exception):
            guarded.uncaught = wanted
            return Again(status=500)
        return None


def _view_of(request: HttpRequest) -> Any:
    """The view that Django will find for a request, if any."""
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None)).func
    except Resolver404:
        return None


def _remember(request: HttpRequest | None = None, **_: Any) -> None:
    """Take note of an error of which Django makes its page for status 500."""
    guarded = None if request is None else find_guarded_request(request)
    error = sys.exc_info()[1]
    if guarded is not None and isinstance(error, Exception):
        guarded.uncaught = error


got_request_exception.connect(_remember, dispatch_uid="retrysafe")


def to_its_end(get_response: Any) -> Any:
    """``get_response`` so that async code behind it comes to its end although the client leaves: its retry wants it."""
    if not isinstance(get_response, AsyncToSync):
        return get_response
    behind: Any = get_response.awaitable

    async def whole(*args: Any, **kwargs: Any) -> Any:
        return (await run_to_completion(behind(*args, **kwargs)))[0]

    return async_to_sync(whole)


def guard_of_settings(name: str) -> Guard:
    """The guard that a setting describes. Raises `ConfigurationError` for what cannot be kept."""
    given = getattr(settings, name, None)
    if not isinstance(given, Mapping) or "BOUNDARY" not in given:
        raise ConfigurationError(
            f"IdempotencyMiddleware needs the setting {name} = {{'BOUNDARY': 'shop.boundaries.orders', …}}."
        )
    options: Any = {str(option).lower(): value for option, value in given.items()}
    boundary, principal = _import_object(options.pop("boundary")), options.pop("principal", UNSAID)
    if not isinstance(boundary, Boundary):
        raise ConfigurationError(f"{name}['BOUNDARY'] is {boundary!r}, not a Boundary or the dotted path to one.")
    found = principal if principal in ("user", SHARED) else _import_object(principal)
    if found != "user":
        check(found, _USER, f'"PRINCIPAL": "{SHARED}",')
    return guard_of(boundary, found, options)


_USER = '"PRINCIPAL": "user",  # request.user; or the dotted path to a function of the request'


def _import_object(found: Any) -> Any:
    if not isinstance(found, str):
        return found
    try:
        return import_string(found)
    except ImportError as error:
        raise ConfigurationError(f"{found!r} in the settings of retrysafe cannot be imported: {error}") from error


# ------------------------------------------------------------ conditional requests


def check_preconditions(
    request: HttpRequest, current: Version | None, *, required: bool = False
) -> HttpResponseBase | None:
    """The response to return if If-Match or If-None-Match forbid the request, else None; see `conditional.evaluate`.

    It is 304, 412 or 428, has the current ETag, and is a problem (RFC 9457). Unlike the decorators of
    ``django.views.decorators.http`` it stands in the view, where the row is locked, and knows 428.
    """
    unmet = evaluate(request_of(request), current, required=required)
    return None if unmet is None else response_of(unmet.response)


def find_routes(project: object) -> Iterator[ServedRoute]:
    """The class-based views of the project with a ``post`` or ``patch``.

    Which methods a plain function serves cannot be known, so that those are not listed.
    """
    whole = any(name.startswith(__name__) for name in settings.MIDDLEWARE)
    resolver: Any = get_resolver()
    return _list_served(resolver.url_patterns, "/", whole=whole)


def _list_served(patterns: Iterable[Any], prefix: str, *, whole: bool) -> Iterator[ServedRoute]:
    for pattern in patterns:
        template = f"{prefix}{pattern.pattern}"
        if hasattr(pattern, "url_patterns"):
            yield from _list_served(pattern.url_patterns, template, whole=whole)
            continue
        view = getattr(pattern.callback, "view_class", None) or getattr(pattern.callback, "cls", None)
        if view is RedirectView:  # it answers every method, and does nothing: Django's admin has one for each model
            continue
        for method in sorted(GUARDED_BY_DEFAULT):
            if hasattr(view, method.lower()):
                guarded = whole or guards_itself(pattern.callback, method)
                found: Policed = "guarded" if guarded else "unguarded"
                handler = serving(view, method)
                yield ServedRoute(f"{method} {template}", own_policy(handler, found), handler)
