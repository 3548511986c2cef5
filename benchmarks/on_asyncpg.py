"""PostgreSQL through asyncpg: a pooled boundary beside prepared statements on own connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks import by_hand
from benchmarks.on_memory import coroutine
from benchmarks.postgresql import CLIENTS, COMPLETE, INSERT, READ, database
from benchmarks.rows import RATIO, Row, Sides, Work, at_once
from retrysafe import Boundary

_INSERT = INSERT.format("$1", "$2", "$3")
_COMPLETE = COMPLETE.format("$1", "$2", "$3")
_READ = READ.format("$1")
_ORDER = by_hand.ORDER.format("$1", "$2")


def rows() -> Sequence[Row]:
    """Leased, the boundary's own transaction, and the caller's; one client and many."""
    return [
        Row(f"postgresql asyncpg ×{clients}/{name}", partial(sides, clients), RATIO, aim, replay=replay)
        for clients in (1, CLIENTS)
        for name, sides, aim, replay in (
            ("once fresh", partial(_once, Leased), None, False),
            ("once replay", partial(_once, Replay), None, True),
            ("claim own tx fresh", _own, 0.80, False),
            ("claim tx= fresh", _joined, 0.80, False),
        )
    ]


# ---------------------------------------------------------------- by hand


class Leased:
    """Insert, work, update, each committed by itself. asyncpg keeps each statement prepared."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def __call__(self, key: str) -> Any:
        attempt = by_hand.attempt()
        if not await self.claim(key, attempt):
            return await self.stored(key)
        result = await coroutine(key)
        await self.complete(key, attempt, result)
        return result

    async def claim(self, key: str, attempt: str) -> bool:
        """Whether the key is ours."""
        return bool(await self.connection.execute(_INSERT, key, by_hand.fingerprint(key), attempt) == "INSERT 0 1")

    async def complete(self, key: str, attempt: str, result: dict[str, Any]) -> None:
        """Store the result."""
        if await self.connection.execute(_COMPLETE, by_hand.encode(result), key, attempt) != "UPDATE 1":
            raise RuntimeError("the claim was lost")

    async def stored(self, key: str) -> Any:
        """The stored result, or None."""
        found = await self.connection.fetchrow(_READ, key)
        return None if found is None else by_hand.replayed(found, key)


class Transaction(Leased):
    """The record and an order in one transaction."""

    async def __call__(self, key: str) -> Any:
        async with self.connection.transaction():
            attempt = by_hand.attempt()
            if not await self.claim(key, attempt):
                return await self.stored(key)
            await self.connection.execute(_ORDER, key, by_hand.AMOUNT)
            result = await coroutine(key)
            await self.complete(key, attempt, result)
        return result


class Replay(Leased):
    """Look first, which is the fastest when the answer is there."""

    async def __call__(self, key: str) -> Any:
        return await self.stored(key) or await super().__call__(key)


# ---------------------------------------------------------------- side by side


@contextmanager
def _once(floor: Callable[[Any], Work], clients: int) -> Iterator[Sides]:
    with _connections(clients) as (runner, url, connections):
        boundary = Boundary("bench", store=url)
        guarded: Callable[[str], Awaitable[Any]] = boundary.once(key="order")(coroutine)
        yield Sides(at_once(runner, [guarded] * clients), at_once(runner, [floor(one) for one in connections]))
        runner.run(boundary.aclose())


@contextmanager
def _own(clients: int) -> Iterator[Sides]:
    with _connections(clients) as (runner, url, connections):
        boundary = Boundary("bench", store=url, effects="transactional")

        async def ours(key: str) -> None:
            async with boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}) as claim:
                if not claim.replayed:
                    await claim.tx.execute(_ORDER, key, by_hand.AMOUNT)
                    claim.result = await coroutine(key)

        yield Sides(at_once(runner, [ours] * clients), at_once(runner, [Transaction(one) for one in connections]))
        runner.run(boundary.aclose())


@contextmanager
def _joined(clients: int) -> Iterator[Sides]:
    with _connections(clients) as (runner, url, connections):
        boundary = Boundary("bench", store=url, effects="transactional")

        async def ours(tx: Any, key: str) -> None:
            async with (
                tx.transaction(),
                boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}, tx=tx) as claim,
            ):
                if not claim.replayed:
                    await tx.execute(_ORDER, key, by_hand.AMOUNT)
                    claim.result = await coroutine(key)

        yield Sides(
            at_once(runner, [partial(ours, one) for one in connections]),
            at_once(runner, [Transaction(one) for one in connections]),
        )
        runner.run(boundary.aclose())


@contextmanager
def _connections(clients: int) -> Iterator[tuple[asyncio.Runner, str, list[Any]]]:
    with database() as url, asyncio.Runner() as runner:
        connections = [runner.run(asyncpg.connect(url)) for _ in range(clients)]
        yield runner, url.replace("postgresql", "postgresql+asyncpg", 1), connections
        for connection in connections:
            runner.run(connection.close())
