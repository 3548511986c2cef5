"""A proxy before any server, that cuts connections at random: requests and replies are lost, whatever the protocol."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from random import Random
from urllib.parse import urlsplit

from tests.faults.helpers import DEADLINE

SPARED = 4
"""Pieces at the beginning of each connection that pass, so that clients come to work."""


class Cutter:
    """Forwards piece by piece; ``rate`` is how often one is the last of its connection."""

    def __init__(self, server: str, chance: Random) -> None:
        parts = urlsplit(server)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._chance = chance
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.rate = 0.0
        self.cuts: Counter[str] = Counter()
        self._start(self._accept)

    def before(self, url: str) -> str:
        """The URL that leads here instead."""
        return url.replace(f":{self._upstream[1]}", f":{self._listener.getsockname()[1]}", 1)

    def close(self) -> None:
        """Cut every connection, and wait until all is closed."""
        _cut(self._listener)
        self._listener.close()
        for one in list(self._open):
            _cut(one)
        for thread in list(self._threads):
            thread.join(DEADLINE)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._open.add(one)
                self._start(self._pump, client, server, "request lost")
                self._start(self._pump, server, client, "reply lost")

    def _pump(self, source: socket.socket, target: socket.socket, loses: str) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(65536):
                passed += 1
                with self._lock:
                    cuts = passed > SPARED and self._chance.random() < self.rate
                    early = self._chance.random() < 0.5
                if not cuts or not early:
                    target.sendall(piece)
                if cuts:
                    self.cuts[loses if early else "reply lost"] += 1
                    break
        for one in (source, target):
            _cut(one)
            self._open.discard(one)
        source.close()


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
