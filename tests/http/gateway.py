"""A client and a server for WSGI applications without sockets, as strict as PEP 3333."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults


class Served:
    """One request and its response, of which the test takes as much as it wants."""

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        key: str | None = "k",
        *,
        method: str = "POST",
        path: str = "/orders",
        body: bytes = b"{}",
        headers: Iterable[tuple[str, str]] = (),
        **environ: Any,
    ) -> None:
        self.status = 0
        self.lines: list[tuple[str, str]] = []
        self.body = b""
        self.begun = 0
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers},
            **({} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}),
            **environ,
        }
        setup_testing_defaults(environ)
        self.environ = environ
        self._iterable = app(environ, self._start_response)
        self._chunks: Iterator[bytes] = iter(self._iterable)

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        assert not self.begun or exc_info is not None
        assert isinstance(status, str)
        assert len(status) > 4
        assert type(headers) is list
        self.begun += 1
        self.status = int(status[:3])
        self.lines = [(name.lower(), value) for name, value in headers]
        return self._write

    def _write(self, data: bytes) -> None:
        self.body += data

    def take(self) -> bytes:
        """The next chunk, as the client sees it."""
        chunk = next(self._chunks)
        assert self.begun, "a chunk came before start_response"
        assert isinstance(chunk, bytes)
        self.body += chunk
        return chunk

    def end(self) -> Served:
        """All the rest; then the server closes the response."""
        try:
            while True:
                try:
                    self.take()
                except StopIteration:
                    break
        finally:
            self.close()
        return self

    def close(self) -> None:
        close = getattr(self._iterable, "close", None)
        if close is not None:
            close()

    def header(self, name: str) -> str | None:
        found = [value for field, value in self.lines if field == name]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"

    @property
    def code(self) -> str:
        assert self.header("content-type") == "application/problem+json", (self.status, self.lines, self.body)
        return str(json.loads(self.body)["code"])


def post(app: Callable[..., Iterable[bytes]], key: str | None = "k", **request: Any) -> Served:
    """One request, to its end."""
    return Served(app, key, **request).end()
