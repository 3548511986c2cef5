"""A TCP proxy in threads, between a publisher or a consumer and its broker: it can be closed, and cut at a frame."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Literal

from tests.faults.proxies.framing_kafka import led_by, size_of
from tests.ports import free_port

Moment = Literal["frame lost", "after the frame"]


class Road:
    """Leads from a port of its own to a broker.

    ``scheme``: what it speaks; it counts the frames of AMQP 0-9-1 ("amqp") and the messages of Kafka ("kafka"), of
    anything else whatever arrives at a time.
    """

    def __init__(self, host: str, port: int, scheme: str = "") -> None:
        self._target, self._scheme = (host, port), scheme
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.port = free_port()
        self.cut_at: int | None = None
        """Of the frames of both directions, from 1, the one at which the connection is cut, once."""
        self.moment: Moment = "frame lost"
        self.seen = 0
        self.open()

    def open(self) -> None:
        """Let connections through."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._run(self._accept, self._listener)

    def close(self) -> None:
        """Refuse connections, and cut those that there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for one in self._sockets:
                _cut(one)
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target) as broker:
            with self._lock:
                self._sockets |= {client, broker}
            try:
                if self._listener is not None:
                    self._pump(client, broker)
            finally:
                with self._lock:
                    self._sockets -= {client, broker}
                _cut(client)

    def _pump(self, client: socket.socket, broker: socket.socket) -> None:
        other = {client: broker, broker: client}
        pending = {client: b"", broker: b""}
        while True:
            for source in wait(list(other)):
                data = source.recv(1 << 16)
                if not data:
                    return
                pending[source] += data
                while size := self._size(pending[source]):
                    frame, pending[source] = pending[source][:size], pending[source][size:]
                    if self._passes(frame, other[source]):
                        return

    def _size(self, data: bytes) -> int:
        if self._scheme == "kafka":
            return size_of(data) or 0
        if self._scheme != "amqp":
            return len(data)
        if data.startswith(b"AMQP"):
            return 8 if len(data) >= 8 else 0
        if len(data) < 7:
            return 0
        whole = int.from_bytes(data[3:7], "big") + 8
        return whole if len(data) >= whole else 0

    def _passes(self, frame: bytes, target: socket.socket) -> bool:
        """Pass a frame on; whether the connection is to be cut."""
        with self._lock:
            self.seen += 1
            cut = self.cut_at is not None and self.seen >= self.cut_at
            if cut:
                self.cut_at = None
        if not (cut and self.moment == "frame lost"):
            target.sendall(led_by(frame, self._target[1], self.port) if self._scheme == "kafka" else frame)
        return cut


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
