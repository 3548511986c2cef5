"""The middleware for WSGI applications (PEP 3333): Flask, Django, Bottle, Pyramid and every other.

Where it stands among others: CORS, compression, rate limits and authentication around it, the application inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol, Unpack
from urllib.parse import quote
from wsgiref.util import FileWrapper

from retrysafe.boundary import Boundary
from retrysafe.http import nested
from retrysafe.http.bodies import CHUNK, Body, Reader
from retrysafe.http.chunks import ChunkedExchange, StreamedResponse
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Request, Response, latin, length_of, path_of
from retrysafe.http.nested import EXCHANGE
from retrysafe.http.policy import Options
from retrysafe.http.principals import UNSAID, Principal, find
from retrysafe.http.problems import Refusal

Environ = dict[str, Any]
HeaderList = list[tuple[str, str]]


class StartResponse(Protocol):
    """The server's function by which an application begins its response."""

    def __call__(self, status: str, headers: HeaderList, exc_info: Any = ..., /) -> Callable[[bytes], object]:
        """Take the status line and the field lines; what is returned writes."""
        ...


App = Callable[[Environ, StartResponse], Iterable[bytes]]

_PATH = "/:@!$&'()*+,;=~"
"""The characters that RFC 3986 allows unquoted in a path, besides letters, digits and ``-._``."""


class IdempotencyMiddleware:
    """Lets the requests of a WSGI application that carry an ``Idempotency-Key`` run once.

    Arguments:
        app: the application.
        boundary: where the guarantee holds. With ``effects="transactional"`` the handler's work, the record and the
            response commit together: the handler finds the transaction as ``current().tx``.
        principal: called with the environ, it returns whose request it is (text, an int or a UUID): keys of two
            principals never meet, and a request without a principal is refused with 403.
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        try:
            exchange = self._admit(environ)
        except Refusal as refusal:
            return respond(self.guard.answer(refusal), start_response)
        if exchange is None:
            return self.app(environ, start_response)
        try:
            return self._serve(exchange, environ, start_response)
        except BaseException:
            exchange.body.close()
            raise

    def _admit(self, environ: Environ) -> ChunkedExchange | None:
        """Read the request, its body last; None when it passes untouched. Raises `Refusal`."""
        guard, request = self.guard, request_of(environ)
        if nested.is_inside(guard, request, environ.get(EXCHANGE)):
            return None
        key = guard.admit(request)
        if key is None:
            return None
        scope = guard.scope(find(guard.principal, environ))
        body = Body(request, guard.policy)
        try:
            Input(environ, body).finish()
        except BaseException:
            body.close()
            raise
        return ChunkedExchange(guard, request, key, body, scope)

    def _serve(self, exchange: ChunkedExchange, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        run = ApplicationRun(0)

        def handler() -> StreamedResponse:
            nonlocal run
            run = ApplicationRun(self.guard.policy.response_limit)
            inside = {
                "wsgi.input": exchange.body.open(),
                "wsgi.input_terminated": True,
                "wsgi.file_wrapper": FileWrapper,  # the server's would take the file past us
                EXCHANGE: exchange,
            }
            return run.begin(self.app, environ | inside)

        answer = exchange.serve(handler)
        if isinstance(answer, Response):
            exchange.body.close()
            return respond(answer, start_response)
        outgoing = OutgoingResponse(answer.chunks, exchange.body)
        try:
            start_response(run.status, run.headers)
        except BaseException:
            outgoing.close()
            raise
        return outgoing


# ------------------------------------------------------------ requests


def request_of(environ: Environ) -> Request:
    """The head of a WSGI request.

    Path and query are those on the wire if the server tells them (gunicorn and werkzeug as ``RAW_URI``, uWSGI, mod_wsgi
    and waitress as ``REQUEST_URI``). If not, the path is made from the decoded one, in which ``/a%2Fb`` is ``/a/b``.
    """
    headers = [
        (name[5:].replace("_", "-"), value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH")
    ]
    headers += [
        (name.replace("_", "-"), environ[name]) for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)
    ]
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    inside, prefix = environ.get("PATH_INFO", ""), environ.get("SCRIPT_NAME", "")
    routed = tuple(path.encode("latin-1").decode("utf-8", "replace") for path in (inside, prefix + inside))
    return Request(environ["REQUEST_METHOD"], _path(environ), query, latin(headers), routed)


def _path(environ: Environ) -> bytes:
    target: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not target:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        return quote(path.encode("latin-1"), safe=_PATH).encode()
    return path_of(target).encode("latin-1")


class Input(Reader):
    """The body of a request, kept in a `Body` while it is read from the server; what was read can be read again."""

    def __init__(self, environ: Environ, body: Body) -> None:
        super().__init__(body)
        self._source = environ["wsgi.input"]
        self._left = _length(environ)

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer, from the server if need be."""
        if self._at == self.body.length:
            self._fetch(len(buffer))
        return super().readinto(buffer)

    def finish(self) -> None:
        """Read the rest. Raises `Refusal` for a body that is too large, or that ends before its end."""
        while self._fetch(CHUNK):
            pass

    def _fetch(self, size: int) -> bool:
        """Read some more; False at the end."""
        wanted = size if self._left is None else min(size, self._left)
        chunk = self._source.read(wanted) if wanted else b""
        if not chunk and self._left:
            raise Refusal("request-invalid", f"Nothing was done. The body ended {self._left} bytes before its end.")
        if self._left is not None:
            self._left -= len(chunk)
        self.body.add(chunk)
        return bool(chunk)


