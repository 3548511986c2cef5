"""`once` and `claim` on memory: the floor is the bare function, the figure what a call costs on top.

A result of plain values is exact by construction; one that holds objects is decoded and compared before it is stored.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from benchmarks import by_hand
from benchmarks.guarding import abare, aonce, bare, boundary_on, claim, function, once
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Turn
from benchmarks.stores import memory
from retrysafe import Boundary


def rows() -> Sequence[Row]:
    """Sync and async, fresh and replay; and what a claim in flight holds."""
    kinds: tuple[tuple[str, Opener, Opener], ...] = (
        ("once sync", partial(once, memory, function), bare),
        ("once of a dataclass", partial(once, memory, dataclass_function), partial(bare, dataclass_function)),
        ("once of a model", partial(once, memory, model_function), partial(bare, model_function)),
        ("once async", partial(aonce, memory, 1), abare),
        ("claim sync", partial(claim, memory), bare),
    )
    found = [
        Row(f"memory/{name} {kind}", "the function alone", {OURS: ours, FLOOR: floor}, replay=kind == "replay")
        for name, ours, floor in kinds
        for kind in ("fresh", "replay")
    ]
    sides = {OURS: partial(_in_flight, True), FLOOR: partial(_in_flight, False)}
    held = Row("memory/a claim in flight", "a task that waits", sides, unit="bytes", operations=2000)
    return [*found, held]


@dataclass
class Receipt:
    """The returned dataclass."""

    id: str
    amount: int
    state: str


class ReceiptModel(BaseModel):
    """The returned pydantic model."""

    id: str
    amount: int
    state: str


def dataclass_function(order: str, amount: int = by_hand.AMOUNT) -> Receipt:
    """The same, whose result is an object."""
    return Receipt(**by_hand.place(order))


def model_function(order: str, amount: int = by_hand.AMOUNT) -> ReceiptModel:
    """The same, whose result is a model."""
    return ReceiptModel(**by_hand.place(order))


@contextmanager
def _in_flight(guarded: bool) -> Iterator[Side]:
    """Tasks that wait in the middle of their work, inside a claim or without one."""
    with asyncio.Runner() as runner:
        boundary = boundary_on("memory://")
        yield Side(lambda keys: runner.run(_held(keys, _claimed if guarded else _waited, boundary)))
        runner.run(boundary.aclose())


Held = Callable[[Boundary, str, asyncio.Semaphore, asyncio.Event], Coroutine[Any, Any, None]]


async def _held(keys: Sequence[str], work: Held, boundary: Boundary) -> Turn:
    """Bytes that each of the tasks holds while all of them wait."""
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tasks = [asyncio.ensure_future(work(boundary, key, begun, go_on)) for key in keys]
    for _ in keys:
        await begun.acquire()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    go_on.set()
    await asyncio.gather(*tasks)
    return Turn((held - before) / len(keys), None)


async def _claimed(boundary: Boundary, key: str, begun: asyncio.Semaphore, go_on: asyncio.Event) -> None:
    async with boundary.claim(key, payload=by_hand.payload(key)) as claimed:
        claimed.result = None
        begun.release()
        await go_on.wait()


async def _waited(boundary: Boundary, key: str, begun: asyncio.Semaphore, go_on: asyncio.Event) -> None:
    begun.release()
    await go_on.wait()
