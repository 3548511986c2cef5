"""The endpoints for operators and orchestrators: liveness, readiness, metrics."""

from __future__ import annotations

import asyncio
import json

from retrysafe import runtime
from retrysafe.claims.observers import logger
from retrysafe.errors import RetrysafeError
from retrysafe.gateway.guards import Guards
from retrysafe.gateway.metrics import CONTENT_TYPE, Metrics
from retrysafe.http.asgi import Send, send_response
from retrysafe.http.messages import Response

_PATIENCE = 2.0


class Admin:
    """``/health/live``, ``/health/ready`` and ``/metrics``."""

    def __init__(self, guards: Guards, metrics: Metrics) -> None:
        self._guards = guards
        self._metrics = metrics

    async def __call__(self, path: str, send: Send) -> None:
        if path == "/health/live":
            response = _json(200, {"status": "live", "worker": runtime.pid})
        elif path == "/health/ready":
            response = await self._ready()
        elif path == "/metrics":
            response = Response(200, ((b"content-type", CONTENT_TYPE.encode()),), self._metrics.text())
        else:
            response = _json(404, {"status": "there is /health/live, /health/ready and /metrics"})
        length = (b"content-length", str(len(response.body or b"")).encode())
        await send_response(
            send, response._replace(headers=(*response.headers, length, (b"cache-control", b"no-store")))
        )

    async def _ready(self) -> Response:
        """Ready is who can claim keys; an upstream that is away makes no gateway better than another."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._guards.ask_store()
        except (RetrysafeError, OSError) as error:
            logger().warning("Not ready: the store does not answer: %r", error)
            return _json(503, {"status": "not ready", "store": type(error).__name__})
        return _json(200, {"status": "ready", "store": "answers"})


def _json(status: int, value: object) -> Response:
    return Response(status, ((b"content-type", b"application/json"),), json.dumps(value).encode())
