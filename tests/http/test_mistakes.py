"""Mistakes of the first hour with HTTP: errors that name the fix, and warnings of what would not be noticed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette

from retrysafe import Boundary, Claim, ConfigurationError
from retrysafe.http import aiohttp, asgi, django, fastapi, flask, grpc, litestar, starlette, wsgi
from retrysafe.http.fastapi import Idempotency, IdempotencyMiddleware
from retrysafe.http.worker_count import count_workers
from tests.tables import each_row

KEYED = {"Idempotency-Key": '"key"'}
INTEGRATIONS: dict[str, Callable[..., Any]] = {
    "asgi": lambda given, **named: asgi.IdempotencyMiddleware(Starlette(), given, **named),
    "starlette": lambda given, **named: starlette.idempotent(given, **named)(lambda request: None),
    "wsgi": lambda given, **named: wsgi.IdempotencyMiddleware(lambda environ, start: [], given, **named),
    "fastapi": fastapi.Idempotency,
    "flask": lambda given, **named: flask.Idempotency(Flask("shop"), given, **named),
    "litestar": litestar.IdempotencyPlugin,
    "aiohttp": aiohttp.idempotency,
    "aiohttp handler": aiohttp.idempotent,
    "django": django.idempotent,
    "grpc": grpc.IdempotencyInterceptor,
}


@each_row("integration", INTEGRATIONS)
def test_a_sessionmaker_in_place_of_a_boundary(integration: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sessionmaker was given in place of a Boundary. Write boundary = "):
        INTEGRATIONS[integration](sessionmaker(), principal="shared")


@each_row(
    ("integration", "named"),
    [(name, named) for name in INTEGRATIONS for named in ({}, *({"principal": x} for x in ("everybody", 7)))],
)
def test_r32_a_guard_without_a_principal_is_refused_with_both_lines_to_paste(
    integration: str, named: dict[str, Any]
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no client gets the response to another(.|\n)*principal=…(.|\n)*principal=\"shared\""
    ):
        INTEGRATIONS[integration](boundary(), **named)


def boundary(name: str = "shop", **options: Any) -> Boundary:
    return Boundary(name, store="memory://", observers=(), **options)


def shop(idempotency: Idempotency, router: APIRouter, runs: list[str]) -> FastAPI:
    @router.post("/orders")
    async def create(claim: Claim | None = Depends(idempotency.claim)) -> int:
        runs.append("order")
        return len(runs)

    @router.get("/orders")
    async def orders(claim: Claim | None = Depends(idempotency.claim)) -> int:
        return len(runs)

    app = FastAPI()
    app.include_router(router)
    return app


def test_a_router_without_the_route_class_is_refused() -> None:
    runs: list[str] = []
    client = TestClient(shop(Idempotency(boundary(), principal="shared"), APIRouter(), runs))
    with pytest.raises(ConfigurationError, match=r"APIRouter\(route_class=idempotency.route_class\)"):
        client.post("/orders", headers=KEYED)
    assert (runs, client.get("/orders").json()) == ([], 0)


@each_row("headers", [{}, KEYED], ids=["keyless", "keyed"])
def test_a_router_behind_the_middleware_needs_no_route_class(headers: dict[str, str]) -> None:
    runs: list[str] = []
    guarded = boundary()
    app = shop(Idempotency(guarded, principal="shared"), APIRouter(), runs)
    app.add_middleware(IdempotencyMiddleware, boundary=guarded, principal="shared")
    assert TestClient(app).post("/orders", headers=headers).json() == 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@each_row(
    ("line", "concurrency", "expected"),
    [
        ("/bin/uvicorn app:app --workers 4", "", 4),
        ("/bin/uvicorn app:app --workers=4", "", 4),
        ("/lib/uvicorn/__main__.py app:app --workers 2", "", 2),
        ("/bin/gunicorn -w 3 app:app", "", 3),
        ("/bin/gunicorn -w3 app:app", "", 3),
        ("/bin/gunicorn app:app", "5", 5),
        ("/bin/uvicorn app:app", "", 1),
        ("/bin/uvicorn app:app --workers", "", 1),
        ("/home/uvicorn/shop/bin/celery -w 4", "9", 1),
        ("manage.py runserver", "4", 1),
        ("", "", 1),
    ],
)
def test_the_workers_of_a_command_line(line: str, concurrency: str, expected: int) -> None:
    assert count_workers(line.split(), {"WEB_CONCURRENCY": concurrency}) == expected


def test_a_memory_store_behind_several_workers_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/uvicorn", "shop:app", "--workers", "4"])
    Idempotency(boundary(), principal="shared")
    [text] = warnings(caplog)
    assert "4 worker processes" in text
    assert "store='sqlite:///shop.db'" in text


def test_a_shared_store_behind_several_workers_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/uvicorn", "shop:app", "--workers", "4"])
    Idempotency(Boundary("shop", store=f"sqlite:///{tmp_path / 'shop.db'}", observers=()), principal="shared")
    assert warnings(caplog) == []
