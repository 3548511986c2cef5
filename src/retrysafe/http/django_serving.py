"""Django's requests and responses as the protocol sees them, and a guarded request between the two."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from http.cookies import Morsel
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http.asgi import request_of as request_of_scope
from retrysafe.http.bodies import Body, frame
from retrysafe.http.chunks import ChunkedExchange, StreamedResponse
from retrysafe.http.guard import Guard, ResponseOrigin
from retrysafe.http.messages import Request, Response, latin
from retrysafe.http.nested import EXCHANGE, OUTER_PRINCIPALS, is_inside
from retrysafe.http.principals import find
from retrysafe.http.problems import Refusal
from retrysafe.http.without_loop import run_without_loop
from retrysafe.http.wsgi import Input
from retrysafe.http.wsgi import request_of as request_of_environ

with NeedsExtra("django", "django", "asgiref"):
    from asgiref.sync import async_to_sync, sync_to_async
    from django.conf import settings
    from django.db import connections
    from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
    from django.http.response import HttpResponseBase
    from django.shortcuts import resolve_url
    from django.urls import NoReverseMatch

CLAIM = "idempotency"
"""The attribute of a request with its claim; None when it passed without one."""
GUARDED = "_retrysafe_guarded"
"""The attribute of views, and of classes of views, that have their own guard."""
_GUARDED_REQUEST = "_retrysafe_guarded_request"
_WRITES_NOTHING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK")
View = Callable[[], HttpResponseBase]


def of_user(request: Any) -> Any:
    """The primary key of the request's user; None without one. Takes Django's requests and REST framework's."""
    if not hasattr(request, "user"):
        raise ConfigurationError(
            "principal='user': the request has no user. Put AuthenticationMiddleware before IdempotencyMiddleware in "
            "MIDDLEWARE, or give principal= a function that takes the request."
        )
    user = request.user
    return getattr(user, "pk", None) if user is not None and user.is_authenticated else None


def find_guarded_request(request: HttpRequest) -> GuardedRequest | None:
    """The guarded request that a request of Django is part of."""
    found = request.__dict__.get(_GUARDED_REQUEST)
    return found if isinstance(found, GuardedRequest) else None


def login_pages() -> Iterator[str]:
    """The page to which Django sends those who have to log in."""
    with suppress(NoReverseMatch):
        yield resolve_url(settings.LOGIN_URL)


# ------------------------------------------------------------ what is known of a view


def guards_itself(view: object, method: str) -> bool:
    """Tell whether a view, the class it is made of, or that class's method, is guarded on its own."""
    cls = _class_of(view)
    return any(getattr(part, GUARDED, False) for part in (view, cls, getattr(cls, method.lower(), None)))


def _class_of(view: Any) -> Any:
    return getattr(view, "cls", None) or getattr(view, "view_class", None)


# ------------------------------------------------------------ one guarded request


class Again(HttpResponse):  # type: ignore[misc] # Django ships no types
    """Stands for the unseen response to an error after which the transaction is run again."""


