"""The fixture applications, behind our middleware: they keep the fixture's contract, and it the rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, conformance
from retrysafe.conformance import RULES, Capabilities, Verdict, apps
from retrysafe.http import asgi, wsgi

LIMITS = {"lease": 1, "request_memory": 65_536, "request": 200_000, "response": 50_000}
OPTIONS: dict[str, Any] = {"body_memory": 65_536, "body_limit": 200_000, "response_limit": 50_000}
ASGI = {"name": "asgi", "features": sorted(apps.ASGI_FEATURES | {"principals"}), "limits": LIMITS}
WSGI = {"name": "wsgi", "features": sorted(apps.WSGI_FEATURES | {"principals"}), "limits": LIMITS}


def principal(authorization: str) -> str | None:
    return authorization.removeprefix("Bearer ").partition(".")[0] or None


def of_scope(scope: Any) -> str | None:
    return principal(dict(scope["headers"]).get(b"authorization", b"").decode())


def of_environ(environ: Any) -> str | None:
    return principal(environ.get("HTTP_AUTHORIZATION", ""))


@contextmanager
def on_uvicorn(boundary: Boundary) -> Iterator[str]:
    import uvicorn

    app = asgi.IdempotencyMiddleware(apps.asgi(ASGI), boundary, principal=of_scope, **OPTIONS)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    started, startup = threading.Event(), server.startup

    async def told(*arguments: Any, **named: Any) -> None:
        await startup(*arguments, **named)
        started.set()

    server.startup = told  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def on_werkzeug(boundary: Boundary) -> Iterator[str]:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    app = wsgi.IdempotencyMiddleware(apps.wsgi(WSGI), boundary, principal=of_environ, **OPTIONS)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SERVERS: dict[str, Callable[[Boundary], Any]] = {"uvicorn": on_uvicorn, "werkzeug": on_werkzeug}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", SERVERS)
def test_our_middleware_keeps_the_rules(name: str, store: str, tmp_path: Path) -> None:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/records.db"}[store]
    boundary = Boundary("fixture", store=url, lease=3)
    with SERVERS[name](boundary) as address:
        report = conformance.run(address)
    assert report.passed, "\n\n".join(map(str, report.of(Verdict.FAILED)))
    lacking = {"uvicorn": set(), "werkzeug": {"R5", "R15"}}[name]  # forbidden by WSGI, or missing in it
    skipped = {result.rule for result in report.of(Verdict.SKIPPED)}
    assert skipped == {"K11", "R9", "R21", "R26", "R27", "R29", "T1"} | lacking


@pytest.mark.slow
def test_one_rule_can_be_a_test_of_its_own() -> None:
    able = Capabilities(features=apps.ASGI_FEATURES)
    with on_uvicorn(Boundary("fixture", store="memory://")) as url:
        assert conformance.check("K1", url, able).verdict is Verdict.PASSED
        assert conformance.check("R14", url, able).verdict is Verdict.NOT_VISIBLE
        assert conformance.check("K8", url, able).verdict is Verdict.SKIPPED
    assert len(RULES) == len({*RULES})
