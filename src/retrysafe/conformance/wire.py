"""A small HTTP/1.1 client on bare sockets: what goes out is byte for byte what a case says, however malformed.

No library is used on purpose: each of them would merge, order, encode or refuse what a case must send, and
hide what a case must see (RFC 9112).
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from retrysafe.errors import ConfigurationError
from retrysafe.http.messages import length_of

Fields = tuple[tuple[str, str], ...]
_MOST_HEAD = 65_536
"""Bytes of one line, and of all lines of a head or of trailers."""
_MOST_BODY = 64 << 20
"""Bytes of a body, and more than any rule asks for."""
_WITHOUT_BODY = (204, 304)


class Silent(Exception):
    """The server sent nothing, or did not go on, within the time that it was given."""


class ServerAddress(NamedTuple):
    """The address of a server, and the prefix of all its paths."""

    scheme: str
    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


_PORTS = {"http": 80, "https": 443}


def address(url: str) -> ServerAddress:
    """Read an ``http`` or ``https`` URL; `ConfigurationError` if it is none."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}") from error
    if found.scheme not in _PORTS or not found.hostname:
        raise ConfigurationError(f"{url!r} is not the URL of an HTTP server: write http://HOST:PORT or https://HOST")
    if found.query or found.fragment or found.username:
        raise ConfigurationError(f"{url!r}: a user, a query or a fragment can't be part of a server's address")
    return ServerAddress(found.scheme, found.hostname, port or _PORTS[found.scheme], found.path.rstrip("/"))


class WireRequest(NamedTuple):
    """A request as it goes over the wire. Field values are latin-1."""

    method: str
    target: str
    fields: Fields = ()
    body: bytes = b""

    def encode(self, host: str) -> bytes:
        """The bytes, with Host and, where there is a body or the method expects one, Content-Length."""
        lines = [("Host", host), *self.fields]
        if self.body or self.method not in ("GET", "HEAD", "OPTIONS", "TRACE"):
            lines.append(("Content-Length", str(len(self.body))))
        return head(self.method, self.target, lines) + self.body