class GuardedRequest:
    """One request that is guarded: its key is known, and its body is kept while it is read.

    Attributes:
        caught: what the view raised, although a response was made of it.
        uncaught: what nothing made a response of but Django itself, with its page for status 500.
        of_view: whether the view itself is guarded, or the middleware around it.
        reached: whether the view may have been called.
        thread: where the claim is made; the connections of its transaction are this thread's.
        savepoint: the statement that makes that of ``ATOMIC_REQUESTS`` inside the claim's transaction; empty while it
            is awaited, None if none is.
    """

    def __init__(self, guard: Guard, request: HttpRequest, key: str, *, of_view: bool) -> None:
        head = request_of(request)
        self.of_view = self.reached = of_view
        self._wrote = self._undone = False
        self.savepoint: str | None = None
        body = Body(head, guard.policy)
        self.caught: Exception | None = None
        self.uncaught: Exception | None = None
        self.thread = threading.get_ident()
        self.exchange = ChunkedExchange(guard, head, key, body, deferred=True)
        self._request = request
        self._incoming = RequestBody(request, body)
        self._given: HttpResponseBase | None = None
        request.__dict__[_GUARDED_REQUEST] = self
        _close_with(request, body)

    @property
    def restarts(self) -> int:
        """The number of times that the request has been run again."""
        return self.exchange.restarts

    def begin(self, asking: Any) -> None:
        """Read the rest of the body and claim the key, for the principal of the request ``asking``.

        Raises `retrysafe.http.exchange.AnswerInstead`.
        """
        if not self.restarts:
            refuse_open_transactions()
            try:
                self._incoming.finish()
            except Refusal as refusal:
                self.exchange.preempt(refusal)
        around = [find(principal, self._request) for principal in self._request.__dict__.get(OUTER_PRINCIPALS, ())]
        run_without_loop(self.exchange.begin_for(find(self.exchange.guard.principal, asking), around))
        setattr(self._request, CLAIM, self.exchange.claim)
        self._wrote = self._undone = False

    def serve(self, view: View) -> HttpResponseBase:
        """Answer by the view, which calls `begin` before its work, or in its place."""
        try:
            answer = self.exchange.serve(lambda: self._run(view))
        except Exception as error:
            made = self._find_made(error)
            if made is not None:
                return made
            raise
        if isinstance(answer, Response):
            return response_of(answer)
        assert self._given is not None
        return _outgoing(self._given, answer.chunks, on_a_loop=is_on_a_loop(self._request))

    def _find_made(self, error: Exception) -> HttpResponseBase | None:
        """The response that Django has made of an error."""
        made = self._given
        return made if error is self.uncaught and not isinstance(made, Again) else None

    def _begin_anew(self) -> None:
        self.caught = self.uncaught = self._given = None
        if self.restarts:
            self._incoming.rewind()

    def _run(self, view: View) -> StreamedResponse:
        self._begin_anew()
        with self._noting_writes():
            given = self._given = render(view())
        if self.uncaught is not None and given.status_code >= 500:
            raise self.uncaught
        if self._undone and self.caught is None and given.status_code < 400:
            connections[str(self.exchange.guard.entry.alias)].set_rollback(True)  # it speaks of rows that are not there
        raised = self._is_marked() and (self.caught is not None or given.status_code >= 400)
        origin = ResponseOrigin(raised, self.reached, self._wrote)
        return _stream(given, self.caught, origin, on_a_loop=is_on_a_loop(self._request))

    def _is_marked(self) -> bool:
        """Tell whether the claim's transaction is to be rolled back, as by an exception under ATOMIC_REQUESTS."""
        guard = self.exchange.guard
        return guard.transactional and bool(connections[str(guard.entry.alias)].needs_rollback)

    def _noting_writes(self) -> AbstractContextManager[None]:
        """Take note of what the view writes on the boundary's alias, by its transaction."""
        guard = self.exchange.guard
        if not guard.transactional:
            return nullcontext()
        noting: AbstractContextManager[None] = connections[str(guard.entry.alias)].execute_wrapper(self._note)
        return noting

    def _note(self, execute: Callable[..., Any], sql: Any, *statement: Any) -> Any:
        begun = str(sql).lstrip("( \n\t").upper()
        if not begun.startswith(_WRITES_NOTHING):
            self._wrote = True
        elif self.savepoint == "" and begun.startswith("SAVEPOINT"):
            self.savepoint = begun
        elif self.savepoint and begun == f"ROLLBACK TO {self.savepoint}":
            self._undone = True
            raised = sys.exc_info()[1]  # the end of the block knows it, also if a middleware is asked before ours
            if self.caught is None and isinstance(raised, Exception):
                self.caught = raised
        elif self.savepoint and begun == f"RELEASE {self.savepoint}" and self._is_aborted():
            self._undone = True  # as Django's COMMIT of its own block would, without a word
            execute(str(sql).replace("RELEASE", "ROLLBACK TO", 1), *statement)
        return execute(sql, *statement)

    def _is_aborted(self) -> bool:
        """Tell whether PostgreSQL takes no more in the claim's transaction, of which Django need not know."""
        connection = connections[str(self.exchange.guard.entry.alias)]
        driver = connection.connection
        return connection.vendor == "postgresql" and str(driver.info.transaction_status.name) == "INERROR"


def admit(guard: Guard, request: HttpRequest, *, of_view: bool = True) -> GuardedRequest | None:
    """The guarded request that a request is to be; None for one that passes. Raises `Refusal`."""
    head = request_of(request)
    if getattr(request, CLAIM, None) is not None:
        _refuse_unseen(request, of_view=of_view)
    held = _find_outer(request)
    if is_inside(guard, head, held):
        request.__dict__[CLAIM] = None if held is None else held.claim
        return None
    request.__dict__[CLAIM] = None
    key = guard.admit(head)
    return None if key is None else GuardedRequest(guard, request, key, of_view=of_view)


def _find_outer(request: HttpRequest) -> Any:
    """The exchange that the request is part of: of a guard within Django, or of one around it."""
    guarded = find_guarded_request(request)
    if guarded is not None:
        return guarded.exchange
    return getattr(request, "scope", request.META).get(EXCHANGE)


