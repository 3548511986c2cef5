"""One request on its way through requests: how it is kept, sent, read and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from retrysafe.extras import NeedsExtra
from retrysafe.http.client.bodies import ends_unmarked, gather, is_read_whole, problem_code
from retrysafe.http.client.calling import Outgoing, Retries
from retrysafe.http.client.driving import ThreadWire
from retrysafe.http.client.operation import Send
from retrysafe.http.client.results import Failure, Kind, Result, ServerAnswer, certificate_refused

with NeedsExtra("requests", "requests", "urllib3"):
    import requests
    import urllib3
    from requests.adapters import BaseAdapter
    from requests.structures import CaseInsensitiveDict
    from urllib3.exceptions import ClosedPoolError, EmptyPoolError, MaxRetryError, NewConnectionError

_CHUNK = 1 << 16
_HOPELESS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
)
_UNSENT = (requests.exceptions.ConnectTimeout, requests.exceptions.ProxyError)
_REFUSED = (NewConnectionError, EmptyPoolError, ClosedPoolError)

Refreshing = Callable[[], Mapping[str, str]]


def retries_itself(allowed: Any) -> bool:
    """Rule C15: attempts of two layers multiply; ``allowed`` is a `Retry` of urllib3, or nothing."""
    counts = ("total", "connect", "read", "redirect", "status", "other")
    return any(getattr(allowed, name, None) for name in counts)


def read(request: requests.PreparedRequest, limit: int) -> bytes | None:
    """The body of a request, which is then sent as these bytes; None when it is too long to be kept."""
    body: Any = request.body
    if body is None or isinstance(body, bytes | bytearray | str):
        return b"" if body is None else body.encode() if isinstance(body, str) else bytes(body)
    found = gather(_parts(body), limit)
    if not isinstance(found, bytes):
        request.body = found
        return None
    request.body = found
    request.headers.pop("Transfer-Encoding", None)
    request.headers["Content-Length"] = str(len(found))
    return found


def _parts(body: Any) -> Iterator[bytes]:
    """Yield the parts of a file or an iterable, as requests would send them."""
    source = iter(lambda: body.read(_CHUNK), type(body.read(0))()) if hasattr(body, "read") else iter(body)
    for part in source:
        yield part.encode() if isinstance(part, str) else part


def outgoing(request: requests.PreparedRequest, body: bytes | None) -> Outgoing:
    headers = tuple((_text(name), _text(value)) for name, value in request.headers.items())
    return Outgoing(str(request.method), str(request.url), headers, body)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _shape(request: requests.PreparedRequest, step: Send) -> requests.PreparedRequest:
    """The request as one attempt sends it."""
    target = step.target
    shaped = request.copy()
    shaped.method, dropped = target.method, set(target.dropped)
    if target.moved:
        shaped.url = target.url
        dropped.add("host")
    if not target.with_body:
        shaped.body = None
    kept = {name: value for name, value in request.headers.items() if _text(name).lower() not in dropped}
    shaped.headers = CaseInsensitiveDict({**kept})
    shaped.headers.update(target.added)
    return shaped


def _within(timeout: Any, left: float) -> tuple[float, float]:
    """A timeout for connecting and one for reading, neither longer than what is left of the deadline."""
    if isinstance(timeout, tuple):
        connect, read = timeout
    elif hasattr(timeout, "connect_timeout"):
        connect, read = timeout.connect_timeout, timeout.read_timeout
    else:
        connect = read = timeout
    return _shorter(connect, left), _shorter(read, left)


def _shorter(seconds: Any, left: float) -> float:
    return min(float(seconds), left) if isinstance(seconds, int | float) else left


def _arriving(response: requests.Response) -> Iterator[bytes]:
    """A body as it comes: `iter_content` waits until a whole part of its size is there, however slowly it drips."""
    try:
        while part := response.raw.read1(_CHUNK, decode_content=True):
            yield part
    except urllib3.exceptions.DecodeError as error:
        raise requests.exceptions.ContentDecodingError(error) from error
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.exceptions.ReadTimeout(error, request=response.request) from error
    except urllib3.exceptions.SSLError as error:
        raise requests.exceptions.SSLError(error, request=response.request) from error
    except urllib3.exceptions.ProtocolError as error:
        raise requests.exceptions.ChunkedEncodingError(error, request=response.request) from error


def _failure(error: requests.RequestException) -> Failure:
    """Rules C4 to C6, by requests' exceptions, which wrap those of urllib3."""
    if isinstance(error, _HOPELESS) or certificate_refused(error):
        return Failure(Kind.HOPELESS, error)
    wrapped = error.args[0] if error.args else None
    reason = wrapped.reason if isinstance(wrapped, MaxRetryError) else wrapped
    unsent = isinstance(error, _UNSENT) or isinstance(reason, _REFUSED)
    return Failure(Kind.UNSENT if unsent else Kind.AMBIGUOUS, error)


