"""An application on real sockets: it appends to a file whatever it does, and its records are in a SQLite file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from retrysafe import Boundary
from retrysafe.http.asgi import IdempotencyMiddleware

FOLDER = Path(os.environ.get("RETRYSAFE_TEST_FOLDER", "."))
LEDGER = FOLDER / "ledger"


async def work(scope: Any, receive: Any, send: Any) -> None:
    """``/slow`` waits for the file "go", ``/large`` streams more than is kept, others answer in two chunks."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    with LEDGER.open("a") as ledger:
        ledger.write(f"{scope['path']}\n")
    while scope["path"] == "/slow" and not (FOLDER / "go").exists():  # noqa: ASYNC110 - a file is what two processes share
        await asyncio.sleep(0.005)
    headers = [(b"content-type", b"text/plain"), (b"link", b"<a>"), (b"link", b"<b>")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    for _ in range(20 if scope["path"] == "/large" else 1):
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
    await send({"type": "http.response.body", "body": b"end", "more_body": False})


boundary = Boundary("ledger", store=f"sqlite:///{FOLDER / 'records.db'}")
app = IdempotencyMiddleware(work, boundary, required=True, response_limit=10_000, principal="shared")
