"""retrysafe's ASGI middleware, set up like the others: its defaults, a store in memory."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from starlette.middleware.gzip import GZipMiddleware

from benchmarks.rivals import CANNOT
from retrysafe import Boundary, __version__
from retrysafe.conformance import apps
from retrysafe.http.asgi import IdempotencyMiddleware

LEASE, MEMORY, REQUEST, RESPONSE = 1, 65_536, 1_000_000, 100_000
CAPABILITIES: dict[str, Any] = {
    "name": "retrysafe",
    "version": __version__,
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT,
    "features": [*apps.ASGI_FEATURES, "compression", "principals"],
    "limits": {"lease": LEASE, "request_memory": MEMORY, "request": REQUEST, "response": RESPONSE},
}


def _principal(scope: Any) -> str | None:
    fields = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    return fields.get("authorization", "").removeprefix("Bearer ").partition(".")[0] or None


guarded = IdempotencyMiddleware(
    apps.asgi(CAPABILITIES),
    Boundary("fixture", store="memory://", lease=LEASE),
    principal=_principal,
    body_memory=MEMORY,
    body_limit=REQUEST,
    response_limit=RESPONSE,
)
app = GZipMiddleware(guarded, minimum_size=1000)
