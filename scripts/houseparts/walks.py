"""The frames, files and moves of an operation, and the time of a fork beside a transaction.

A frame is a call of a function of ours, a move a call from one file of ours into another. The first call of each
operation is not counted: it makes what later ones reuse.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

from houseparts import SOURCE, operations
from retrysafe import Boundary
from retrysafe.messaging import Outbox, Relay
from retrysafe.messaging.brokers.memory import MemoryPublisher


class Walk:
    """Counts the frames while it is entered."""

    def __init__(self) -> None:
        self.frames = self.moves = 0
        self.files: set[str] = set()
        self._ours = str(SOURCE)

    def __enter__(self) -> Walk:
        sys.setprofile(self._pass)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _pass(self, frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(self._ours):
            return
        self.frames += 1
        self.files.add(path)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._ours):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != path:
            self.moves += 1

    def figures(self, name: str) -> dict[str, float]:
        """Name the counts after the operation."""
        return {f"{name}.frames": self.frames, f"{name}.files": len(self.files), f"{name}.moves": self.moves}


def walks(folder: Path) -> dict[str, float]:
    """Walk through everything that users do most."""
    figures: dict[str, float] = {}

    def walk(name: str, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> None:
        before()
        work()
        before()
        with Walk() as counted:
            work()
        figures.update(counted.figures(name))

    numbers = iter(range(10**6))

    def claim(boundary: Boundary, **options: Any) -> None:
        with boundary.claim(f"key {next(numbers)}", **options) as held:
            held.result = 1

    def replay() -> None:
        with memory.claim("key 0") as held:
            assert held.replayed

    memory = operations.boundary_on_memory()
    walk("claim-memory", lambda: claim(memory))
    walk("replay-memory", replay)
    sqlite = Boundary("sqlite", store=f"sqlite:///{folder}/leased.db", observers=())
    walk("claim-sqlite", lambda: claim(sqlite))

    url = f"sqlite:///{folder}/shop.db"
    shop = Boundary("shop", store=url, effects="transactional", observers=())
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)

    def in_transaction(work: Callable[[], object]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        work()
        connection.execute("COMMIT")

    outbox = Outbox(url, source="/shop")

    def add() -> None:
        outbox.add(connection, "orders", {"order": 1}, key="1")

    walk("claim-tx-sqlite", lambda: in_transaction(lambda: claim(shop, tx=connection)))
    walk("outbox-add", lambda: in_transaction(add))
    relay = Relay(url, MemoryPublisher(), observers=())
    relay.run_once()
    walk("relay-round", relay.run_once, before=lambda: in_transaction(add))
    return figures | asyncio.run(_requests(memory))


async def _requests(memory: Boundary) -> dict[str, float]:
    async def walk(name: str, first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> dict[str, float]:
        await first
        with Walk() as counted:
            await second
        return counted.figures(name)

    post: Any = operations.guarded(memory)
    fresh = await walk("asgi-fresh", post("first"), post("second"))
    return fresh | await walk("asgi-replay", post("first"), post("first"))


def fork_beside_transaction(folder: Path) -> dict[str, float]:
    """Fork while another thread is in a transactional claim on SQLite: the milliseconds that it takes."""
    boundary = Boundary("forks", store=f"sqlite:///{folder}/forks.db", effects="transactional", observers=())
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with boundary.claim("key") as held:
            is_held.set()
            may_end.wait()
            held.result = 1

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    if not is_held.wait(60):
        raise SystemExit("A transactional claim on SQLite has not begun within a minute.")
    begun = time.perf_counter()
    if (child := os.fork()) == 0:
        os._exit(0)
    took = time.perf_counter() - begun
    os.waitpid(child, 0)
    may_end.set()
    thread.join()
    return {"fork.ms": round(took * 1000, 1)}
