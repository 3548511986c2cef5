"""The middleware for ASGI applications: Starlette, FastAPI, Litestar and every other.

Where it stands among others: CORS, compression, rate limits and authentication around it, the application inside.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, Unpack
from urllib.parse import quote

from retrysafe.boundary import Boundary
from retrysafe.errors import RetrysafeError
from retrysafe.http import nested
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import AnswerInstead, Capture, Exchange
from retrysafe.http.guard import RETURNED, Guard, ResponseOrigin
from retrysafe.http.messages import Request, Response, as_sent
from retrysafe.http.nested import EXCHANGE, OUTER_PRINCIPALS
from retrysafe.http.policy import Options
from retrysafe.http.principals import UNSAID, Principal, afind
from retrysafe.http.problems import Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Whose = Callable[[Scope], Awaitable[object]]
"""Finds the principal of a request."""

ROUTE = "retrysafe.route"
"""The key under which the scope has the template of its path, before a router notes it down."""
_REMOVED = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""Extensions by which a response could pass around us."""
_HANDLERS = "starlette.exception_handlers"
"""The key under which Starlette's routes find the exception handlers in the scope: by type, and by status."""
_GONE = (OSError, RuntimeError)
"""Errors of servers that can no longer send a message; RuntimeError is uvloop's, whose transport was closed."""
_START, _BODY, _DISCONNECT = "http.response.start", "http.response.body", "http.disconnect"


class IdempotencyMiddleware:
    """Lets the requests of an ASGI application that carry an ``Idempotency-Key`` run once.

    Arguments:
        app: the application.
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler's work, the record and the
            response commit together: the handler finds the transaction as ``current().tx``. A store that serves
            sync code only is used in threads.
        principal: called with the ASGI scope, it returns whose request it is (text, an int or a UUID; also a
            coroutine): keys of two principals never meet, and a request without a principal is refused with 403. What
            it raises is the application's own error.
        options: see `retrysafe.http.policy.Options`.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(
        self,
        app: App,
        boundary: Boundary,
        *,
        principal: Principal = UNSAID,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self.guard = Guard(boundary, options, principal)
        boundary.entrypoint.refuse_bound_to_threads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await serve_lifespan(self.guard, self.app, scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await serve_guarded(self.guard, self.app, scope, receive, send, self.whose)

    async def whose(self, scope: Scope) -> object:
        """The principal of the request."""
        return await afind(self.guard.principal, scope)


async def serve_lifespan(guard: Guard, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Let an application start, and then check the store: one that guarded requests cannot use ends the start.

    A store that does not answer may be back before the first request. The application starts first because it may
    migrate the store itself; if the check fails it is told to shut down, so that it cleans up.
    """
    refused: RetrysafeError | None = None

    async def send_checked(message: Message) -> None:
        nonlocal refused
        if message["type"] == "lifespan.startup.complete":
            refused = await guard.entry.find_unusable()
            if refused is not None:
                message = {"type": "lifespan.startup.failed", "message": f"retrysafe: {refused}"}
        elif refused is not None:
            return
        await send(message)

    async def receive_unless_refused() -> Message:
        return {"type": "lifespan.shutdown"} if refused is not None else await receive()

    await app(scope, receive_unless_refused, send_checked)
    if refused is not None:
        raise refused


def leave_to_inner(guard: Guard, scope: Scope, whose: Whose) -> None:
    """Hand the principal of ``guard`` on to one further in, to which the request is left."""
    if guard.principal is not None:
        scope[OUTER_PRINCIPALS] = [*scope.get(OUTER_PRINCIPALS, ()), partial(whose, scope)]


async def serve_guarded(
    guard: Guard, app: App, scope: Scope, receive: Receive, send: Send, whose: Whose | None, *, router_mark: str = ""
) -> None:
    """Serve one request with ``app`` behind ``guard``.

    Without ``whose`` the key is not claimed yet: ``scope[EXCHANGE].begin_for(principal)`` does so from the inside, as
    soon as it is known whose request it is; an application that never gets there has answered by itself.
    ``router_mark`` names what the application's router notes down in the scope, before which no handler can have been
    called.
    """
    if scope["method"].upper() not in guard.methods:
        await app(scope, receive, send)
        return
    request = request_of(scope)
    held = scope.get(EXCHANGE)
    if (held is not None or nested.AROUND.get() is not None) and nested.is_inside(guard, request, held):
        await _pass(app, scope, receive, send)
        return
    body: Body | None = None
    try:
        try:
            key = guard.admit(request)
            if key is None:
                await _pass(app, scope, receive, send)
                return
            found = None
            if whose is not None and (guard.principal is not None or OUTER_PRINCIPALS in scope):
                found = guard.scope(await whose(scope), await _outer_principals(scope))
            body = Body(request, guard.policy)
            if not await read_body(body, receive):
                return
        except Refusal as refusal:
            await send_response(send, guard.answer(refusal))
            return
        exchange = AsgiExchange(guard, request, key, body, found, deferred=whose is None)
        instead = await exchange.attempt(partial(exchange.run, app, scope, receive, send, router_mark))
        if isinstance(instead, Refusal):
            if exchange.sent:  # only an abort can keep the response from success
                raise instead
            instead = guard.answer(instead)
        if instead is not None:
            await send_response(send, instead)
    finally:
        if body is not None and body.file is not None:
            body.close()


