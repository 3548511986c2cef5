"""The middleware for ASGI applications: Starlette, FastAPI, Litestar and every other.

Where it stands among others: CORS, compression, rate limits and authentication around it, the application inside.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Unpack
from urllib.parse import quote

from retrysafe.boundary import Boundary
from retrysafe.claim import Claim
from retrysafe.errors import RetrysafeError, RetryTransaction
from retrysafe.http.bodies import Body
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Request, Response, lower
from retrysafe.http.policy import Options
from retrysafe.http.problems import Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HELD = "retrysafe.exchange"
"""Where the scope of a guarded request has its `Exchange`."""
_REMOVED = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""Extensions by which a response could pass around us."""


class IdempotencyMiddleware:
    """Lets the requests of an ASGI application that carry an ``Idempotency-Key`` run once.

    Arguments:
        app: the application.
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler's work, the record and the
            response commit together: the handler finds the transaction as ``current().tx``.
        principal: called with the ASGI scope, it returns whose request it is (text, an int or a UUID; also a
            coroutine): keys of two principals never meet, and a request of nobody is refused with 403.
        options: see `retrysafe.http.policy.Options`.

    Raises `ConfigurationError` for choices that cannot be kept.
    """

    def __init__(
        self,
        app: App,
        boundary: Boundary,
        *,
        principal: Callable[[Scope], Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self.guard = Guard(boundary, options, principal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or HELD in scope:
            await self.app(scope, receive, send)
            return
        request = request_of(scope)
        try:
            key = self.guard.admit(request)
            if key is None:
                await self.app(scope, receive, send)
                return
            principal = None if self.guard.principal is None else self.guard.principal(scope)
            if inspect.isawaitable(principal):
                principal = await principal
            whose = self.guard.scope(principal)
            body = await read_body(Body(request, self.guard.policy), receive)
        except Refusal as refusal:
            await send_response(send, self.guard.answer(refusal))
            return
        if body is not None:
            try:
                await Exchange(self.guard, request, key, body, receive, send).serve(self.app, scope, whose)
            finally:
                body.close()


def request_of(scope: Scope) -> Request:
    """The head of an ASGI request."""
    path = scope.get("raw_path") or quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()
    return Request(scope["method"], path, scope.get("query_string", b""), lower(scope["headers"]))


async def read_body(body: Body, receive: Receive) -> Body | None:
    """Read the whole body; None when the client left before its end, so that nothing is to be done."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            body.close()
            return None
        try:
            body.add(message.get("body", b""))
        except Refusal:
            body.close()
            raise
        more = message.get("more_body", False)
    return body


async def send_response(send: Send, response: Response) -> None:
    """Send a response of ours."""
    await send({"type": "http.response.start", "status": response.status, "headers": list(response.headers)})
    await send({"type": "http.response.body", "body": response.body or b""})


class Unsettled(Exception):
    """Ends a handler whose outcome could not be recorded; what is answered instead is decided around it."""


class Exchange:
    """One guarded request: claimed, answered by the application, recorded, and only then seen by the client."""

    def __init__(self, guard: Guard, request: Request, key: str, body: Body, receive: Receive, send: Send) -> None:
        self.guard = guard
        self.claim: Claim | None = None
        self._request = request
        self._key = key
        self._body = body
        self._receive = receive
        self._send = send
        self._reset()

    def _reset(self) -> None:
        """Begin anew, as a transaction does that the database wants again."""
        self._unread: Iterator[bytes] | None = self._body.chunks()
        self._given = 0
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._captured: bytearray | None = bytearray()
        self._held: list[Message] = []
        self._sent = False
        self._gone = False
        self._live = False
        self._settled = False
        self._over = asyncio.Event()
        self._failure: RetrysafeError | Refusal | None = None

    # ------------------------------------------------------------ the course of a request

    async def serve(self, app: App, scope: Scope, whose: str | None) -> None:
        """Claim the key, and run the application, again if its transaction must be; or answer in its place."""
        restarts = 0
        while True:
            try:
                if await self.begin(whose):
                    await self._run(app, scope)
                return
            except RetryTransaction as error:
                pause = None if self._sent or self.claim is None else self.claim.restart_pause(restarts)
                if pause is None:
                    await self._refuse(self.guard.refusal(error))
                    return
            except Refusal as refusal:
                await self._refuse(refusal)
                return
            restarts += 1
            await asyncio.sleep(pause)
            self._reset()

    async def begin(self, whose: str | None) -> bool:
        """Claim the key: whether the handler is to run, because the key is won or may be passed over."""
        self.claim = None
        claim = self.guard.claim(self._request, self._key, self._body, whose)
        try:
            await claim.__aenter__()
        except RetryTransaction:
            raise
        except RetrysafeError as error:
            if self.guard.passes(error):
                return True
            raise self.guard.refusal(error) from error
        self.claim = claim
        if claim.replayed:
            await claim.__aexit__(None, None, None)
            await send_response(self._send, self.guard.replay(claim))
            return False
        return True

    async def _run(self, app: App, scope: Scope) -> None:
        scope = {**scope, HELD: self}
        if "extensions" in scope:
            scope["extensions"] = {n: e for n, e in (scope["extensions"] or {}).items() if n not in _REMOVED}
        try:
            await app(scope, self.receive, self.send)
            if not self._settled and self._failure is None and self.claim is not None:
                raise RuntimeError("The application ended without a complete response.")
        except BaseException as error:
            if self._failure is not None:
                raise self._failure from error
            if not self._settled and self.claim is not None:
                self._settled = True
                await self._fail(self.claim, error)
            raise
        finally:
            self._over.set()
        if self._failure is not None:
            raise self._failure

    async def _fail(self, claim: Claim, error: BaseException) -> None:
        """The handler raised, or was cancelled."""
        try:
            await claim.__aexit__(type(error), error, error.__traceback__)
        except RetryTransaction:
            raise
        except RetrysafeError as failure:
            if self._sent:
                raise
            raise self.guard.refusal(failure) from failure

    async def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application; when its response has begun, only an abort can keep it from success."""
        if self._sent:
            raise refusal
        await send_response(self._send, self.guard.answer(refusal))

    # ------------------------------------------------------------ what the application receives

    async def receive(self) -> Message:
        """The body that was read, then what the server has to tell; a disconnect only when the response is over.

        The client's retry wants the response, so the handler comes to its end without the client. A response that is
        not kept is for the client alone: then the application hears of it at once.
        """
        if self._unread is not None:
            chunk = next(self._unread, b"")
            self._given += len(chunk)
            more = self._given < self._body.length
            if not more:
                self._unread = None
            return {"type": "http.request", "body": chunk, "more_body": more}
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._live and self.claim is not None:
            await self._over.wait()
        return message

    # ------------------------------------------------------------ what the application sends

    async def send(self, message: Message) -> None:
        """Take a message of the application's: it is captured, and held back until the outcome is recorded."""
        if self._failure is not None:
            raise Unsettled
        kind = message["type"]
        if self._settled or self.claim is None or kind not in ("http.response.start", "http.response.body"):
            await self._forward(message)
        elif kind == "http.response.start":
            await self._start(message)
        else:
            await self._chunk(message)

    async def _start(self, message: Message) -> None:
        self._status = message["status"]
        self._headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
        self._held.append(message)
        if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self._headers):
            await self._overflow()

    async def _chunk(self, message: Message) -> None:
        body = message.get("body", b"")
        captured = self._captured
        if captured is not None:
            captured += body
            if len(captured) > self.guard.policy.response_limit:
                await self._overflow()
        if not message.get("more_body", False):
            await self._settle()
            await self._release()
            await self._forward(message)
        elif self._live:
            await self._forward(message)
        elif body:
            if not self._holds_all and any(held.get("body") for held in self._held):
                await self._release()
            self._held.append(message)

    @property
    def _holds_all(self) -> bool:
        return self.guard.transactional or self.guard.policy.on_large == "error"

    async def _overflow(self) -> None:
        """The response will not be kept: it goes out live, but for its last message; or it must not go out at all."""
        if self._holds_all:
            await self._give_up(Refusal("response-unsupported"))
        self._captured = None
        self._live = True
        await self._release()

    async def _give_up(self, refusal: Refusal) -> None:
        """End the claim as a failure, and the application with it."""
        claim = self._required_claim()
        error = Unsettled(refusal.code)
        self._failure = refusal
        try:
            await claim.__aexit__(Unsettled, error, None)
        except RetrysafeError as failure:
            self._failure = failure if isinstance(failure, RetryTransaction) else self.guard.refusal(failure)
        raise error

    async def _settle(self) -> None:
        """Record the response before the client can see the end of it."""
        claim = self._required_claim()
        body = None if self._captured is None else bytes(self._captured)
        self.guard.judge(claim, Response(self._status, tuple(self._headers), body))
        self._settled = True
        try:
            await claim.__aexit__(None, None, None)
        except RetryTransaction as error:
            self._failure = error
        except RetrysafeError as error:
            self._failure = self.guard.refusal(error)
        if self._failure is not None:
            raise Unsettled
        self._over.set()

    async def _release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            await self._forward(message)

    async def _forward(self, message: Message) -> None:
        """Send to the client; that it has gone must not keep the response from being recorded."""
        if self._gone:
            return
        self._sent = True
        try:
            await self._send(message)
        except OSError:
            if self._settled:
                raise
            self._gone = True

    def _required_claim(self) -> Claim:
        assert self.claim is not None
        return self.claim
