"""`once` and `claim` on memory: the floor is the bare function, the figure what a call costs on top.

A result of plain values is exact by construction; one that holds objects is decoded and compared before it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel

from benchmarks import by_hand
from benchmarks.rows import MICROSECONDS, Row, Sides, at_once, one_by_one
from retrysafe import Boundary


def rows() -> Sequence[Row]:
    """Sync and async, fresh and replay."""
    return [
        Row(f"memory/{name} {kind}", sides, MICROSECONDS, aim, replay=kind == "replay")
        for name, sides, aim in (
            ("once sync", partial(_once, function), 12),
            ("once of a dataclass", partial(_once, dataclass_function), None),
            ("once of a model", partial(_once, model_function), None),
            ("once async", _aonce, 20),
            ("claim sync", _claim, 12),
        )
        for kind in ("fresh", "replay")
    ]


def function(order: str, amount: int = by_hand.AMOUNT) -> dict[str, Any]:
    """What is guarded."""
    return by_hand.place(order)


@dataclass
class Receipt:
    """What is returned as a dataclass."""

    id: str
    amount: int
    state: str


class ReceiptModel(BaseModel):
    """What is returned as a pydantic model."""

    id: str
    amount: int
    state: str


def dataclass_function(order: str, amount: int = by_hand.AMOUNT) -> Receipt:
    """The same, whose result is an object."""
    return Receipt(**by_hand.place(order))


def model_function(order: str, amount: int = by_hand.AMOUNT) -> ReceiptModel:
    """The same, whose result is a model."""
    return ReceiptModel(**by_hand.place(order))


async def coroutine(order: str, amount: int = by_hand.AMOUNT) -> dict[str, Any]:
    """The same, async."""
    return by_hand.place(order)


@contextmanager
def _once(guarded: Callable[[str], object]) -> Iterator[Sides]:
    boundary = Boundary("bench", store="memory://")
    yield Sides(one_by_one(boundary.once(key="order")(guarded)), one_by_one(guarded))
    boundary.close()


@contextmanager
def _aonce() -> Iterator[Sides]:
    boundary = Boundary("bench", store="memory://")
    with asyncio.Runner() as runner:
        side = partial(at_once, runner)
        yield Sides(side([boundary.once(key="order")(coroutine)]), side([coroutine]))
        runner.run(boundary.aclose())


@contextmanager
def _claim() -> Iterator[Sides]:
    boundary = Boundary("bench", store="memory://")

    def ours(key: str) -> None:
        with boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}) as claim:
            if not claim.replayed:
                claim.result = function(key)

    yield Sides(one_by_one(ours), one_by_one(function))
    boundary.close()
