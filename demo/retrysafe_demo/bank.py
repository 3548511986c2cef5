"""The mock bank: a process of its own behind HTTP, whose ledger file is the truth of the demo.

``POST /charges`` charges an account. A request with an ``Idempotency-Key`` that the bank has seen is
answered with the first charge, unless the bank was started without keys. The header ``Demo-Fault``
makes the network misbehave as scheduled; it has no say in what is charged.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from retrysafe_demo.client import FAULT, KEY, RECOGNISED
from retrysafe_demo.schedule import Fault

HANG_UP = 10.0
"""The longest the bank waits for a client that is about to give up, in seconds."""
_CHARGED = ("payment", "account", "amount", "currency")


class Mismatch(Exception):
    """A key came again with another charge."""


class Ledger:
    """An append-only file with a line of JSON per charge, on the disk before the charge is answered."""

    def __init__(self, path: Path, *, keys: bool) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._keys = keys
        self._by_key: dict[str, dict[str, str]] = {}
        self._charges = 0
        self._turn = threading.Lock()

    def charge(self, order: Mapping[str, str], key: str | None) -> tuple[dict[str, str], bool]:
        """Charge, or find the first charge under the same key; True when it was found."""
        with self._turn:
            first = self._by_key.get(key) if self._keys and key else None
            if first is not None:
                if any(first[field] != order[field] for field in _CHARGED):
                    raise Mismatch
                return first, True
            self._charges += 1
            entry = {"charge": f"ch_{self._charges:06d}", **{field: order[field] for field in _CHARGED}}
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._keys and key:
                self._by_key[key] = entry
            return entry, False


class Server(ThreadingHTTPServer):
    """Waits for every request it has begun before it ends."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        super().__init__(("127.0.0.1", 0), Desk)

    def server_bind(self) -> None:
        """Bind without asking a name server for the host's full name, as HTTPServer would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]


class Desk(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    timeout = HANG_UP

    def _bank(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_POST(self) -> None:
        """Charge, and answer unless the schedule says that the answer is lost."""
        self.close_connection = True
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.headers.get(FAULT)
        if fault == Fault.TIMEOUT.name:
            wait([self.connection], HANG_UP)  # readable means: the client has hung up
        try:
            entry, recognised = self._bank().ledger.charge(order, self.headers.get(KEY))
        except Mismatch:
            self._answer(422, {"error": "this key was used for another charge"}, recognised=True)
            return
        if fault == Fault.LOST_REPLY.name:
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault != Fault.TIMEOUT.name:
            self._answer(201, entry, recognised=recognised)

    def _answer(self, status: int, body: Mapping[str, str], *, recognised: bool) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header(RECOGNISED, "true" if recognised else "false")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until standard input ends, then finish what was begun."""
    parser = argparse.ArgumentParser(prog="retrysafe_demo.bank")
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--without-keys", action="store_true")
    options = parser.parse_args()
    server = Server(Ledger(options.ledger, keys=not options.without_keys))
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        print(server.server_port, flush=True)
        sys.stdin.buffer.read()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


if __name__ == "__main__":
    main()