def head(method: str, target: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """A request line and field lines, nothing added."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1")


class WireReply(NamedTuple):
    """A response as it came: field lines in their order, none merged; ``whole`` unless the body broke off."""

    status: int
    fields: Fields
    body: bytes
    whole: bool = True

    def all(self, name: str) -> list[str]:
        return [value for found, value in self.fields if found.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """The value of a field: its lines joined as RFC 9110 §5.3 allows; None if there are none."""
        values = self.all(name)
        return ", ".join(values) if values else None

    def tokens(self, name: str) -> set[str]:
        """The members of a comma-separated field, in lower case."""
        return {token.strip().lower() for token in (self.one(name) or "").split(",") if token.strip()}


class WireConnection:
    """One connection to a server; requests follow each other on it.

    One step, a request that is sent or a response that is read to its end, takes ``timeout`` seconds at most, however
    the server spreads its bytes: then it raises `Silent`. `ConnectionError` is raised when the server broke off before
    a response began, or sends more than any rule asks for.
    """

    def __init__(self, to: ServerAddress, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._end = clock() + timeout
        self._socket = socket.create_connection((to.host, to.port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if to.scheme == "https":
            self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=to.host)
        self._read = bytearray()
        self._lines = 0
        self._pieces: Iterator[bytes] = iter(())
        self._whole = True
        self.host = to.authority

    def send(self, data: bytes) -> None:
        self._begin_step()
        try:
            self._socket.settimeout(self._time_left())
            self._socket.sendall(data)
        except TimeoutError as error:
            raise Silent("the server stopped reading") from error

    def ask(self, request: WireRequest) -> WireReply:
        """Send a request and read its whole response.

        A server may answer and close before it has read everything (RFC 9112 §9.5); the answer is still read.
        """
        with suppress(ConnectionError):
            self.send(request.encode(self.host))
        return self.receive(request.method)

    def receive(self, method: str = "POST") -> WireReply:
        begun = self.begin(method)
        body = bytearray()
        for piece in self._pieces:
            body += piece
            if len(body) > _MOST_BODY:
                raise ConnectionError(f"the body has more than {_MOST_BODY} bytes")
        return begun._replace(body=bytes(body), whole=self._whole)

    def begin(self, method: str = "POST") -> WireReply:
        """Read the head of a response, past interim ones (1xx); the body is then in `pieces`."""
        self._begin_step()
        status, fields = self._head()
        while 100 <= status < 200:
            status, fields = self._head()
        response = WireReply(status, fields, b"")
        self._whole = True
        self._pieces = self._frame(response, method)
        return response

    def pieces(self) -> Iterator[bytes]:
        """The rest of the body, piece by piece as it arrives; a step of its own."""
        self._begin_step()
        return self._pieces

    @property
    def whole(self) -> bool:
        """True if what was read of the body did not break off."""
        return self._whole

    def close(self) -> None:
        self._socket.close()

    def abort(self) -> None:
        """Close it with a reset, as a client that dies."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _begin_step(self) -> None:
        """From now on the server has all its time again."""
        self._end, self._lines = self._clock() + self._timeout, 0

    def _time_left(self) -> float:
        """Seconds that the server still has for this step; raises `TimeoutError` if there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _more(self) -> bool:
        try:
            self._socket.settimeout(self._time_left())
            data = self._socket.recv(65_536)
        except TimeoutError as error:
            raise Silent("no answer came") from error
        self._read += data
        return bool(data)

    def _line(self) -> bytes:
        looked = 0
        while (end := self._read.find(b"\n", looked)) < 0:
            looked = len(self._read)
            if self._lines + looked > _MOST_HEAD:
                raise ConnectionError(f"a head has more than {_MOST_HEAD} bytes")
            if not self._more():
                raise ConnectionError("the connection broke off")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        self._lines += end + 1
        if self._lines > _MOST_HEAD:
            raise ConnectionError(f"a head has more than {_MOST_HEAD} bytes")
        return line.rstrip(b"\r")

    def _head(self) -> tuple[int, Fields]:
        line = self._line().split(b" ", 2)
        if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or len(line[1]) != 3 or not line[1].isdigit():
            raise ConnectionError(f"this is not HTTP/1.1: {line!r}")
        fields: list[tuple[str, str]] = []
        while text := self._line():
            name, _, value = text.decode("latin-1").partition(":")
            fields.append((name, value.strip(" \t")))
        return int(line[1]), tuple(fields)

    def _frame(self, response: WireReply, method: str) -> Iterator[bytes]:
        """The body, by the rules of RFC 9112 §6.3."""
        if method == "HEAD" or response.status in _WITHOUT_BODY:
            return iter(())
        if "chunked" in response.tokens("transfer-encoding"):
            return self._chunks()
        length = length_of(next(iter(response.all("content-length")), ""))
        return self._to_the_end() if length is None else self._read_counted(length)

    def _read_counted(self, left: int) -> Iterator[bytes]:
        while left:
            if not self._read and not self._receive():
                return
            piece = bytes(self._read[:left])
            del self._read[:left]
            left -= len(piece)
            self._lines = 0
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        try:
            while size := int(self._line().split(b";")[0], 16):
                if size > _MOST_BODY:
                    raise ValueError(size)
                piece = b"".join(self._read_counted(size))
                if not self._whole:
                    return
                self._line()
                yield piece
            while self._line():
                pass
        except (ConnectionError, ValueError):
            self._whole = False

    def _to_the_end(self) -> Iterator[bytes]:
        while self._read or self._receive(expected=True):
            piece = bytes(self._read)
            self._read.clear()
            yield piece

    def _receive(self, *, expected: bool = False) -> bool:
        """Read on; the end of the connection is the end of the body, whether ``expected`` here or too early."""
        try:
            more = self._more()
        except ConnectionError:
            more = expected = False
        if not more:
            self._whole = expected
        return more
