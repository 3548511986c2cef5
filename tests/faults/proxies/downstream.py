"""A bank behind HTTP, which recognises a charge by its Idempotency-Key, and a client that asks it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.faults.helpers import Bank


@contextmanager
def served(bank: Bank) -> Iterator[int]:
    """The port at which a bank answers."""

    class Counter(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            receipt = bank.charge(self.headers["Idempotency-Key"]).encode()
            self.send_response(201)
            self.send_header("Content-Length", str(len(receipt)))
            self.end_headers()
            self.wfile.write(receipt)

        def log_message(self, *arguments: object) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone away is what these tests are about."""

    server = Quiet(("127.0.0.1", 0), Counter)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def charged(port: int, key: str, patience: float) -> str:
    """The bank's receipt for a charge under this key; an answer that does not come is a TimeoutError."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=patience)) as connection:
        connection.request("POST", "/charges", b'{"amount": 5}', {"Idempotency-Key": key})
        answer = connection.getresponse()
        receipt = answer.read().decode()
        assert answer.status == 201, receipt
        return receipt
