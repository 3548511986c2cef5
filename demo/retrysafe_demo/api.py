"""The API of the demo, in its three lanes: an application that takes payments, bare or with a layer around it.

To see the guarded one alone, start a bank, which prints its port, and then the API, with any number of workers::

    python -m retrysafe_demo.bank --ledger ledger.jsonl
    RETRYSAFE_DEMO_BANK=PORT uvicorn --factory retrysafe_demo.api:create --workers 4

``GET /openapi.json`` describes it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retrysafe import Boundary
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe_demo import lanes
from retrysafe_demo.client import Bank, Refused, Unanswered
from retrysafe_demo.lanes import Charge
from retrysafe_demo.payments import COLUMNS, InputError, Payment, checked
from retrysafe_demo.processes import DemoError

STORE, BANK, BANK_HAS_KEYS = "RETRYSAFE_DEMO_STORE", "RETRYSAFE_DEMO_BANK", "RETRYSAFE_DEMO_BANK_HAS_KEYS"
"""Variables of `create`: a store's URL, the bank's port on this machine, and "no" for a bank without keys."""
DEFAULT_STORE = "sqlite:///retrysafe-demo.db"
LONGEST_TEXT = 200


class Unreadable(Exception):
    """The body is no JSON."""


def create() -> Starlette:
    """The guarded API, set up by variables of the environment; raises `DemoError` when the bank's is missing."""
    port = os.environ.get(BANK, "")
    if not port.isdigit():
        raise DemoError(f"{BANK} must be the port of a bank: start python -m retrysafe_demo.bank --ledger FILE")
    keys = os.environ.get(BANK_HAS_KEYS, "yes") != "no"
    bank, store = Bank(int(port)), os.environ.get(STORE, DEFAULT_STORE)
    return retrysafe(lanes.guarded(bank, bank_has_keys=keys), lanes.boundary(store, run="", bank_has_keys=keys))


# ------------------------------------------------------------ the lanes


def unsafe(charge: Charge) -> Starlette:
    """Charge whenever asked."""
    return _application(charge)


def naive(charge: Charge, keys_file: str) -> Starlette:
    """Look for the key, charge, note the key: the middleware that is copied from project to project."""
    table = lanes.keys_table(keys_file)

    async def once(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Response:
        key = request.headers.get("Idempotency-Key")
        found = table.execute("SELECT status, body FROM keys WHERE key = ?", [key]).fetchone()
        if found:
            return Response(found[1], found[0], {"Idempotent-Replayed": "true"}, "application/json")
        response = await call_next(request)
        body = b"".join([chunk async for chunk in response.body_iterator])
        if response.status_code < 500:
            row = [key, response.status_code, body]
            table.execute("INSERT OR IGNORE INTO keys (key, status, body) VALUES (?, ?, ?)", row)
        return Response(body, response.status_code, dict(response.headers))

    return _application(charge, Middleware(BaseHTTPMiddleware, dispatch=once), closing=table)


def retrysafe(charge: Charge, payments: Boundary) -> Starlette:
    """Guard the requests with a boundary."""
    layer = Middleware(IdempotencyMiddleware, boundary=payments, required=True, principal="shared")
    return _application(charge, layer, closing=payments)


# ------------------------------------------------------------ the application


def _application(
    charge: Charge, *layers: Middleware, closing: sqlite3.Connection | Boundary | None = None
) -> Starlette:
    async def pay(request: Request) -> Response:
        payment = payment_of(await request.body())
        receipt = await run_in_threadpool(charge, payment)
        return JSONResponse({"charge": receipt.charge, **payment.as_json()}, 201)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if isinstance(closing, Boundary):
            await closing.aclose()
        elif closing is not None:
            closing.close()

    return Starlette(
        routes=[Route("/payments", pay, methods=["POST"]), Route("/openapi.json", describe)],
        middleware=layers,
        exception_handlers={
            Unreadable: _answer(400, "The body is no JSON"),
            InputError: _answer(422, "This is no payment"),
            Unanswered: _answer(504, "The bank did not answer"),
            Refused: _answer(502, "The bank refused the charge"),
        },
        lifespan=lifespan,
    )


def payment_of(body: bytes) -> Payment:
    """The payment in the body of a request; raises `Unreadable` or `InputError`."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(plain, dict):
        raise InputError("a payment is an object")
    for column in COLUMNS:
        text = plain.get(column)
        if not isinstance(text, str) or len(text) > LONGEST_TEXT or not text.isprintable():
            raise InputError(f"{column} must be a text of at most {LONGEST_TEXT} printable characters")
    return checked(plain, "a payment")


def _answer(status: int, title: str) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        problem = {"title": title, "status": status, "detail": str(error)}
        return JSONResponse(problem, status, media_type="application/problem+json")

    return answer


async def describe(request: Request) -> Response:
    """The OpenAPI document."""
    document = files("retrysafe_demo").joinpath("openapi.json").read_bytes()
    return Response(document, media_type="application/json")
