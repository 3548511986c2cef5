"""aiohttp: a middleware for applications, a decorator for single handlers.

Put the middleware last in ``middlewares=[…]``, so that authentication is around it.
"""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import closing, suppress
from typing import Any, Unpack

from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http import nested
from retrysafe.http.bodies import CHUNK, Body, frame
from retrysafe.http.conditional import Version, evaluate
from retrysafe.http.exchange import UnaryExchange
from retrysafe.http.guard import RETURNED, Guard, ResponseOrigin
from retrysafe.http.messages import Headers, Request, Response, lower, path_of
from retrysafe.http.policy import GUARDED_BY_DEFAULT, UNSAFE, Options, Policed, ServedRoute, own_policy, serving
from retrysafe.http.principals import UNSAID, Principal, afind
from retrysafe.http.problems import Refusal

with NeedsExtra("aiohttp", "aiohttp", "multidict"):
    from aiohttp import Payload, web
    from multidict import CIMultiDict

_GUARDS = "__retrysafe_guards__"
"""The attribute of a middleware or handler of ours."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def idempotency(boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]) -> Any:
    """A middleware that lets requests with an ``Idempotency-Key`` run once, for ``web.Application(middlewares=[…])``.

    Arguments:
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler finds the transaction as
            ``current().tx``, and the response leaves after the commit.
        principal: called with the request, it returns whose it is (text, an int or a UUID; also a coroutine); an
            anonymous request is refused with 403.
        options: see `retrysafe.http.policy.Options`.

    Request bodies are held in memory up to ``client_max_size`` of the application.
    """
    guard = Guard(boundary, options, principal)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _serve(guard, request, functools.partial(handler, request))

    setattr(middleware, _GUARDS, True)
    return middleware


def idempotent(
    boundary: Boundary, *, principal: Principal = UNSAID, **options: Unpack[Options]
) -> Callable[[Handler], Handler]:
    """`idempotency` for one handler, a coroutine function that takes the request: keys are required by default."""
    guard = Guard(boundary, {"required": True, **options}, principal)

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def serve_guarded(request: web.Request) -> web.StreamResponse:
            return await _serve(guard, request, functools.partial(handler, request))

        setattr(serve_guarded, _GUARDS, True)
        return serve_guarded

    return decorate


async def _serve(
    guard: Guard, request: web.Request, handler: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request: by the handler, or in its place."""
    asked = _request(request)
    guard.warn_of_unmatched(lambda: _list_served(request.app))
    if nested.is_inside(guard, asked):
        return await handler()
    try:
        key = guard.admit(asked)
        if key is None:
            return await handler()
        scope = guard.scope(await afind(guard.principal, request))
        with closing(Body(asked, guard.policy)) as body:
            parsed = await _read(request, body)
            return await _exchange(UnaryExchange(guard, asked, key, body, scope), request, handler, parsed=parsed)
    except Refusal as refusal:
        return _render(guard.answer(refusal))


async def _exchange(
    exchange: UnaryExchange,
    request: web.Request,
    handler: Callable[[], Awaitable[web.StreamResponse]],
    *,
    parsed: bool,
) -> web.StreamResponse:
    given: list[web.StreamResponse] = []

    async def work() -> Response:
        await _give_back(request, exchange.body, parsed=parsed)
        exchange.origin, exchange.error = RETURNED, None
        try:
            given[:] = [await handler()]
        except web.HTTPException as response:
            given[:] = [response]
            exchange.error = response
            # a success and a redirect are raised in place of being returned
            exchange.origin = ResponseOrigin(raised=response.status >= 400)
        captured = _capture(given[0])
        if captured.body is None and not exchange.guard.holds_all:
            given[:] = [await _stream(given[0], request)]
        return captured

    instead = await exchange.respond(work)
    if isinstance(instead, Refusal):
        if given and given[0].prepared:
            _abort(request)
        instead = exchange.guard.answer(instead)
    if instead is not None:
        return _render(instead)
    if isinstance(given[0], web.HTTPException):
        raise given[0]
    return given[0]


class _Streamed(web.StreamResponse):
    """A response whose body comes to its end without its client, because it may be the handler's work."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        with suppress(ConnectionError):
            await super().write(data)


async def _stream(given: web.StreamResponse, request: web.Request) -> web.StreamResponse:
    """Send a body that is made while it is sent, such as an async generator's, but for the end of the response."""
    body: Any = getattr(given, "body", None)
    if given.prepared or not isinstance(body, Payload) or body.size is not None:
        return given
    streamed = _Streamed(status=given.status, reason=given.reason, headers=given.headers)
    streamed.cookies.update(given.cookies)
    await streamed.prepare(request)
    await body.write(streamed)  # type: ignore[arg-type]
    return streamed


