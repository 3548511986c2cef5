"""A guarded WSGI application for real servers, and the servers: `python -m tests.http.apps.wsgi_shop SERVER FD`."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from retrysafe import Boundary, wait
from retrysafe.http.wsgi import IdempotencyMiddleware

PLACE = Path(os.environ.get("SHOP_PLACE", "."))
"""The place of the ledger, and of the pipes on which a request and its test wait for each other."""


def tell(pipe: str, text: str) -> None:
    """Let the test go on, when it listens."""
    with (PLACE / pipe).open("w") as opened:
        opened.write(text)


def hear(pipe: str) -> str:
    """Go on when the test says so."""
    return (PLACE / pipe).read_text()


def record(line: str) -> int:
    """Write the effect down, and say how many there are."""
    with (PLACE / "ledger").open("a") as ledger:
        ledger.write(f"{line}\n")
    return len((PLACE / "ledger").read_text().splitlines())


def order(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    number = record("order")
    body = environ["wsgi.input"].read()
    start_response("201 Created", [("Content-Type", "text/plain"), ("X-One", "a"), ("X-One", "b")])
    return [b"order ", str(number).encode(), b" of ", body]


def hang(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Tell who works, and never come to an end the first time."""
    first = record("hang") == 1
    if first:
        tell("working", str(os.getpid()))
        signal.pause()
    start_response("201 Created", [])
    return [b"taken over"]


def stream(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Send the first chunks, and more when the client has gone."""
    record("stream")
    start_response("200 OK", [("Content-Length", str(6 * 10_000))])

    def chunks() -> Iterator[bytes]:
        yield b"a" * 10_000
        yield b"b" * 10_000
        hear("gone")
        for letter in (b"c", b"d", b"e", b"f"):
            yield letter * 10_000

    return chunks()


def file(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    record("file")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return environ["wsgi.file_wrapper"](Path(__file__).open("rb"))  # type: ignore[no-any-return]


ROUTES: dict[str, Callable[..., Iterable[bytes]]] = {"hang": hang, "stream": stream, "file": file}


def shop(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    return ROUTES.get(environ["PATH_INFO"].split("/")[1], order)(environ, start_response)


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    global _guarded
    if _guarded is None:
        boundary = Boundary("shop", store=os.environ["SHOP_STORE"], lease="5s", concurrency=wait("60s"))
        _guarded = IdempotencyMiddleware(shop, boundary, principal="shared")
    return _guarded(environ, start_response)


_guarded: IdempotencyMiddleware | None = None


def main(server: str, descriptor: int) -> None:
    """Serve on the listening socket that was handed over."""
    listening = socket.socket(fileno=descriptor)
    host, port = listening.getsockname()
    if server == "werkzeug":
        from werkzeug.serving import make_server

        make_server(host, port, application, threaded=True, fd=descriptor).serve_forever()
    elif server == "waitress":
        from waitress import serve

        serve(application, sockets=[listening], threads=8, _quiet=True)
    else:
        command = ["-w", "2", "-b", f"fd://{descriptor}", "--log-level", "warning", "--no-control-socket"]
        kind = ["-k", "sync"] if server == "gunicorn-sync" else ["-k", "gthread", "--threads", "4"]
        command += [*kind, "tests.http.apps.wsgi_shop:application"]
        os.execv(sys.executable, [sys.executable, "-m", "gunicorn", *command])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
