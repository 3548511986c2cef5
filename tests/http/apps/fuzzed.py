"""An API with a description, for fuzzers: every effect is a line in a ledger under the key that the claim derives."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse

from retrysafe import Boundary, current
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe_demo import api, lanes
from retrysafe_demo.client import Bank
from tests.http.apps.ledger import INSERT

Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=300)]


class Order(BaseModel):
    """The order of a customer."""

    amount: Annotated[int, Field(ge=-(2**31), lt=2**31)]
    note: Annotated[str | None, Field(max_length=1000)] = None


def application(ledger: str) -> FastAPI:
    """The application alone; without a transaction around it, it writes into the file ``ledger``."""
    app = FastAPI()

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        """FastAPI's own answer repeats the body, and fails with 500 when that is bytes which are no UTF-8."""
        return JSONResponse({"detail": [problem["msg"] for problem in error.errors()]}, 422)

    def write() -> str:
        line, claim = secrets.token_hex(8), current()
        file = claim.tx
        if file is None:
            with sqlite3.connect(ledger, isolation_level=None) as file:
                file.execute(INSERT.format("?, ?"), (claim.key_for("ledger"), line))
        else:
            file.execute(INSERT.format("?, ?"), (claim.key_for("ledger"), line))
        return line

    @app.post("/orders", status_code=201)
    async def order(order: Order, key: Key = None) -> dict[str, Any]:
        if order.amount < 0:
            raise HTTPException(409, "nothing is sold for less than nothing")
        return {"line": write(), **order.model_dump()}

    @app.patch("/orders/{number}")
    async def change(number: int, order: Order, key: Key = None) -> dict[str, Any]:
        return {"line": write(), "number": number, **order.model_dump()}

    @app.post("/exports")
    async def export(order: Order, key: Key = None) -> StreamingResponse:
        line = write()

        def lines() -> Iterator[str]:
            for number in range(abs(order.amount) % 50):
                yield f"{line} {number}\n"

        return StreamingResponse(lines(), media_type="text/plain")

    return app


def guarded(store: str, ledger: str) -> IdempotencyMiddleware:
    """The application behind a boundary: transactional where the store is the ledger's file."""
    own = store.startswith("sqlite")
    boundary = Boundary("fuzzed", store=store, effects="transactional" if own else "keyed", observers=())
    return IdempotencyMiddleware(application(ledger), boundary, required=True, body_limit=100_000, principal="shared")


def demo(store: str, bank: int) -> Starlette:
    """The demo's guarded API before a bank that knows no keys, so that every charge counts."""
    charge = lanes.guarded(Bank(bank), bank_has_keys=False)
    return api.retrysafe(charge, lanes.boundary(store, run="", bank_has_keys=False))