async def _read(request: web.Request, body: Body) -> bool:
    """Take the body as it comes, so that no more of it is in memory than ``body_memory``.

    Returns whether a middleware around has parsed it as a form, of which aiohttp does not keep the bytes.

    Raises `aiohttp.web.HTTPRequestEntityTooLarge` for more than the application takes.
    """
    limit = request.client_max_size
    if request._read_bytes is not None:  # by a middleware around, as also the fields of a form without files
        body.add(request._read_bytes)
    elif getattr(request.content, "_cursor", 0):
        if request._post is None:
            raise ConfigurationError(
                "A middleware around the guard has read a part of the body, which aiohttp does not keep. Nothing was "
                "done. Put the guard around that middleware, or let that use request.read() or request.post()."
            )
        for chunk in _form(request._post):
            body.add(chunk)
        return True
    async for chunk in request.content.iter_any():
        body.add(chunk)
        if limit and body.length > limit:
            raise web.HTTPRequestEntityTooLarge(limit, body.length)
    return False


async def _give_back(request: web.Request, body: Body, *, parsed: bool) -> None:
    """Let the handler read the body from its beginning, in whatever way it does."""
    for value in () if request._post is None else request._post.values():
        if isinstance(value, web.FileField):
            value.file.seek(0)
    if parsed:
        return
    while await request.content.readany():
        pass
    chunks = list(body.chunks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for chunk in reversed(chunks):
            request.content.unread_data(chunk)


def _form(fields: Any) -> Iterator[bytes]:
    """A form that a middleware around has parsed, with files, as it counts for a fingerprint: its bytes are gone."""
    for name, value in fields.items():
        if isinstance(value, web.FileField):
            yield frame(name, value.filename, value.content_type, value.file.seek(0, io.SEEK_END))
            value.file.seek(0)
            yield from iter(functools.partial(value.file.read, CHUNK), b"")
        elif isinstance(value, bytes | bytearray):
            yield frame(name, "", len(value)) + value
        else:
            yield frame(name, value)


def find_routes(app: web.Application) -> Iterator[ServedRoute]:
    """The routes for POST and PATCH of an application, and of those in it."""
    return _list_served_in(app, whole=False)


def _list_served_in(app: web.Application, *, whole: bool) -> Iterator[ServedRoute]:
    whole = whole or any(hasattr(middleware, _GUARDS) for middleware in app.middlewares)
    inner = {id(route) for below in app._subapps for route in below.router.routes()}
    for route in app.router.routes():
        if route.resource is None or id(route) in inner:
            continue
        for method in sorted(GUARDED_BY_DEFAULT & ({route.method} if route.method != "*" else UNSAFE)):
            found: Policed = "guarded" if whole or hasattr(route.handler, _GUARDS) else "unguarded"
            handler = serving(route.handler, method)
            yield ServedRoute(f"{method} {route.resource.canonical}", own_policy(handler, found), handler)
    for below in app._subapps:
        yield from _list_served_in(below, whole=whole)


def _list_served(app: web.Application) -> Iterator[tuple[Container[str], str]]:
    """Every route's methods and template."""
    for route in app.router.routes():
        if route.resource is not None:
            yield UNSAFE if route.method == "*" else {route.method}, route.resource.canonical


def _abort(request: web.Request) -> None:
    """A response that the handler has begun to send by itself must not look complete."""
    if request.transport is not None:
        request.transport.abort()


def _request(request: web.Request) -> Request:
    path, query = path_of(request.raw_path), request.raw_path.partition("?")[2]
    resource = request.match_info.route.resource
    route = "" if resource is None else resource.canonical
    routed = (request.path, route) if route else (request.path,)
    return Request(request.method, path.encode(), query.encode(), lower(request.raw_headers), routed, route)


def _capture(given: web.StreamResponse) -> Response:
    """The handler's response, as it is to be stored. Without a body where that is not in memory."""
    body: Any = getattr(given, "body", None) if isinstance(given, web.Response) and not given.prepared else None
    if isinstance(given, web.Response) and not given.prepared and body is None:
        body = b""
    kept = bytes(body) if isinstance(body, bytes | bytearray | memoryview) else None
    return Response(given.status, _headers(given), kept)


def _headers(given: web.StreamResponse) -> Headers:
    lines = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in given.headers.items()]
    lines += [(b"set-cookie", cookie.OutputString().encode()) for cookie in given.cookies.values()]
    return tuple(lines)


def _render(response: Response) -> web.Response:
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in response.headers:
        if name != b"content-length":
            headers.add(name.decode(), value.decode("utf-8", "surrogateescape"))
    return web.Response(status=response.status, headers=headers, body=response.body)


_UNMET = {304: web.HTTPNotModified, 412: web.HTTPPreconditionFailed, 428: web.HTTPPreconditionRequired}


def check_preconditions(request: web.Request, current: Version | None, *, required: bool = False) -> None:
    """Raise the exception of 304, 412 or 428 unless If-Match and If-None-Match allow the request.

    See `conditional.evaluate`. The exception has the current ETag, and its text is a problem (RFC 9457).
    """
    unmet = evaluate(_request(request), current, required=required)
    if unmet is not None:
        raise _UNMET[unmet.status](headers=unmet.fields, text=unmet.problem or None)
