"""The HTTP integrations as users write them; a type checker reads this file, nothing runs it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from flask import Flask

from retrysafe import Boundary, Keyring, Quota
from retrysafe.http import aiohttp, fastapi, flask, grpc, starlette, wsgi
from retrysafe.http.asgi import App, IdempotencyMiddleware
from retrysafe.http.conditional import ETag, etag_of
from retrysafe.http.policy import Options

boundary = Boundary(
    "api",
    store="sqlite:///api.db",
    quota=Quota(rate="100/1m", outstanding=1000),
    encryption=Keyring({"2026": Keyring.generate()}),
)
options: Options = {"required": True, "key_policy": "uuid", "routes": {"/internal/**": "off"}}


def asgi_application(app: App) -> App:
    return IdempotencyMiddleware(app, boundary, principal=lambda scope: scope["user"], **options)


def wsgi_application(app: Any) -> Any:
    return wsgi.IdempotencyMiddleware(app, boundary, required=True, response_limit=1 << 20, principal="shared")


def router() -> APIRouter:
    guarded = fastapi.Idempotency(boundary, mismatch_status=409, principal="shared")
    return APIRouter(route_class=guarded.route_class)


def extension(app: Flask) -> flask.Idempotency:
    return flask.Idempotency(app, boundary, methods=["POST", "PUT"], principal="shared")


@starlette.policy("optional", canonical_json=True)
async def handler(request: Any) -> Any:
    return request


interceptors = [
    grpc.IdempotencyInterceptor(boundary, principal="shared"),
    grpc.AsyncIdempotencyInterceptor(boundary, key_syntax="strict", principal="shared"),
]
middleware = aiohttp.idempotency(boundary, on_5xx="store", principal="shared")
tag: ETag = etag_of(17)
