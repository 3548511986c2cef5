"""Guarded tools over streamable HTTP: streams that break, and users that must not see each other's answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from retrysafe import Boundary, wait
from retrysafe.agents.mcp import OnceTools, subject
from tests.agents.calling import call
from tests.ports import free_port
from tests.tables import each_row

pytestmark = pytest.mark.slow


class Tokens:
    """Believes that a token is its user's name."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="app", scopes=[], subject=token)


@asynccontextmanager
async def served(folder: Path, *, auth: bool = False) -> AsyncIterator[tuple[int, list[str]]]:
    """A port with a guarded server, and the calls of its tool."""
    port, done = free_port(), list[str]()
    name = folder.name
    store = f"sqlite:///{folder / 'air.db'}"
    boundary = Boundary(name, store=store, effects="external", concurrency=wait("20s"), observers=[])
    url = AnyHttpUrl(f"http://127.0.0.1:{port}")
    options: dict[str, Any] = {}
    if auth:
        options = {"auth": AuthSettings(issuer_url=url, resource_server_url=None), "token_verifier": Tokens()}
    once = OnceTools(boundary, principal=subject if auth else "shared", book="order")
    server: MCPServer = MCPServer("air", extensions=[once], **options)

    @server.tool()
    async def book(order: str) -> str:
        done.append(order)
        return f"ticket {len(done)}"

    config = uvicorn.Config(server.streamable_http_app(), port=port, log_level="error")
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    while not running.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    yield port, done
    running.should_exit = True
    await task
    await boundary.aclose()


@asynccontextmanager
async def client_of(port: int, mode: str = "auto", user: str | None = None) -> AsyncIterator[Client]:
    """A client, with a user's token."""
    headers = {} if user is None else {"Authorization": f"Bearer {user}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


class Cutting:
    """A port in front of another one: it breaks the connection when the answer to a tool call begins."""

    def __init__(self, port: int) -> None:
        self.port, self.upstream, self.cuts = free_port(), port, 1

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        inner, outer = await asyncio.open_connection("127.0.0.1", self.upstream)
        calling = asyncio.Event()

        async def forward() -> None:
            while chunk := await reader.read(65536):
                if b"tools/call" in chunk:
                    calling.set()
                outer.write(chunk)

        async def answer() -> None:
            while chunk := await inner.read(65536):
                if calling.is_set() and self.cuts:
                    self.cuts -= 1
                    break
                writer.write(chunk)
            writer.close()

        tasks = [asyncio.create_task(forward()), asyncio.create_task(answer())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        outer.close()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await task
        writer.close()


@each_row("mode", ["auto", "legacy"])
async def test_an_answer_that_is_cut_is_given_again(tmp_path: Path, mode: str) -> None:
    async with served(tmp_path) as (port, done):
        cutting = Cutting(port)
        async with await asyncio.start_server(cutting.connect, "127.0.0.1", cutting.port):
            with pytest.raises(Exception):  # noqa: B017, PT011 - the client's own, in groups or alone
                async with client_of(cutting.port, mode) as client:
                    async with asyncio.timeout(30):
                        await call(client, order="1")
            assert cutting.cuts == 0
            async with client_of(cutting.port, mode) as client:
                assert await call(client, order="1") == "ticket 1"
        assert done == ["1"]


async def test_two_users_never_get_each_others_answers(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as (port, done):
        async with client_of(port, user="ann") as ann, client_of(port, user="bob") as bob:
            answers = [await call(client, order="1") for client in (ann, bob, ann, bob)]
        assert answers == ["ticket 1", "ticket 2", "ticket 1", "ticket 2"]
        assert done == ["1", "1"]
