"""The console behind other interfaces than ASGI: a WSGI application, and a view of Django's.

Each request is answered on an event loop of its own, in the thread that it came in: no loop outlives a request, so that
servers may fork, and the application's own authentication is asked in the application's own thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.console.access import Principal
from retrysafe.console.app import MOST_BYTES, PRINCIPAL, Console
from retrysafe.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_NOBODY = Principal("")


class _Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def wsgi(console: Console) -> Callable[[Mapping[str, Any], StartResponse], Iterable[bytes]]:
    """The console as a WSGI application; its ``access`` is called with the environ.

    Mount it under a path with Werkzeug's ``DispatcherMiddleware`` or what else sets ``SCRIPT_NAME``.
    """

    def application(environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        size = environ.get("CONTENT_LENGTH") or "0"
        body = environ["wsgi.input"].read(min(int(size), MOST_BYTES + 1)) if size.isdigit() else b""
        scope = _scope(
            method=environ["REQUEST_METHOD"],
            scheme=environ["wsgi.url_scheme"],
            root=_utf8(environ.get("SCRIPT_NAME", "")),
            path=_utf8(environ.get("PATH_INFO", "")),
            query=environ.get("QUERY_STRING", "").encode("latin-1"),
            headers=_headers(environ),
            client=environ.get("REMOTE_ADDR", ""),
        )
        answer = _answer(console, scope, body, environ)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", answer.headers)
        return [answer.body]

    return application


def django_view(console: Console) -> Callable[..., Any]:
    """The console as a view of Django's; its ``access`` is called with the ``HttpRequest``.

    Route both forms to it: ``path("ops/", view)`` and ``path("ops/<path:path>", view)``.
    """
    from django.http import HttpResponse

    def view(request: Any, path: str = "") -> Any:
        whole: str = request.path
        meta = request.META
        scope = _scope(
            method=request.method,
            scheme=request.scheme,
            root=whole[: len(whole) - len(path)].rstrip("/"),
            path=f"/{path}",
            query=meta.get("QUERY_STRING", "").encode("latin-1"),
            headers=_headers(meta),
            client=meta.get("REMOTE_ADDR", ""),
        )
        answer = _answer(console, scope, request.body, request)
        response = HttpResponse(answer.body, status=answer.status)
        for name, value in answer.headers:
            if name == "set-cookie":
                response.cookies.load(value)
            else:
                response[name] = value
        return response

    view.csrf_exempt = True  # type: ignore[attr-defined]  # the console's forms have tokens of their own
    return view


def _answer(console: Console, scope: MutableMapping[str, Any], body: bytes, asked: Any) -> _Answer:
    """The console's answer; the application in front says who asks before any loop runs."""
    found = console.access(asked)
    if inspect.iscoroutine(found):
        found.close()
    if not isinstance(found, Principal | None):
        raise ConfigurationError("access= is a coroutine function: behind WSGI and Django, give a plain one.")
    scope[PRINCIPAL] = found or _NOBODY
    return asyncio.run(_run(console, scope, body))


async def _run(console: Console, scope: MutableMapping[str, Any], body: bytes) -> _Answer:
    sent: list[Mapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await console(scope, receive, send)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return _Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def _scope(
    *, method: str, scheme: str, root: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], client: str
) -> MutableMapping[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": scheme,
        "root_path": root,
        "path": f"{root}{path}",
        "raw_path": f"{root}{path}".encode(),
        "query_string": query,
        "headers": headers,
        "client": (client, 0) if client else None,
        "server": None,
    }


def _headers(environ: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    named = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    named |= {name: environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)}
    return [
        (name.replace("_", "-").lower().encode("latin-1"), str(value).encode("latin-1", "replace"))
        for name, value in named.items()
    ]


def _utf8(text: str) -> str:
    """A path of a WSGI environ, whose characters are the bytes that came."""
    return text.encode("latin-1").decode(errors="replace")
