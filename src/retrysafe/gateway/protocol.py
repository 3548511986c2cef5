"""HTTP/1.1 from clients: uvicorn's protocol, made to read every message as far as it goes and no further.

A client without a key or login is not trusted with memory or time: heads, trailers, silence within a message and
clients that do not read are bounded by `Limits`.
"""

from __future__ import annotations

import json
import sys
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from retrysafe import lazy


def _most_connections() -> int:
    """Half of the files that this process may open: each connection may need another one to the upstream."""
    files = -1
    if sys.platform != "win32":
        files, _ = lazy.resource.getrlimit(lazy.resource.RLIMIT_NOFILE)
    return 10_000 if files < 0 else min(10_000, files // 2)


class Limits(NamedTuple):
    """The limits of one client.

    Attributes:
        head: bytes of a request line and header fields, and of trailers.
        fields: how many header fields.
        head_seconds: from the first byte of a head to its last one.
        body_seconds, body_rate: a client may be waited for so many seconds for its body, and one second longer for
            each ``body_rate`` bytes that came.
        reader_seconds: how long a client may take nothing of its response.
        connections: how many clients a worker serves at once.
    """

    head: int = 1 << 16
    fields: int = 128
    head_seconds: float = 20.0
    body_seconds: float = 20.0
    body_rate: int = 1024
    reader_seconds: float = 60.0
    connections: int = _most_connections()


_SLICE = 1 << 14
"""Bytes that are parsed at once, by which a limit may be overrun before that is noticed."""
_TICK = 1.0
_DETAILS = {
    HTTPStatus.BAD_REQUEST: "This is no request that can be read in one way.",
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive in time.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The head of the request is larger than this server takes.",
    HTTPStatus.SERVICE_UNAVAILABLE: "There are too many connections. Try again later.",
}


class _Refused(Exception):
    """Raised inside the parser's callbacks, from which it stops."""


class Protocol(HttpToolsProtocol):
    """Ignores offers to upgrade but for websockets, which a server may (RFC 9110, 7.8), and trailers.

    llhttp takes a request that offers an upgrade for ended with its head: its body would be the next request on the
    connection, one that the client has never made. So the head is read again without the offer. Trailers would become
    fields of a request that is already being served.

    What is over the `Limits` gets 431 or 408 and the end of its connection.
    """

    limits = Limits()
    _in_head = True
    _offer: tuple[tuple[bytes, bytes], ...] = ()
    _ended = False
    """True if nothing more is read of this connection."""
    _status = HTTPStatus.BAD_REQUEST
    _size = 0
    """Bytes of the head, or since the last part of the body."""
    _advanced = False
    """True if the parser came to the end of a line or part in the current slice."""
    _waited, _arrived = 0.0, 0
    _patience: Any = None
    """The timer of the message that is being read."""
    _reading: Any = None
    """The timer of a client that does not read."""

    # ------------------------------------------------------------ connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._unset_keepalive_if_required()
        self._no_patience()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reading is None:
            self._reading = self.loop.call_later(self.limits.reader_seconds, self.transport.abort)

    # ------------------------------------------------------------ reading

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._in_head and self._patience is None:
            self._patience = self.loop.call_later(self.limits.head_seconds, self._late)
        try:
            while data and not self._ended:
                data = self._parse_slice(data)
        except httptools.HttpParserError:
            self._refuse(self._status)

    def _parse_slice(self, data: bytes) -> bytes:
        """Have a slice of it parsed; what remains is to be parsed anew."""
        slice, rest = data[:_SLICE], data[_SLICE:]
        self._advanced = False
        try:
            self.parser.feed_data(slice)
        except httptools.HttpParserUpgrade as ended:
            if self.parser.get_method() == b"CONNECT":  # which has no body: what follows is for a tunnel
                return b""
            return self._head_without_offer() + slice[ended.args[0] :] + rest
        if not self._advanced:
            self._size += len(slice)
        if self._size > self.limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return rest

    def _head_without_offer(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % line for line in self.headers if line[0] != b"upgrade"]
        offers = [line for line in self.headers if line[0] == b"upgrade"]
        self._offer = tuple(offers) if any(b"websocket" in value.lower() for _, value in offers) else ()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does: it closes by itself
        return b"\r\n".join([*lines, b"", b""])

    def _take(self, size: int) -> None:
        """Count bytes of a head or of trailers."""
        self._advanced = True
        self._size += size
        if self._size > self.limits.head:
            self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Refused

    # ------------------------------------------------------------ the parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._size, self._advanced = True, 0, True

    def on_url(self, url: bytes) -> None:
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of the trailers; the blanks around a value are no part of it (RFC 9110, 5.5)."""
        self._take(len(name) + len(value) + 4)
        if not self._in_head:
            return
        if len(self.headers) >= self.limits.fields:
            self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise _Refused
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The application may begin. Of offers it sees one of a websocket, which waits for an answer."""
        self._in_head, self._size, self._advanced = False, 0, True
        tunnel = self.parser.get_method() == b"CONNECT"
        if self.parser.should_upgrade() and not tunnel:
            return
        self._no_patience()
        self.headers += self._offer
        self._offer = ()
        if not tunnel:
            self._take_authority()
        super().on_headers_complete()
        self._waited, self._arrived = 0.0, 0
        self._patience = self.loop.call_later(_TICK, self._tick)
        if tunnel:
            self.cycle.keep_alive = False

    def _take_authority(self) -> None:
        """The host of a request in absolute form is the one that its target names (RFC 9112, 3.2.2)."""
        scheme, absolute, rest = self.url.partition(b"://")
        if self.url.startswith((b"/", b"*")) or not absolute:
            return
        authority = rest[: min((at for at in map(rest.find, (b"/", b"?", b"#")) if at >= 0), default=len(rest))]
        if scheme.lower() not in (b"http", b"https") or b"@" in authority or not authority:
            raise _Refused
        path = rest[len(authority) :]
        self.url = path if path.startswith(b"/") else b"/" + path
        hosts = [at for at, (name, _) in enumerate(self.headers) if name == b"host"]
        if len(hosts) == 1:
            self.headers[hosts[0]] = (b"host", authority)
        elif not hosts and self.parser.get_http_version() == "1.0":
            self.headers.append((b"host", authority))

    def on_body(self, body: bytes) -> None:
        self._size, self._advanced = 0, True
        self._arrived += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        if not self.parser.should_upgrade() or self.parser.get_method() == b"CONNECT":
            self._no_patience()
            self._in_head, self._size = True, 0
            super().on_message_complete()

    # ------------------------------------------------------------ time

    def _no_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _late(self) -> None:
        """A head is not whole in time, unless it was we who did not read it."""
        if self.flow.read_paused:
            self._patience = self.loop.call_later(self.limits.head_seconds, self._late)
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _tick(self) -> None:
        """One second more, in which a body was waited for, unless the client had to wait for us."""
        cycle = self.cycle
        if not self.flow.read_paused and not (cycle.waiting_for_100_continue and not cycle.response_started):
            self._waited += _TICK
        if self._waited > self.limits.body_seconds + self._arrived / self.limits.body_rate:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._patience = self.loop.call_later(_TICK, self._tick)

    # ------------------------------------------------------------ the end of a connection

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer, and close the connection; what was asked on it before is still answered first."""
        if self._ended:
            return
        self._ended = True
        self._no_patience()
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # a request of before, which is being served
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        if not self.transport.is_closing():
            self.transport.write(_answer(status))
            self.transport.close()
            self._watch_reader()


def _answer(status: HTTPStatus) -> bytes:
    said = {"type": "about:blank", "title": status.phrase, "status": status, "detail": _DETAILS[status]}
    body = json.dumps({**said, "detail": f"Nothing was done. {_DETAILS[status]}"}).encode()
    fields = [
        b"content-type: application/problem+json",
        b"content-length: %d" % len(body),
        b"connection: close",
        *([b"retry-after: 1"] if status is HTTPStatus.SERVICE_UNAVAILABLE else []),
    ]
    return STATUS_LINE[status] + b"\r\n".join([*fields, b"", body])