def leave_to_inner(guard: Guard, request: HttpRequest) -> None:
    """Hand the principal of ``guard`` on to the view, which guards itself."""
    if guard.principal is not None:
        request.__dict__[OUTER_PRINCIPALS] = [*request.__dict__.get(OUTER_PRINCIPALS, ()), guard.principal]


def _refuse_unseen(request: HttpRequest, *, of_view: bool) -> None:
    """Raise `ConfigurationError` in a view that guards itself, but whose middleware has claimed in its place."""
    outer = find_guarded_request(request)
    if of_view and outer is not None and not outer.of_view:
        raise ConfigurationError(
            f"The view of {request.path} is guarded itself, but IdempotencyMiddleware has not seen that, and has "
            "claimed before the view could say whose request it is: the decorators above it must use functools.wraps, "
            "and a middleware that sets request.urlconf must stand outside IdempotencyMiddleware."
        )


def serve(
    guard: Guard, request: HttpRequest, view: View, passing: View | None = None, *, of_view: bool = True
) -> HttpResponseBase:
    """Answer a request by ``view`` under a claim, or in its place; one that is not guarded by ``passing``."""
    try:
        guarded = admit(guard, request, of_view=of_view)
    except Refusal as refusal:
        return response_of(guard.answer(refusal))
    if guarded is None:
        return (passing or view)()

    def begin() -> HttpResponseBase:
        guarded.begin(request)
        return view()

    return guarded.serve(begin)


def refuse_open_transactions() -> None:
    """Raise `ConfigurationError` inside an atomic block of this thread: it would end after the record, perhaps not so.

    The block of a `TestCase` is none of the application's.
    """
    for connection in connections.all(initialized_only=True):
        if any(not block._from_testcase for block in connection.atomic_blocks):
            raise ConfigurationError(
                f"The request is in an atomic block on {connection.alias!r}, which would end after its idempotency "
                "record. If it is that of ATOMIC_REQUESTS: decorate the whole view, a class-based one by "
                "method_decorator(…, name='dispatch'), or add @transaction.non_atomic_requests. If a middleware "
                "opened it, put IdempotencyMiddleware around that one."
            )


# ------------------------------------------------------------ requests


def is_on_a_loop(request: Any) -> bool:
    """Tell whether the request came by ASGI."""
    return hasattr(request, "scope")


def request_of(request: Any) -> Request:
    """The head of a Django request: path, query and headers as they were on the wire, where the server tells."""
    method, routed = request.method or "", (request.path_info, request.path)
    match = request.resolver_match
    route = "" if match is None else f"/{match.route}"
    if is_on_a_loop(request):
        asked = request_of_scope(request.scope)
        return Request(method, asked.path, request.META["QUERY_STRING"].encode(), asked.headers, routed, route)
    asked = request_of_environ({"PATH_INFO": request.path, **request.META, "REQUEST_METHOD": method})
    asked.routed += routed
    asked.route = route
    return asked


def _close_with(request: HttpRequest, body: Body) -> None:
    """Let the body go when the request is closed."""
    close = getattr(request, "close", None)

    def both() -> None:
        body.close()
        if close is not None:
            close()

    request.__dict__["close"] = both


class RequestBody:
    """The body of a Django request: kept in a `Body` by its first reader, and then read from there."""

    def __init__(self, request: Any, body: Body) -> None:
        self._request = request
        self._body = body
        self._input: Input | None = None
        self._parsed = False
        if hasattr(request, "_body"):
            body.add(request._body)
        elif not getattr(request, "_read_started", False):
            self._input = self._keep_input()
            request._stream = self._input
        elif hasattr(request, "_post"):
            self._parsed = True
            for chunk in _form(request):
                body.add(chunk)
        else:
            raise ConfigurationError(
                "The body of the request was read from its stream before it could be hashed: put IdempotencyMiddleware "
                "around the middleware that reads it, or let that read request.body."
            )

    def _keep_input(self) -> Input:
        request = self._request
        environ = {
            name: request.META[name] for name in ("CONTENT_LENGTH", "HTTP_TRANSFER_ENCODING") if name in request.META
        }
        environ["wsgi.input"] = getattr(request, "_stream", None) or io.BytesIO()
        environ["wsgi.input_terminated"] = is_on_a_loop(request)
        return Input(environ, self._body)

    def finish(self) -> None:
        """Read the rest; from now on the request is read from its beginning. Raises `Refusal`."""
        if self._input is not None:
            self._input.finish()
            if not hasattr(self._request, "_body"):
                self._reopen()  # read parts can be read again, and Django reads a plain file faster

    def rewind(self) -> None:
        """Let the request be read and parsed once more."""
        request = self._request
        for file in _files_of(request):
            if self._parsed:
                file.seek(0)
            else:
                file.close()
        if not self._parsed:
            for name in ("_post", "_files", "_body"):
                request.__dict__.pop(name, None)
            request._upload_handlers = []
            self._reopen()

    def _reopen(self) -> None:
        self._request._stream = self._body.open()
        self._request._read_started = False


