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
    return wsgi.IdempotencyMiddleware(app, boundary, required=True, response_limit=1 << 20)


def router() -> APIRouter:
    guarded = fastapi.Idempotency(boundary, mismatch_status=409)
    return APIRouter(route_class=guarded.route_class)


def extension(app: Flask) -> flask.Idempotency:
    return flask.Idempotency(app, boundary, methods=["POST", "PUT"])


@starlette.policy("optional", canonical_json=True)
async def handler(request: Any) -> Any:
    return request


interceptors = [grpc.IdempotencyInterceptor(boundary), grpc.AsyncIdempotencyInterceptor(boundary, key_syntax="strict")]
middleware = aiohttp.idempotency(boundary, on_5xx="store")
tag: ETag = etag_of(17)
