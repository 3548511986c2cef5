"""Our side of the rows: a guarded function, or a claim around work in a transaction, on any store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import by_hand
from benchmarks.rows import Side, at_once, one_by_one
from benchmarks.stores import Store
from retrysafe import Boundary

CLIENTS = 16
RECORDS = 10
"""The most records of SQS that Lambda takes at once by default."""


def function(order: str, amount: int = by_hand.AMOUNT) -> dict[str, Any]:
    """Stand for the guarded work."""
    return by_hand.place(order)


async def coroutine(order: str, amount: int = by_hand.AMOUNT) -> dict[str, Any]:
    """The same, async."""
    return by_hand.place(order)


def boundary_on(url: str, **terms: Any) -> Boundary:
    """A boundary whose keys are this process's own, also on a store that outlives it."""
    return Boundary(f"bench {os.getpid()}", store=url, **terms)


@contextmanager
def bare(work: Callable[[str], object] = function) -> Iterator[Side]:
    """The function alone."""
    yield one_by_one(work)


@contextmanager
def abare() -> Iterator[Side]:
    """The coroutine function alone."""
    with asyncio.Runner() as runner:
        yield at_once(runner, [coroutine])


@contextmanager
def once(store: Store, work: Callable[[str], object] = function) -> Iterator[Side]:
    """A decorated function."""
    with store() as url:
        boundary = boundary_on(url)
        yield one_by_one(boundary.once(key="order")(work))
        boundary.close()


@contextmanager
def aonce(store: Store, clients: int) -> Iterator[Side]:
    """A decorated coroutine function, called by some clients at once."""
    with store() as url, asyncio.Runner() as runner:
        boundary = boundary_on(url)
        guarded: Callable[[str], Awaitable[Any]] = boundary.once(key="order")(coroutine)
        yield at_once(runner, [guarded] * clients)
        runner.run(boundary.aclose())


@contextmanager
def areplayed(store: Store, clients: int, keys: int) -> Iterator[Side]:
    """The same where the clients replay a few settled keys by turns, each its own if there are as many."""
    with aonce(store, clients) as side:
        names = [f"settled {number}" for number in range(keys)]
        side.work(names)
        yield Side(lambda offered: side.work([names[i % keys] for i in range(len(offered))]))


Order = Callable[[Any, str], Any]
"""Inserts the order of a key in a transaction."""


@contextmanager
def claim(store: Store, order: Order | None = None) -> Iterator[Side]:
    """A claim; with an ``order`` in a transaction of the boundary's own."""
    with store() as url:
        boundary = boundary_on(url, effects="keyed" if order is None else "transactional")

        def work(key: str) -> None:
            with boundary.claim(key, payload=by_hand.payload(key)) as claimed:
                if not claimed.replayed:
                    if order is not None:
                        order(claimed.tx, key)
                    claimed.result = function(key)

        yield one_by_one(work)
        boundary.close()


@contextmanager
def aclaim(store: Store, order: Order, clients: int) -> Iterator[Side]:
    """Claims of some clients at once, each in a transaction of the boundary's own."""
    with store() as url, asyncio.Runner() as runner:
        boundary = boundary_on(url, effects="transactional")

        async def work(key: str) -> None:
            async with boundary.claim(key, payload=by_hand.payload(key)) as claimed:
                if not claimed.replayed:
                    await order(claimed.tx, key)
                    claimed.result = await coroutine(key)

        yield at_once(runner, [work] * clients)
        runner.run(boundary.aclose())


@contextmanager
def joined(store: Store, connect: Callable[[str], Any], order: Order) -> Iterator[Side]:
    """Claims in transactions of the caller's."""
    with store() as url, connect(url) as tx:
        boundary = boundary_on(url, effects="transactional")

        def work(key: str) -> None:
            with tx.transaction(), boundary.claim(key, payload=by_hand.payload(key), tx=tx) as claimed:
                if not claimed.replayed:
                    order(tx, key)
                    claimed.result = function(key)

        yield one_by_one(work)
        boundary.close()


@contextmanager
def ajoined(store: Store, connect: Callable[[str], Awaitable[Any]], order: Order, clients: int) -> Iterator[Side]:
    """The same for async code, each client with a connection of its own."""
    with store() as url, asyncio.Runner() as runner:
        boundary = boundary_on(url, effects="transactional")
        connections = [runner.run(_opened(connect, url)) for _ in range(clients)]

        def client(tx: Any) -> Callable[[str], Awaitable[None]]:
            async def work(key: str) -> None:
                async with tx.transaction(), boundary.claim(key, payload=by_hand.payload(key), tx=tx) as claimed:
                    if not claimed.replayed:
                        await order(tx, key)
                        claimed.result = await coroutine(key)

            return work

        yield at_once(runner, [client(tx) for tx in connections])
        for tx in connections:
            runner.run(tx.close())
        runner.run(boundary.aclose())


async def _opened(connect: Callable[[str], Awaitable[Any]], url: str) -> Any:
    return await connect(url)


class Context:
    """The part of Lambda's context that is read."""

    aws_request_id = "bench"
    function_name = "bench"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        """A minute."""
        return 60_000


def event_of(keys: Sequence[str]) -> dict[str, Any]:
    """Records of a queue, as Lambda hands them over."""
    return {
        "Records": [
            {
                "messageId": key,
                "receiptHandle": key,
                "body": f'{{"order": "{key}"}}',
                "attributes": {"ApproximateReceiveCount": "1"},
                "eventSource": "aws:sqs",
            }
            for key in keys
        ]
    }


def in_batches(handle: Callable[[dict[str, Any], Any], Any]) -> Side:
    """Invoke a handler for each ten keys."""

    def turn(keys: Sequence[str]) -> None:
        for start in range(0, len(keys), RECORDS):
            failures = handle(event_of(keys[start : start + RECORDS]), Context())["batchItemFailures"]
            if failures:
                raise RuntimeError(failures)

    return Side(turn)
