"""Serves a console whose operations carry out one batch for each line of its standard input.

Run as ``python -m tests.console.gated STORE RIGHT…``; prints the address. A test can so cancel an operation between two
batches, or kill the process in the middle of one.
"""

from __future__ import annotations

import socket
import sys

import uvicorn

from retrysafe.admin.operator import Batch
from retrysafe.console import Console, Local
from retrysafe.console.bulk import step
from retrysafe.console.operations import Operations, Plan


def main(store: str, *rights: str) -> None:
    """Serve until the process is stopped."""
    console = Console(store, access=Local(*rights))

    def gated(plan: Plan, cursor: str | None) -> Batch:
        if not sys.stdin.readline():
            raise SystemExit
        return step(console, plan, cursor)

    console.operations = Operations(console.store, console.encryption, gated)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"console  http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        config = uvicorn.Config(console, log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
