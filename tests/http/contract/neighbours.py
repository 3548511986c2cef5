"""CORS and compression, where a framework brings none of its own: the layers that stand around ours."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping
from typing import Any

ALLOWED = "authorization, content-type, fixture-script, idempotency-key"
EXPOSED = "idempotent-replayed, idempotency-replay, retry-after"
CORS: Mapping[str, str] = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED}
PREFLIGHT: Mapping[str, str] = {
    "Access-Control-Allow-Headers": ALLOWED,
    "Access-Control-Allow-Methods": "GET, POST, PATCH",
}


def cors_and_gzip(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Both, around a WSGI application."""

    def around(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "OPTIONS":
            start_response("204 No Content", [*CORS.items(), *PREFLIGHT.items()])
            return []
        begun: list[Any] = []

        def begin(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            begun[:] = [status, headers]
            return start_response(status, [*headers, *CORS.items()], exc_info)  # type: ignore[no-any-return]

        if "gzip" not in environ.get("HTTP_ACCEPT_ENCODING", ""):
            return app(environ, begin)

        def hold(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            begun[:] = [status, headers]
            return lambda data: None

        chunks = app(environ, hold)
        try:
            packed = gzip.compress(b"".join(chunks))
        finally:
            getattr(chunks, "close", lambda: None)()
        status, headers = begun
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        length = [("Content-Encoding", "gzip"), ("Content-Length", str(len(packed)))]
        start_response(status, [*kept, *length, *CORS.items()])
        return [packed]

    return around


class DjangoCors:
    """CORS as a middleware of Django's."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        from django.http import HttpResponse

        response = (
            HttpResponse(status=204, headers=PREFLIGHT) if request.method == "OPTIONS" else self.get_response(request)
        )
        for name, value in CORS.items():
            response.headers[name] = value
        return response