class _Declined(requests.Response):
    """A redirect that requests does not follow either: it would take the key, and other credentials, along."""

    @property
    def is_redirect(self) -> bool:
        return False


def decline(response: requests.Response) -> requests.Response:
    """A redirect as an answer of its own."""
    response.__class__ = _Declined
    return response


class _Begun:
    """The body of a urllib3 response of which the beginning was read, and decoded, already."""

    def __init__(self, raw: Any, parts: list[bytes]) -> None:
        self._raw = raw
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read(self, amt: int | None = None, decode_content: bool | None = None, **_: Any) -> bytes:
        """Return the part that was read first, then the rest."""
        read = b"".join(self._parts)
        self._parts = [] if amt is None else [read[amt:]]
        if amt is not None:
            return read[:amt] or bytes(self._raw.read(amt, decode_content=True))
        return read + bytes(self._raw.read(decode_content=True))

    def stream(self, amt: int | None = _CHUNK, decode_content: bool | None = None) -> Iterator[bytes]:
        """Part by part, as `requests.Response.iter_content` asks for it."""
        while part := self.read(amt):
            yield part


class AdapterWire(ThreadWire):
    """The wire over an adapter."""

    def __init__(
        self,
        inner: BaseAdapter,
        request: requests.PreparedRequest,
        retries: Retries,
        refresh: Refreshing | None,
        how: Mapping[str, Any],
    ) -> None:
        self._inner = inner
        self._request = request
        self._limit = retries.policy.response_limit
        self._world = retries.environment
        self._refresh = refresh
        self._how = how

    async def send(self, step: Send, /) -> Result:
        left = max(0.001, step.end - self._world.clock())
        shaped = _shape(self._request, step)
        how = {**self._how, "timeout": _within(self._how["timeout"], left)}
        if urlsplit(str(shaped.url)).hostname is None:
            return Failure(Kind.HOPELESS, requests.exceptions.InvalidURL(shaped.url, request=shaped))
        try:
            response = self._inner.send(shaped, stream=True, **how)
            if ends_unmarked(response.raw.version, step.target.method, response.status_code, response.headers):
                response.close()
                raise requests.exceptions.ConnectionError("The head of the response was cut off.", request=shaped)
            if not is_read_whole(response.headers, keyed=step.target.keyed, limit=self._limit):
                return ServerAnswer(response.status_code, response.headers, "", response)
            if not self._read(response, step.end):
                return ServerAnswer(response.status_code, response.headers, "", response)
        except requests.exceptions.ContentDecodingError:
            raise  # it came, and cannot be read: its content is unknown
        except requests.RequestException as error:
            return _failure(error)
        code = problem_code(response.headers.get("content-type", ""), response.content)
        return ServerAnswer(response.status_code, response.headers, code, response)

    def _read(self, response: requests.Response, end: float) -> bool:
        """Read the whole body, and say so, unless it is too long to be kept: then it is the caller's to read.

        A server that drips is noticed between two parts, each of which has its own timeout.
        """
        parts: list[bytes] = []
        size = 0
        try:
            for part in _arriving(response):
                parts.append(part)
                size += len(part)
                if size > self._limit:
                    response.raw = _Begun(response.raw, parts)
                    return False
                if self._world.clock() > end:
                    raise requests.exceptions.ReadTimeout(
                        "The deadline of all attempts has passed.", request=response.request
                    )
        except BaseException:
            response.close()
            raise
        response._content = b"".join(parts)
        response._content_consumed = True
        response.raw = _Begun(response.raw, parts)
        return True

    async def discard(self, answer: ServerAnswer, /) -> None:
        answer.raw.close()

    async def refresh(self) -> Mapping[str, str] | None:
        return None if self._refresh is None else self._refresh()

    async def pause(self, seconds: float, /) -> None:
        self._world.sleep(seconds)