def _files_of(request: HttpRequest) -> list[Any]:
    """The uploaded files that have been parsed."""
    parsed = getattr(request, "_files", None)
    return [] if parsed is None else [file for _, files in parsed.lists() for file in files]


def _form(request: HttpRequest) -> Iterator[bytes]:
    """A form that was parsed, and whose bytes are gone, as it counts for a fingerprint."""
    for name, values in request.POST.lists():
        for value in values:
            yield frame(name, value)
    for name, files in request.FILES.lists():
        for file in files:
            yield frame(name, file.name, file.content_type, file.size)
            yield from file.chunks()
            file.seek(0)


# ------------------------------------------------------------ the view's response


def render(response: Any) -> Any:
    """A view's response with its template rendered. Raises `TypeError` for what is none."""
    if asyncio.iscoroutine(response):
        response.close()
        raise ConfigurationError(
            "The guarded view is async and was not recognised as such: put the decorator on the async function itself, "
            "and for an async class-based view on its async def post, or around as_view(), not on dispatch."
        )
    if not isinstance(response, HttpResponseBase):
        raise TypeError(f"The view returned {response!r} instead of an HttpResponse.")
    unrendered: Any = response
    return response if getattr(response, "is_rendered", True) else unrendered.render()


def _stream(response: Any, error: Exception | None, origin: ResponseOrigin, *, on_a_loop: bool) -> StreamedResponse:
    headers = latin((str(name), str(value)) for name, value in response.items())
    cookies = latin(("Set-Cookie", morsel.output(header="").strip()) for morsel in response.cookies.values())
    content = Content(response, on_a_loop=on_a_loop)
    return StreamedResponse(response.status_code, headers + cookies, content, error, not response.streaming, origin)


class Content:
    """The body of a response; to close it does what the response would do when it is closed, once."""

    def __init__(self, response: Any, *, on_a_loop: bool) -> None:
        self._response = response
        self._on_a_loop = on_a_loop
        self._closers: list[Callable[[], Any]] = []
        if response.streaming:
            self._take_closers()

    def __iter__(self) -> Iterator[bytes]:
        response = self._response
        if not response.streaming:
            return iter([response.content])
        if response.is_async and self._on_a_loop:
            return self._step(response.streaming_content)
        return iter(response)

    def _step(self, chunks: AsyncIterator[bytes]) -> Iterator[bytes]:
        """The chunks of an async iterator, one by one, each taken on the server's loop."""
        closing = getattr(chunks, "aclose", None)
        if closing is not None:
            self._closers.append(async_to_sync(closing))
        take = async_to_sync(_take_next)
        while (chunk := take(chunks)) is not None:
            yield chunk

    def _take_closers(self) -> None:
        self._closers += self._response._resource_closers
        self._response._resource_closers = []

    def close(self) -> None:
        """Close what the response holds."""
        self._take_closers()
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()


async def _take_next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def _outgoing(response: HttpResponseBase, chunks: Iterable[bytes], *, on_a_loop: bool) -> HttpResponseBase:
    """The view's response, sent from ``chunks`` where it is a stream; they are closed with it."""
    if isinstance(response, StreamingHttpResponse):
        stepped = on_a_loop and response.is_async  # a sync stream stays one: middlewares treat the two differently
        response.streaming_content = _from_thread(iter(chunks)) if stepped else iter(chunks)
        response._resource_closers = [chunks.close]  # type: ignore[attr-defined]
    return response


async def _from_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    take = sync_to_async(partial(next, chunks, None))
    while (chunk := await take()) is not None:
        yield chunk


# ------------------------------------------------------------ responses of ours


def response_of(response: Response) -> HttpResponse:
    """A response of ours, or a stored one, as Django sends it."""
    made = HttpResponse(response.body or b"", status=response.status)
    del made["Content-Type"]
    for name, value in response.headers:
        text = value.decode("latin-1")
        if name == b"set-cookie":
            dict.__setitem__(made.cookies, f"{len(made.cookies)}", Verbatim(text))
        else:
            title = name.decode("latin-1").title()
            made[title] = f"{made[title]}, {text}" if title in made else text  # RFC 9110 section 5.3
    return made


class Verbatim(Morsel[str]):
    """A stored Set-Cookie line, sent as it was."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = line

    def output(self, attrs: Any = None, header: str = "Set-Cookie:") -> str:
        """The line."""
        return f"{header} {self._line}"

    __str__ = output
