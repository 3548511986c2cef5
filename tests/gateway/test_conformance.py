"""The HTTP contract, kept by a service in Node.js that knows nothing of it, because a gateway stands before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from retrysafe.conformance import RULES, Report, Result, Verdict, check, run
from retrysafe.conformance.capabilities import Capabilities, parse
from retrysafe.gateway import Gateway, Route, Settings, TrustedHeader
from retrysafe.gateway.protocol import Protocol
from tests.conftest import require
from tests.gateway.processes import GatewayProcess, Service
from tests.http.contract.fixture import LEASE, principal
from tests.http.contract.neighbours import ALLOWED, EXPOSED
from tests.http.contract.stores import Place, opened
from tests.tables import each_row

LIMITS = {"request_memory": 65_536, "request": 200_000, "response": 50_000, "lease": LEASE, "window": 86_400}
FILE = f"""
principal = "shared"
[defaults]
effects = "{{effects}}"
lease = "{LEASE}s"
key_policy = "strong"
body_memory = 65536
body_limit = 200000
response_limit = 50000
"""
FEATURES = {"gate", "stream", "raise", "hop", "background"}
OF_THE_SERVICE = "the gateway publishes no OpenAPI document: what the service publishes is its own"
OUTSIDE = "it is outside of the gateway, and of this service: see the test with neighbours"
UNSUPPORTED = {
    "R29": OF_THE_SERVICE,
    "R26": OUTSIDE,
    "cors": OUTSIDE,
    "principals": OUTSIDE,
    "elapse": OUTSIDE,
    "store": OUTSIDE,
}
NEIGHBOURLY = ("K8", "K9", "R9", "R21", "R25", "R26", "R27")
"""Rules that ask for a proxy before the gateway, for its store to go away, or for time to pass."""


def able(effects: str, **more: Any) -> dict[str, Any]:
    """Return the fixture's own description."""
    choices = {"key_policy": "strong", "on_5xx": {"keyed": "release", "external": "unknown"}[effects]}
    told = {"features": sorted(FEATURES), "limits": LIMITS, "choices": choices, "unsupported": UNSUPPORTED}
    return {"name": "retrysafe gateway", "server": "Node.js", **told, **more}


def complaints(results: list[Result]) -> str:
    return "\n\n".join(str(result) for result in results if result.verdict is Verdict.FAILED)


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.usefixtures("node")
def test_a_service_in_another_language_keeps_every_rule_that_a_gateway_can_hold(tmp_path: Path) -> None:
    report = _checked("keyed", tmp_path)
    left_out = {"K8", "R9", "R21", "R26", "R27", "R29"}
    assert _seen(report) == {rule for rule in RULES if RULES[rule].visible and rule != "T1"} - left_out
    for result in report.of(Verdict.SKIPPED):
        assert result.reason, "what is left out has its reason"


@pytest.mark.slow
@pytest.mark.usefixtures("node")
def test_and_those_that_effects_have_a_part_in_without_its_help(tmp_path: Path) -> None:
    rules = ("R1", "R2", "R8", "R16", "R17", "D1")
    assert _seen(_checked("external", tmp_path, *rules)) == set(rules)


def _checked(effects: str, folder: Path, *only: str) -> Report:
    file = folder / "gateway.toml"
    file.write_text(FILE.format(effects=effects))
    store = f"sqlite:///{folder / 'keys.db'}"
    with (
        Service(folder / "ledger", capabilities=able(effects)) as service,
        GatewayProcess("--upstream", service.url, "--store", store, "--config", str(file)) as gateway,
    ):
        # 409 is also what an unknown outcome gets, and the runner asks such a one again for a quarter of its time
        report = run(gateway.url, only=only, timeout=5.0 if only else 10.0)
    assert report.passed, complaints(list(report.results))
    return report


def _seen(report: Report) -> set[str]:
    return {result.rule for result in report.of(Verdict.PASSED)}


# ---------------------------------------------------------------- with neighbours


@pytest.mark.slow
@pytest.mark.usefixtures("node")
@each_row("kind", ["sqlite", "postgresql", "redis"])
def test_and_the_others_with_a_proxy_before_it_and_a_store_that_comes_and_goes(kind: str, tmp_path: Path) -> None:
    if kind != "sqlite":
        require(kind)
    features = sorted(FEATURES | {"principals", "elapse", "store", "cors", "compression"})
    told = able("keyed", features=features, unsupported={"R29": OF_THE_SERVICE})
    with (
        opened(kind, False, tmp_path) as place,
        Service(tmp_path / "ledger", capabilities=told) as service,
        _with_neighbours(service, place) as address,
    ):
        capabilities: Capabilities = parse({"fixture": 1, **told})
        results = [check(rule, address, capabilities) for rule in NEIGHBOURLY]
    assert [result.verdict for result in results] == [Verdict.PASSED] * len(NEIGHBOURLY), complaints(results)


@contextmanager
def _with_neighbours(service: Service, place: Place) -> Iterator[str]:
    """The gateway behind a proxy that authenticates, compresses and speaks CORS, as an operator would put it there."""
    options = {"key_policy": "strong", "body_memory": 65_536, "body_limit": 200_000, "response_limit": 50_000}
    gateway = Gateway(
        Settings(
            upstream=service.url,
            store=place.url,
            principal=TrustedHeader("x-principal", (ip_network("127.0.0.0/8"),)),
            defaults=Route(effects="keyed", lease=f"{LEASE}s", options=options),
        )
    )
    place.boundary = gateway.guards.boundary
    around: Any = GZipMiddleware(_Proxy(gateway, place), minimum_size=1000)
    exposed = [name.strip() for name in EXPOSED.split(",")]
    allowed = [name.strip() for name in ALLOWED.split(",")]
    app = CORSMiddleware(
        around, allow_origins=["*"], allow_methods=["POST", "PATCH"], allow_headers=allowed, expose_headers=exposed
    )
    with served(app) as address:
        yield address


class _Proxy:
    """Says for whom it asks, and is where the test reaches the store."""

    def __init__(self, gateway: Gateway, place: Place) -> None:
        self._gateway = gateway
        self._controls: dict[str, Callable[[str], None]] = {
            "/fixture/elapse": lambda value: place.elapse(float(value)),
            "/fixture/store": lambda up: (place.up if up == "1" else place.down)(),  # type: ignore[misc]
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] in self._controls:
            self._controls[scope["path"]](scope["query_string"].decode().partition("=")[2])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        if scope["type"] == "http":
            found = principal(dict(scope["headers"]).get(b"authorization", b"").decode())
            whose = [] if found is None else [(b"x-principal", found.encode())]
            scope = {**scope, "headers": [*scope["headers"], *whose]}
        await self._gateway(scope, receive, send)


@contextmanager
def served(app: Any, http: Any = Protocol) -> Iterator[str]:
    """An ASGI application on uvicorn, in a thread, as the gateway is served."""
    config = uvicorn.Config(
        app,
        port=0,
        log_level="critical",
        lifespan="on",
        http=http,
        ws="none",
        proxy_headers=False,
        date_header=False,
    )
    server = uvicorn.Server(config)
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
