"""An application whose effects can be counted: every order is a line in a ledger, in the database or at a bank.

Behind a transactional boundary the line is written in the claim's transaction; else a bank outside is asked for it,
with the key that the claim derives.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retrysafe import Boundary, current
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.protocol.records import Effects

TABLE = "CREATE TABLE ledger (order_id TEXT NOT NULL, line TEXT NOT NULL)"
INSERT = "INSERT INTO ledger (order_id, line) VALUES ({})"
Place = Callable[[str], Awaitable[str]]
"""Places an order, and returns its line in the ledger."""


def guarded(name: str, store: str, bank: tuple[str, int] | None = None) -> IdempotencyMiddleware:
    """The application behind a boundary; without a ``bank`` it is transactional."""
    effects: Effects = "transactional" if bank is None else "keyed"
    place = in_transaction if bank is None else at_bank(bank)
    boundary = Boundary(name, store=store, lease="2s", effects=effects, observers=())
    return IdempotencyMiddleware(application(place), boundary, required=True, principal="shared")


def application(place: Place) -> Starlette:
    """The application alone."""

    async def order(request: Request) -> Response:
        number = (await request.json())["order"]
        line = await place(number)
        return JSONResponse({"order": number, "line": line}, 201, {"Location": f"/orders/{line}"})

    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


async def in_transaction(order: str) -> str:
    """Write the line in the transaction of the running claim: sqlite3's, asyncpg's or psycopg's."""
    line, tx = secrets.token_hex(8), current().tx
    if isinstance(tx, sqlite3.Connection):
        tx.execute(INSERT.format("?, ?"), (order, line))
    elif type(tx).__module__.startswith("asyncpg"):
        await tx.execute(INSERT.format("$1, $2"), order, line)
    else:
        await tx.execute(INSERT.format("%s, %s"), (order, line))
    return line


def at_bank(address: tuple[str, int]) -> Place:
    """Ask the bank for the line, under the derived key."""

    async def place(order: str) -> str:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(json.dumps([order, current().key_for("bank")]).encode() + b"\n")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()

    return place
