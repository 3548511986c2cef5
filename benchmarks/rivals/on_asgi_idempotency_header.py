"""asgi-idempotency-header's middleware."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends.memory import MemoryBackend

from benchmarks.rivals import CANNOT, NO_PRINCIPAL
from retrysafe.conformance import apps

CAPABILITIES: dict[str, Any] = {
    "name": "asgi-idempotency-header",
    "version": version("asgi-idempotency-header"),
    "server": f"uvicorn {version('uvicorn')}",
    "unsupported": CANNOT | NO_PRINCIPAL,
    "features": list(apps.ASGI_FEATURES),
}

app = IdempotencyHeaderMiddleware(apps.asgi(CAPABILITIES), backend=MemoryBackend())
