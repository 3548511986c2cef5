"""Worker processes behind one listening socket: each is an own uvicorn, and one that ends is replaced.

They are forked from a server process that has imported everything, so that a replacement is there soon.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import uvicorn

_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.http.fleet", "tests.http.apps.ledger", "uvloop", "httptools", "psycopg", "asyncpg", "redis.asyncio"]


class _Server(uvicorn.Server):
    """Tells when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Connection) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.send(b"serving")


def _serve(make: Callable[..., Any], arguments: tuple[Any, ...], listening: socket.socket, ready: Connection) -> None:
    app = make(*arguments)
    _Server(uvicorn.Config(app, access_log=False, log_level="error", lifespan="off"), ready).run([listening])


class Fleet:
    """``size`` workers that serve what ``make(*arguments)`` returns, for ``async with``."""

    def __init__(self, size: int, make: Callable[..., Any], *arguments: Any) -> None:
        self.size = size
        self.kills = 0
        self._making = (make, arguments)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address: tuple[str, int] = self._listening.getsockname()
        self._workers: dict[ForkServerProcess, Connection] = {}
        self._serving: list[ForkServerProcess] = []
        self._failed = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Fleet:
        _CONTEXT.set_forkserver_preload(PRELOADED)
        for _ in range(self.size):
            self._start()
        await self._until_serving(self.size)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process, ready in self._workers.items():
            asyncio.get_running_loop().remove_reader(ready.fileno())
            process.terminate()
        for process, ready in self._workers.items():
            await asyncio.to_thread(process.join, 30)
            if process.exitcode is None:
                process.kill()
            ready.close()
        self._listening.close()

    async def kill_one(self) -> None:
        """SIGKILL the worker that has served longest, once another one serves too; replace it."""
        await self._until_serving(2)
        process = self._serving.pop(0)
        ready = self._workers.pop(process)
        process.kill()
        await asyncio.to_thread(process.join)
        ready.close()
        self.kills += 1
        self._start()

    def _start(self) -> None:
        ready, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_serve, args=(*self._making, self._listening, theirs), daemon=True)
        process.start()
        theirs.close()
        self._workers[process] = ready
        asyncio.get_running_loop().add_reader(ready.fileno(), self._told, process, ready)

    def _told(self, process: ForkServerProcess, ready: Connection) -> None:
        asyncio.get_running_loop().remove_reader(ready.fileno())
        try:
            ready.recv()
            self._serving.append(process)
        except EOFError:
            self._failed = True
        self._changed.set()

    async def _until_serving(self, number: int) -> None:
        while len(self._serving) < number:
            self._changed.clear()
            await self._changed.wait()
            if self._failed:
                raise RuntimeError("A worker ended before it served; it has said why on standard error.")
