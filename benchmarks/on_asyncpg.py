"""PostgreSQL through asyncpg: a pooled boundary beside prepared statements on own connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks import by_hand
from benchmarks.guarding import CLIENTS, aclaim, ajoined, aonce, areplayed, coroutine
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Work, at_once
from benchmarks.stores import database, postgresql

_STORE = partial(postgresql, "asyncpg")
_INSERT = by_hand.INSERT.format("$1", "$2", "$3")
_COMPLETE = by_hand.COMPLETE.format("$1", "$2", "$3")
_READ = by_hand.READ.format("$1")
_ORDER = by_hand.ORDER.format("$1", "$2")


def rows() -> Sequence[Row]:
    """Leased, the boundary's own transaction, and the caller's, for one client and many; and a storm of retries."""
    storm = Row(
        f"postgresql asyncpg ×{CLIENTS}/retry storm on one key",
        f"the same on {CLIENTS} keys",
        {name: partial(areplayed, _STORE, CLIENTS, keys) for name, keys in ((OURS, 1), (FLOOR, CLIENTS))},
        needs=("postgresql",),
        counted=("postgresql",),
    )
    return [*(row for clients in (1, CLIENTS) for row in _rows(clients)), storm]


def _rows(clients: int) -> Iterator[Row]:
    kinds: tuple[tuple[str, Opener, Callable[[Any], Work]], ...] = (
        ("once fresh", partial(aonce, _STORE, clients), Leased),
        ("once replay", partial(aonce, _STORE, clients), Replay),
        ("claim own tx fresh", partial(aclaim, _STORE, _order, clients), Transaction),
        ("claim tx= fresh", partial(ajoined, _STORE, _connect, _order, clients), Transaction),
    )
    for name, ours, floor in kinds:
        sides: dict[str, Opener] = {OURS: ours, FLOOR: partial(_by_hand, clients, floor)}
        yield Row(
            f"postgresql asyncpg ×{clients}/{name}",
            "prepared statements by hand",
            sides,
            replay=floor is Replay,
            needs=("postgresql",),
            counted=("postgresql",),
        )


async def _order(tx: Any, key: str) -> None:
    await tx.execute(_ORDER, key, by_hand.AMOUNT)


async def _connect(url: str) -> Any:
    return await asyncpg.connect(url.replace("+asyncpg", ""))


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
        """Claim the key, and tell whether it is ours."""
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
            await _order(self.connection, key)
            result = await coroutine(key)
            await self.complete(key, attempt, result)
        return result


class Replay(Leased):
    """Look first, which is the fastest when the answer is there."""

    async def __call__(self, key: str) -> Any:
        return await self.stored(key) or await super().__call__(key)


@contextmanager
def _by_hand(clients: int, floor: Callable[[Any], Work]) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        connections = [runner.run(asyncpg.connect(url)) for _ in range(clients)]
        yield at_once(runner, [floor(one) for one in connections])
        for connection in connections:
            runner.run(connection.close())
