"""asgi-idempotency-header's middleware."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends.memory import MemoryBackend
from starlette.middleware.gzip import GZipMiddleware

from benchmarks.rivals import CANNOT, NO_PRINCIPAL
from retrysafe.conformance import apps

CAPABILITIES: dict[str, Any] = {
    "name": "asgi-idempotency-header",
    "version": version("asgi-idempotency-header"),
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT | NO_PRINCIPAL,
    "features": [*apps.ASGI_FEATURES, "compression"],
}

guarded = IdempotencyHeaderMiddleware(apps.asgi(CAPABILITIES), backend=MemoryBackend())
app = GZipMiddleware(guarded, minimum_size=1000)
