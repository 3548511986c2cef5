"""Clients of the official SDK, and the words in which tests write their calls."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.processes import environment

GATEWAY = ("-m", "retrysafe", "gateway", "mcp")
AIR = ("-m", "tests.agents.air")


def spawned(folder: Path, *arguments: str, mode: str = "auto") -> AbstractAsyncContextManager[Client]:
    """A client of a Python program over stdio; what that says on standard error is in the file ``errors``."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        with (folder / "errors").open("a") as errors:
            parameters = StdioServerParameters(command=sys.executable, args=[*arguments], env=environment())
            async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
                yield client

    return connected()


async def call(client: Client, tool: str = "book", *, meta: Any = None, **arguments: Any) -> str:
    """The text of a result, or the error's name: of ours, else ``failed``."""
    result = await client.call_tool(tool, arguments, meta=meta)
    if result.is_error:
        return str((result.meta or {}).get("dev.retrysafe/error", "failed"))
    return str(getattr(result.content[0], "text", ""))
