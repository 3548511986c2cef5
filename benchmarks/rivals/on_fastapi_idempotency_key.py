"""fastapi-idempotency-key's middleware."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi_idempotency_key import IdempotencyMiddleware
from starlette.middleware.gzip import GZipMiddleware

from benchmarks.rivals import CANNOT, NO_PRINCIPAL
from retrysafe.conformance import apps

CAPABILITIES: dict[str, Any] = {
    "name": "fastapi-idempotency-key",
    "version": version("fastapi-idempotency-key"),
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT | NO_PRINCIPAL,
    "features": [*apps.ASGI_FEATURES, "compression"],
}

guarded = IdempotencyMiddleware(
    apps.asgi(CAPABILITIES),
    replay_header_name="Idempotent-Replayed",
    enforce_methods=("POST", "PATCH"),
    cache_statuses=(*range(200, 400), 400, 404, 409, 410, 422),
)
app = GZipMiddleware(guarded, minimum_size=1000)
