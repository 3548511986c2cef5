"""Upstreams on bare sockets, which answer what a test tells them, byte for byte; and a client as bare."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

from retrysafe.gateway import Gateway, Route, Settings
from tests.gateway.test_conformance import served

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Seen(NamedTuple):
    """A request as it was on the wire."""

    line: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field.lower() == name]


class Asked:
    """One connection of the gateway's, and the requests that come on it."""

    def __init__(self, connection: socket.socket, upstream: Upstream) -> None:
        self.connection = connection
        self._upstream = upstream
        self._file = connection.makefile("rb")

    def head(self) -> Seen | None:
        """The head of the next request; None when there is none."""
        line = self._file.readline().rstrip(b"\r\n")
        if not line:
            return None
        fields = []
        while field := self._file.readline().rstrip(b"\r\n"):
            name, _, value = field.partition(b":")
            fields.append((name, value.strip()))
        return Seen(line, fields, b"")

    def request(self) -> Seen | None:
        """The next request, whole."""
        seen = self.head()
        if seen is None:
            return None
        length = int((seen.all(b"content-length") or [b"0"])[0])
        body = self._file.read(length) if length else b""
        if seen.all(b"transfer-encoding"):
            while size := int(self._file.readline(), 16):
                body += self._file.read(size + 2)[:-2]
            self._file.readline()
        seen = seen._replace(body=body)
        self._upstream.seen.append(seen)
        return seen

    def say(self, data: bytes) -> None:
        """Answer."""
        self.connection.sendall(data)


Behaviour = Callable[[Asked], object]


class Upstream:
    """Serves every connection in a thread, by ``behaviour``; then closes it."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self._behaviour = behaviour
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection:
            self._behaviour(Asked(connection, self))
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take no more, and cut all connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def answering(*answers: bytes) -> Behaviour:
    """One answer for each request of a connection; then the connection is closed."""

    def behave(asked: Asked) -> None:
        for answer in answers:
            if asked.request() is None:
                return
            asked.say(answer)

    return behave


def always(answer: bytes) -> Behaviour:
    """The same answer to every request."""

    def behave(asked: Asked) -> None:
        while asked.request() is not None:
            asked.say(answer)

    return behave


class Front:
    """A gateway before an upstream."""

    def __init__(self, address: str, gateway: Gateway) -> None:
        self.port = int(address.rpartition(":")[2])
        self.gateway = gateway

    def ask(
        self, method: str = "POST", path: str = "/orders", *, key: str | None = None, body: Any = b"{}", **fields: str
    ) -> Answer:
        """One request on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        if key is not None:
            headers["Idempotency-Key"] = f'"{key}"'
        try:
            connection.request(method, path, body if method not in ("GET", "HEAD") else None, headers)
            response = connection.getresponse()
            return Answer(response, response.read())
        finally:
            connection.close()

    def raw(self, data: bytes) -> socket.socket:
        """A connection on which this was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection


class Answer:
    """A response, read."""

    def __init__(self, response: HTTPResponse, body: bytes) -> None:
        self.status = response.status
        self.fields = response.getheaders()
        self.body = body

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field.lower() == name]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == ["true"]

    @property
    def code(self) -> str:
        """The code of a problem of the gateway's."""
        import json

        assert self.all("content-type") == ["application/problem+json"], (self.status, self.body)
        return str(json.loads(self.body)["code"])

    @property
    def error(self) -> str:
        """The gateway's statement of its own error, or of the upstream's."""
        (found,) = self.all("proxy-status")
        return found


@contextmanager
def before(behaviour: Behaviour, **settings: Any) -> Iterator[tuple[Front, Upstream]]:
    """A gateway before an upstream that behaves so; the rest are `Settings`, and ``effects`` of all routes."""
    upstream = Upstream(behaviour)
    try:
        with in_front_of(upstream.url, **settings) as front:
            yield front, upstream
    finally:
        upstream.close()


@contextmanager
def in_front_of(url: str, **settings: Any) -> Iterator[Front]:
    """A gateway before what is at ``url``."""
    route = {name: settings.pop(name) for name in list(settings) if name in Route.__dataclass_fields__}
    settings.setdefault("defaults", Route(**route))
    settings.setdefault("store", "memory://")
    settings.setdefault("principal", "shared")
    gateway = Gateway(Settings(upstream=url, **settings))
    with served(gateway) as address:
        yield Front(address, gateway)
