"""fastapi-idempotency-key's middleware."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi_idempotency_key import IdempotencyMiddleware

from benchmarks.rivals import CANNOT, NO_PRINCIPAL
from retrysafe.conformance import apps

CAPABILITIES: dict[str, Any] = {
    "name": "fastapi-idempotency-key",
    "version": version("fastapi-idempotency-key"),
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT | NO_PRINCIPAL,
    "features": list(apps.ASGI_FEATURES),
}

app = IdempotencyMiddleware(
    apps.asgi(CAPABILITIES),
    replay_header_name="Idempotent-Replayed",
    enforce_methods=("POST", "PATCH"),
    cache_statuses=(*range(200, 400), 400, 404, 409, 410, 422),
)
