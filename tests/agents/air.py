"""An airline's MCP server over stdio: ``python -m tests.agents.air LEDGER [STORE EFFECTS]``, guarded with a store.

Each booking is a line of the ledger: order, flight, and the key under which the airline would recognise it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server import MCPServer

from retrysafe import Boundary, current, wait
from retrysafe.agents.mcp import OnceTools, subject

LEDGER = Path(sys.argv[1])
GATE = LEDGER.with_suffix(".gate")
extensions = []
if len(sys.argv) > 2:
    store, effects = sys.argv[2:]
    bookings = Boundary("air", store=store, effects=effects, lease="1s", concurrency=wait("20s"), observers=[])  # type: ignore[call-overload]
    extensions.append(OnceTools(bookings, principal=subject, book="order"))
server = MCPServer("air", extensions=extensions)


@server.tool()
async def book(order: str, flight: str) -> str:
    """Books a flight."""
    key = current().key_for("airline") if extensions else "-"
    with LEDGER.open("a") as ledger:  # noqa: ASYNC230 - a line
        ledger.write(f"{order} {flight} {key}\n")
    if flight == "DIES" and not GATE.exists():
        GATE.touch()
        os._exit(9)
    while flight == "SLOW" and not GATE.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    if flight == "FULL":
        raise ValueError("no seats")
    return f"ticket for {flight}"


@server.tool()
def look(flight: str) -> str:
    """Tells whether seats are left."""
    return f"{flight} has seats"


if __name__ == "__main__":
    server.run()