async def _pass(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the application serve a request that is not claimed here; inside it is seen that a guard has looked at it."""
    scope.setdefault(EXCHANGE, None)
    try:
        await app(scope, receive, send)
    finally:
        if scope.get(EXCHANGE) is None:
            scope.pop(EXCHANGE, None)


async def _outer_principals(scope: Scope) -> list[object]:
    """The principals that the guards found which have left the request to one further in."""
    return [await found() for found in scope.get(OUTER_PRINCIPALS, ())]


def request_of(scope: Scope) -> Request:
    """The head of an ASGI request."""
    path = scope.get("raw_path") or quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()
    if b"?" in path:
        path = path.partition(b"?")[0]
    routed = _list_routed(scope) if scope.get("root_path") else (scope["path"],)
    route = scope[ROUTE] if ROUTE in scope else getattr(scope["route"], "path", "") if "route" in scope else ""
    return Request(scope["method"], path, scope.get("query_string", b""), scope["headers"], routed, route)


def _list_routed(scope: Scope) -> tuple[str, ...]:
    """The path as it is routed: whole, and inside of what serves it under a prefix (``root_path``, a mount)."""
    path, root = scope["path"], scope["root_path"].rstrip("/")
    return (path, path[len(root) :]) if root and path.startswith(f"{root}/") else (path,)


async def read_body(body: Body, receive: Receive) -> bool:
    """Read the whole body; False when the client left before its end, so that nothing is to be done."""
    more = True
    while more:
        message = await receive()
        if message["type"] == _DISCONNECT:
            return False
        body.add(message.get("body", b""))
        more = message.get("more_body", False)
    return True


async def send_response(send: Send, response: Response) -> None:
    """Send a response of ours."""
    await send({"type": _START, "status": response.status, "headers": list(response.headers)})
    await send({"type": _BODY, "body": response.body or b""})


class AsgiExchange(Exchange):
    """An exchange whose handler is an ASGI application, which sends its response in messages."""

    error: Exception | None = None
    """The handler's exception, for frameworks and middleware that turn it into a response before we can see it."""
    _inner: Scope
    _given: int | None
    """Bytes of the body that the application has received; None when it has all."""
    _waiting: asyncio.Event | None = None
    """Set when the application may hear that the client has left; made by who waits for that."""
    copied = False
    """True if a middleware inside may have copied the scope, so that what is noted in it stays unknown."""
    _keeps_end = False
    """True while the end of a 2xx that answers an error waits for the application, which may raise that error yet."""
    _handled_outside: BaseException | None = None
    """The exception, if any, that the code around was handling when the application was called."""
    _complete = _disconnected = _gone = _has_ended = False

    @property
    def body_length(self) -> int:
        """Bytes of the request's body, which has been read."""
        return self.body.length

    # ------------------------------------------------------------ the course of a request

    async def run(self, app: App, scope: Scope, receive: Receive, send: Send, router_mark: str) -> None:
        """Run the application once."""
        inner = _InnerScope({**scope, EXCHANGE: self})
        if _HANDLERS in inner:
            inner[_HANDLERS] = inner[_HANDLERS]  # set anew, they take note of errors
        if "extensions" in inner:
            inner["extensions"] = {n: e for n, e in (inner["extensions"] or {}).items() if n not in _REMOVED}
        self._scope, self._inner, self._router_mark = scope, inner, router_mark
        self._receive, self._send = receive, send
        self._capture = Capture(self.guard)
        self._given, self._is_audible = 0, False
        self.error = None
        self.copied = self._keeps_end = self._has_ended = False
        self._handled_outside = sys.exc_info()[1]
        try:
            await app(inner, self.receive, self.send)
            if self._keeps_end:
                self._keeps_end, self._has_ended = False, True
                await self.send({"type": _BODY})
            if self.instead is None and self.claim is not None and not self.settled:
                raise RuntimeError("The application ended without a complete response.")
        finally:
            self._is_audible = True
            if self._waiting is not None:
                self._waiting.set()
                self._waiting = None
            for name in dict.keys(inner):  # routers' notes in it are read around us
                if name not in scope and name not in (EXCHANGE, _HANDLERS):
                    scope[name] = inner[name]
            self._inner = {}  # it leads to this exchange, and would keep it until the garbage is collected

    async def begin_for(self, principal: object, around: Sequence[object] = ()) -> None:
        """Claim the key for a principal that was found by the application itself, unless it has been tried.

        Raises `AnswerInstead` when something else is answered than what the handler would.
        """
        if self.tried is None:
            around = await _outer_principals(self._scope)
        await super().begin_for(principal, around)

    # ------------------------------------------------------------ what the application receives

    async def receive(self) -> Message:
        """The body that was read, then what the server has to tell; a disconnect only when the response is over.

        The client's retry wants the response, so the handler comes to its end without the client. Only an event
        stream may have no end: then the application hears of it at once.
        """
        if self._given is not None:
            chunk = self.body.chunk(self._given)
            self._given += len(chunk)
            more = self._given < self.body.length
            if not more:
                self._given = None
            return {"type": "http.request", "body": chunk, "more_body": more}
        if not self._disconnected:
            message = await self._receive()
            if message["type"] != _DISCONNECT:
                return message
            self._disconnected = True
        if self.claim is not None and not (self.settled or self._is_audible):
            if self._waiting is None:
                self._waiting = asyncio.Event()
            await self._waiting.wait()
        return {"type": _DISCONNECT}

    def _let_hear(self) -> None:
        """From now on the application may hear that the client has left."""
        self._is_audible = True
        if self._waiting is not None:
            self._waiting.set()

    # ------------------------------------------------------------ what the application sends

    async def send(self, message: Message) -> None:
        """Take a message of the application's: it is captured, and held back until the outcome is recorded."""
        kind, capture = message["type"], self._capture
        if self.instead is not None:
            raise AnswerInstead
        if self._complete or self.claim is None:
            if kind == _BODY and not message.get("more_body", False):
                self.settled = True
            await self._forward(message)
            return
        if self.settled or self._keeps_end:
            raise RuntimeError(f"The application sent {kind} after the end of its response, or of its own work.")
        try:
            if kind == _BODY:
                if not capture.status:
                    raise RuntimeError("The application sent a body before the start of its response.")
                capture.add(message.get("body", b""))
            elif kind == _START:
                if capture.status:
                    raise RuntimeError("The application began a second response.")
                capture.begin(message["status"], as_sent(message.get("headers", ())))
            elif kind in _REMOVED:
                raise RuntimeError(f"{kind} was sent, which scope['extensions'] does not offer here.")
            else:  # interim responses and the like concern the connection, not the response
                await self._forward(message)
                return
        except Refusal as refusal:
            self._let_hear()
            await self.give_up(refusal)
        if kind == _BODY and not message.get("more_body", False):
            if self.error is not None and capture.status < 300 and not self._has_ended:
                # It answers the error, unless that is raised yet: BaseHTTPMiddleware ends a stream that broke off
                # like a whole one before.
                self._keeps_end = True
                self._let_hear()
                return
            if self.copied and self.error is None:
                answered = sys.exc_info()[1]  # a handler's response is sent while its exception is being handled
                if answered is not self._handled_outside and isinstance(answered, Exception):
                    self.error = answered
            reached = not self._router_mark or self._router_mark in self._inner or self.copied
            usual = self.error is None and reached
            origin = RETURNED if usual else ResponseOrigin(raised=self.error is not None, reached=reached)
            await self.settle(capture, self.error, origin)
            if self._waiting is not None:
                self._waiting.set()
            try:
                await self._release(capture.rest() or [b""], complete=True)
            finally:
                self._complete = True
        elif capture.endless or (kind == _BODY and capture.may_begin):
            if capture.endless:
                self._let_hear()
            await self._release(capture.leaving())

    async def _release(self, chunks: list[bytes], *, complete: bool = False) -> None:
        """Send chunks of a response, and its start before the first."""
        if not self.sent:
            capture = self._capture
            await self._forward({"type": _START, "status": capture.status, "headers": list(capture.headers)})
        for number, chunk in enumerate(chunks, 1):
            await self._forward({"type": _BODY, "body": chunk, "more_body": not complete or number < len(chunks)})

    async def _forward(self, message: Message) -> None:
        """Send to the client; that it has gone must not keep the response from being recorded."""
        if self._gone:
            return
        self.sent = self.sent or message["type"] == _START
        try:
            await self._send(message)
        except _GONE:
            if self.settled or self.claim is None or self._capture.endless:
                raise
            self._gone = True


class _InnerScope(dict[str, Any]):
    """The scope that a guarded application sees: its exchange is told which exceptions Starlette makes responses of."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name == _HANDLERS:
            value = tuple(_ExceptionHandlers(self[EXCHANGE], handlers) for handlers in value)
        super().__setitem__(name, value)

    def keys(self) -> Any:
        """The names; who asks for them may copy the scope, and routers then write in the copy."""
        self[EXCHANGE].copied = True
        return super().keys()

    def __iter__(self) -> Iterator[str]:  # also lets dict(scope) and {**scope} ask for the names
        return iter(self.keys())

    def items(self) -> Any:
        return dict(self).items()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return dict(self) | other


class _ExceptionHandlers(dict[Any, Any]):
    """Exception handlers of Starlette, which are looked for, be there one or not, while an exception is handled."""

    def __init__(self, exchange: AsgiExchange, handlers: dict[Any, Any]) -> None:
        super().__init__(handlers)
        self._exchange = exchange

    def __contains__(self, kind: object) -> bool:
        self._note()
        return super().__contains__(kind)

    def get(self, status: Any, default: Any = None) -> Any:
        self._note()
        return super().get(status, default)

    def _note(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self._exchange.error = error
