"""A real HTTP proxy before DynamoDB Local: it loses requests and replies, turns away, keeps silent, lies about time."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import urlsplit

Fate = Literal["through", "request lost", "reply lost", "turned away", "silent", "gateway timeout"]
Fates = Callable[[str, dict[str, Any]], Fate]
"""Decides about one call by its operation and arguments."""


class HttpProxy:
    """Forwards call after call; ``fates`` says what becomes of each."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.fates: Fates = lambda operation, arguments: "through"
        self.calls: list[str] = []
        self.date: Callable[[str], str | None] = lambda date: date
        """The new Date of every answer; None leaves it out."""
        self.code = "ThrottlingException"
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, table: str, more: str = "") -> str:
        """The store's URL through this proxy."""
        return f"dynamodb://{table}?region=us-east-1&endpoint={self.endpoint}{more}"

    def once(self, operation: str, fate: Fate, skip: int = 0) -> None:
        """Let one call of that operation have that fate, after ``skip`` others of it."""
        left = [skip]

        def fates(called: str, arguments: dict[str, Any]) -> Fate:
            if called != operation:
                return "through"
            left[0] -= 1
            return fate if left[0] == -1 else "through"

        self.fates = fates

    def shift(self, seconds: float) -> None:
        """Let every answer tell another time."""
        self.date = lambda date: formatdate(parsedate_to_datetime(date).timestamp() + seconds, usegmt=True)

    def close(self) -> None:
        """Stop answering."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    block_on_close = False
    proxy: HttpProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        proxy.calls.append(operation)
        fate = proxy.fates(operation, json.loads(body))
        if fate == "request lost":
            self.close_connection = True
        elif fate == "silent":
            proxy.closing.wait(60)
            self.close_connection = True
        elif fate == "turned away":
            text = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{proxy.code}", "message": "Slow down."})
            status = 500 if proxy.code == "InternalServerError" else 400
            self._answer(status, {"Date": formatdate(usegmt=True)}, text.encode())
        elif fate == "gateway timeout":
            self._forward(body, answered=False)
            self._answer(504, {"Date": formatdate(usegmt=True)}, b"<html>Gateway Time-out</html>")
            self.close_connection = True
        else:
            self._forward(body, answered=fate == "through")

    def _forward(self, body: bytes, *, answered: bool) -> None:
        upstream = http.client.HTTPConnection(*self.server.proxy.upstream, timeout=60)
        try:
            upstream.request("POST", self.path, body, dict(self.headers))
            response = upstream.getresponse()
            content, headers, status = response.read(), dict(response.headers), response.status
        finally:
            upstream.close()
        if not answered:
            self.close_connection = True
            return  # carried out, and nobody is told
        headers["Date"] = self.server.proxy.date(headers["Date"])
        self._answer(status, headers, content)

    def _answer(self, status: int, headers: dict[str, Any], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if value is not None and name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""
