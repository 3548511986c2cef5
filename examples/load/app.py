"""An endpoint that charges a card by a provider, which takes its time and recognises no key, and an audit of it.

``LOAD_STORE=sqlite:///load.db uvicorn examples.load.app:app``. With ``LOAD_GUARD=off`` it charges whenever it is asked.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retrysafe import Boundary
from retrysafe.http.starlette import IdempotencyMiddleware

STORE = os.environ.get("LOAD_STORE", "sqlite:///load.db")
LEDGER = os.environ.get("LOAD_LEDGER", "ledger.db")
GUARDED = os.environ.get("LOAD_GUARD", "on") != "off"
PROVIDER_SECONDS = 0.02

provider = sqlite3.connect(LEDGER, isolation_level=None, timeout=30, check_same_thread=False)
provider.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
provider.execute("CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY, key TEXT NOT NULL, amount INTEGER)")
payments = Boundary("payments", store=STORE, effects="keyed", window="24h")


async def charge(request: Request) -> JSONResponse:
    """Charge once more: whoever asks twice is charged twice, unless something in front knows better."""
    amount = (await request.json())["amount"]
    await asyncio.sleep(PROVIDER_SECONDS)
    done = provider.execute(
        "INSERT INTO charges (key, amount) VALUES (?, ?)", (request.headers["idempotency-key"], amount)
    )
    return JSONResponse({"charge": done.lastrowid, "amount": amount}, 201)


async def audit(request: Request) -> JSONResponse:
    """Report the provider's charges."""
    charges, keys, twice = provider.execute(
        "SELECT coalesce(sum(n), 0), count(*), coalesce(sum(n > 1), 0) FROM "
        "(SELECT count(*) AS n FROM charges GROUP BY key)"
    ).fetchone()
    return JSONResponse({"charges": charges, "keys": keys, "charged_twice": twice})


app = Starlette(
    routes=[Route("/charges", charge, methods=["POST"]), Route("/audit", audit)],
    middleware=[Middleware(IdempotencyMiddleware, boundary=payments, principal="shared")] if GUARDED else [],
)
