"""A server on bare sockets that honours keys, and treats each request as it is told: drops it, or its answer, or lies.

It shares no code with the client. Every request that it reads whole is in ``requests``; every effect in ``effects``.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 60.0


@dataclass
class Received:
    """A request as it came."""

    method: str
    target: str
    lines: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.lines if field.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def key(self) -> str | None:
        value = self.header("idempotency-key") or self.header("paypal-request-id")
        return None if value is None else value.strip('"')


Behaviour = Callable[["Server", socket.socket, Received], bool]
"""Answers a request, or doesn't; returns whether the connection goes on."""


@dataclass
class Server:
    """Behaviours are used up in the order in which requests come; after them every request is answered well."""

    port: int = 0
    scheme: str = "http"
    script: deque[Behaviour] = field(default_factory=deque)
    requests: list[Received] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    connections: int = 0
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/orders"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def keys(self) -> list[str | None]:
        return [request.key for request in self.requests]

    def will(self, *behaviours: Behaviour) -> None:
        self.script.extend(behaviours)

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests more have come."""
        for _ in range(requests):
            assert self.came.acquire(timeout=PATIENCE), "no request came"

    def execute(self, request: Received) -> tuple[bytes, bool]:
        """Have the effect once per key; the body of the answer, and whether it is a replay."""
        with self.lock:
            if request.key is not None and request.key in self.answers:
                return self.answers[request.key], True
            self.effects.append(request.key or "")
            body = json.dumps({"order": len(self.effects)}).encode()
            if request.key is not None:
                self.answers[request.key] = body
            return body, False

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while (request := read(stream)) is not None:
                with self.lock:
                    self.requests.append(request)
                    behaviour = self.script.popleft() if self.script else well
                self.came.release()
                if not behaviour(self, connection, request):
                    break


def read(stream: Any) -> Received | None:
    """The next request of a connection."""
    first = stream.readline()
    if not first.strip():
        return None
    method, target, _ = first.decode("latin-1").split(" ", 2)
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        lines.append((name, value.strip()))
    named = {name.lower(): value for name, value in lines}
    if named.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int(stream.readline().split(b";")[0], 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    else:
        body = stream.read(int(named.get("content-length", 0)))
    return Received(method, target, lines, body)


def response(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, length: int = -1) -> bytes:
    """A response as bytes; ``length`` is what it says of its body's length, by default the truth."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body) if length < 0 else length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


# ---------------------------------------------------------------- behaviours


def well(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and answer."""
    body, replayed = server.execute(request)
    connection.sendall(response(201, body, {"Idempotent-Replayed": "true"} if replayed else {}))
    return True


def drops_request(server: Server, connection: socket.socket, request: Received) -> bool:
    """Close without effect."""
    return False


def drops_answer(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and close without an answer."""
    server.execute(request)
    return False


def resets(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and reset the connection."""
    server.execute(request)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def cuts_body(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and send a part of the answer."""
    body, _ = server.execute(request)
    connection.sendall(response(201, body[:4], length=len(body)))
    return False


def cuts_head(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and send a part of the head."""
    server.execute(request)
    connection.sendall(b"HTTP/1.1 201 Cre")
    return False


def babbles(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and answer what is no HTTP."""
    server.execute(request)
    connection.sendall(b"\x00\x01 this is no HTTP \r\n\r\n")
    return False


def stalls(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and say nothing until the test lets it go on."""
    server.execute(request)
    server.go_on.wait(PATIENCE)
    return False


def says(
    status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, *, effect: bool = False
) -> Behaviour:
    """Answer so, with or without the effect."""

    def behaviour(server: Server, connection: socket.socket, request: Received) -> bool:
        if effect:
            server.execute(request)
        connection.sendall(response(status, body, headers))
        return True

    return behaviour


def problem(status: int, code: str, headers: Mapping[str, str] | None = None, *, effect: bool = False) -> Behaviour:
    """A problem document of the idempotency layer."""
    body = json.dumps({"type": "about:blank", "code": code, "status": status}).encode()
    return says(status, body, {"Content-Type": "application/problem+json", **(headers or {})}, effect=effect)


def delayed(behaviour: Behaviour) -> Behaviour:
    """Behave so once the test lets it go on."""

    def waits(server: Server, connection: socket.socket, request: Received) -> bool:
        server.go_on.wait(PATIENCE)
        return behaviour(server, connection, request)

    return waits


def in_chunks(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and answer in chunks."""
    body, _ = server.execute(request)
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:]))
    connection.sendall(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n")
    return True


def cuts_chunks(server: Server, connection: socket.socket, request: Received) -> bool:
    """Have the effect, and answer in chunks of which the last ones are missing."""
    body, _ = server.execute(request)
    first = b"%x\r\n%s\r\n" % (5, body[:5])
    connection.sendall(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + first)
    return False


AMBIGUOUS = (drops_request, drops_answer, resets, cuts_body, cuts_head, cuts_chunks, babbles)


@contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server on loopback, a thread for each connection."""
    server = Server(scheme="http" if tls is None else "https")
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        server.port = listening.getsockname()[1]

        def handle(connection: socket.socket) -> None:
            connection.settimeout(PATIENCE)
            try:
                server.serve(connection if tls is None else tls.wrap_socket(connection, server_side=True))
            except OSError:
                connection.close()

        opened: list[socket.socket] = []

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                server.connections += 1
                if server.connections < 0:
                    connection.close()
                    break
                opened.append(connection)
                threads.append(threading.Thread(target=handle, args=(connection,), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            server.go_on.set()
            server.connections = -(10**9)
            socket.create_connection(("127.0.0.1", server.port)).close()
            accepting.join()
            for connection in opened:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
