"""idemkit's ASGI middleware."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend
from starlette.middleware.gzip import GZipMiddleware

from benchmarks.rivals import CANNOT
from retrysafe.conformance import apps

LEASE, RESPONSE = 1, 100_000
CAPABILITIES: dict[str, Any] = {
    "name": "idemkit",
    "version": version("idemkit"),
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT,
    "features": [*apps.ASGI_FEATURES, "compression", "principals"],
    "limits": {"lease": LEASE, "response": RESPONSE},
    "choices": {
        "mismatch_status": 409,  # with its other setting the marker has another name
        "operation": "endpoint",
    },
}


def _principal(request: Any) -> str:
    fields = {name.decode().lower(): value.decode() for name, value in request.scope["headers"]}
    return fields.get("authorization", "").removeprefix("Bearer ").partition(".")[0]


guarded = IdempotencyMiddleware(
    apps.asgi(CAPABILITIES),
    backend=InMemoryBackend(),
    config=HttpConfig(
        scope=_principal,
        compat_mode="stripe",
        cacheable_status={*range(200, 400), 400, 404, 409, 410, 422},
        max_body_bytes=RESPONSE,
        lease_ttl_seconds=LEASE,
        wait_timeout_seconds=0,
    ),
)
app = GZipMiddleware(guarded, minimum_size=1000)