def _length(environ: Environ) -> int | None:
    """Return the number of bytes that may be read; None: until the end. Raises `Refusal` where that cannot be known."""
    declared = environ.get("CONTENT_LENGTH")
    if declared:
        length = length_of(declared)
        if length is None:
            raise Refusal("request-invalid", "Nothing was done. The Content-Length is not a number.")
        return length
    if environ.get("wsgi.input_terminated"):
        return None
    if "HTTP_TRANSFER_ENCODING" in environ:
        raise Refusal(
            "request-invalid",
            "Nothing was done. This server passes no body on without its length: send a Content-Length.",
        )
    return 0


# ------------------------------------------------------------ responses


def respond(response: Response, start_response: StartResponse) -> Iterable[bytes]:
    """Send a response of ours."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers]
    start_response(status_line(response.status), headers)
    return [response.body or b""]


def status_line(status: int) -> str:
    """The status with its reason, as PEP 3333 wants it."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


class ApplicationRun:
    """One run of the application: what it said by ``start_response``, what it wrote, and what it returned.

    Headers count as sent from the first byte of the body, as they do with every server: until then ``start_response``
    with ``exc_info`` replaces them, afterwards it raises the error.
    """

    def __init__(self, memory: int) -> None:
        self.status = ""
        self.headers: HeaderList = []
        self._sent = False
        self._returned: Iterable[bytes] | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._first = b""
        self._memory = max(1, memory)
        self._written: SpooledTemporaryFile[bytes] | None = None
        self._over = False

    def begin(self, app: App, environ: Environ) -> StreamedResponse:
        """Call the application, and take from it what it must give before its status is final."""
        try:
            self._returned = app(environ, self.start_response)
            self._over = True
            self._chunks = iter(self._returned)
            while not self._sent and (chunk := next(self._chunks, None)) is not None:
                self._first = bytes(chunk)
                self._sent = bool(chunk)
            self._sent = True
            if not self.status:
                raise RuntimeError("The application gave a body before it called start_response.")
            return StreamedResponse(int(self.status.split(" ", 1)[0]), latin(self.headers), self)
        except BaseException:
            self.close()
            raise

    def start_response(self, status: str, headers: HeaderList, exc_info: Any = None, /) -> Callable[[bytes], object]:
        """Take the status line and the field lines."""
        if exc_info is not None:
            try:
                if self._sent:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # a circle through the traceback
        elif self.status:
            raise RuntimeError("start_response was called again, without exc_info.")
        self.status, self.headers = status, list(headers)
        return self.write

    def write(self, data: bytes) -> None:
        """Take data; it leaves when the application has returned."""
        if self._over:
            raise RuntimeError("write() was called after the application had returned; yield the data instead.")
        if self._written is None:
            self._written = SpooledTemporaryFile(self._memory)  # noqa: SIM115 - closed by close()
        self._written.write(data)
        self._sent = self._sent or bool(data)

    def __iter__(self) -> Iterator[bytes]:
        if self._written is not None:
            self._written.seek(0)
            while chunk := self._written.read(CHUNK):
                yield chunk
        yield self._first
        yield from self._chunks

    def close(self) -> None:
        """Close what the application returned, once."""
        returned, self._returned = self._returned, None
        if self._written is not None:
            self._written.close()
        close = getattr(returned, "close", None)
        if close is not None:
            close()


class OutgoingResponse:
    """A response on its way; when it is closed the request is over too, with what is open for it."""

    def __init__(self, chunks: Iterable[bytes], resources: Body | ExitStack) -> None:
        self._chunks = chunks
        self._resources = resources

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def close(self) -> None:
        """Close both."""
        try:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()
        finally:
            self._resources.close()
