"""The servers that rows need, and a port that counts the round trips to one of them.

A round trip begins when a client sends after the server has answered: what is pipelined or sent in one go is one.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit, urlunsplit

VARIABLES = {
    "postgresql": "RETRYSAFE_TEST_POSTGRESQL",
    "postgresql-18": "RETRYSAFE_TEST_POSTGRESQL_18",
    "redis": "RETRYSAFE_TEST_REDIS",
    "rabbitmq": "RETRYSAFE_TEST_RABBITMQ",
    "dynamodb": "RETRYSAFE_TEST_DYNAMODB",
    "kafka": "RETRYSAFE_TEST_KAFKA",
    "nats": "RETRYSAFE_TEST_NATS",
    "mqtt": "RETRYSAFE_TEST_MQTT",
    "sqs": "RETRYSAFE_TEST_SQS",
    "pubsub": "RETRYSAFE_TEST_PUBSUB",
}
"""The variable with the address of each."""


def url(service: str) -> str:
    """The address of a service."""
    return os.environ[VARIABLES[service]]


def missing(services: tuple[str, ...]) -> list[str]:
    """Those whose addresses are not known."""
    return [VARIABLES[service] for service in services if VARIABLES[service] not in os.environ]


class Counter:
    """A port that leads to a server."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.round_trips = 0
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopping, self._stop = socket.socketpair()
        self._selector.register(self._stopping, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._asking: set[socket.socket] = set()
        """Clients that have sent since the server last did."""
        self._thread = threading.Thread(target=self._run, name="round-trip-counter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up everywhere."""
        self._stop.send(b"x")
        self._thread.join()
        for one in (*self._peers, self._listener, self._stop, self._stopping):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for ready, _ in self._selector.select():
                one = ready.fileobj
                assert isinstance(one, socket.socket)
                if one is self._stopping:
                    return
                if one is self._listener:
                    self._accept()
                elif one in self._peers:
                    self._forward(one)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        self._peers |= {client: server, server: client}
        self._clients.add(client)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, one: socket.socket) -> None:
        other = self._peers[one]
        try:
            data = one.recv(1 << 20)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in (one, other):
                self._selector.unregister(end)
                del self._peers[end]
                end.close()
        elif one not in self._clients:
            self._asking.discard(other)
        elif one not in self._asking:
            self._asking.add(one)
            self.round_trips += 1


@contextmanager
def counting(services: tuple[str, ...]) -> Iterator[list[Counter]]:
    """Lead everything that is opened meanwhile through counters."""
    with ExitStack() as stack:
        counters = []
        for service in services:
            variable = VARIABLES[service]
            before = os.environ[variable]
            parts = urlsplit(before)
            counter = Counter((parts.hostname or "", parts.port or 0))
            stack.callback(counter.close)
            user, at, _ = parts.netloc.rpartition("@")
            os.environ[variable] = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{counter.port}"))
            stack.callback(os.environ.__setitem__, variable, before)
            counters.append(counter)
        yield counters
