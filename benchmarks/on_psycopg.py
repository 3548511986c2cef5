"""PostgreSQL through psycopg, sync and async: pooled boundaries beside prepared statements on own connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks import by_hand
from benchmarks.on_memory import coroutine, function
from benchmarks.postgresql import CLIENTS, COMPLETE, INSERT, READ, database
from benchmarks.rows import RATIO, Row, Sides, Work, at_once, one_by_one
from retrysafe import Boundary

_INSERT = INSERT.format("%s", "%s", "%s").encode()
_COMPLETE = COMPLETE.format("%s", "%s", "%s").encode()
_READ = READ.format("%s").encode()
_ORDER = by_hand.ORDER.format("%s", "%s").encode()


def rows() -> Sequence[Row]:
    """Leased, the boundary's own transaction, and the caller's."""
    sync, many = "postgresql psycopg sync", f"postgresql psycopg async ×{CLIENTS}"
    return [
        Row(f"{sync}/once fresh", partial(_once, Leased), RATIO),
        Row(f"{sync}/once replay", partial(_once, Replay), RATIO, replay=True),
        Row(f"{sync}/claim own tx fresh", _own, RATIO, 0.85),
        Row(f"{sync}/claim tx= fresh", _joined, RATIO, 0.85),
        Row(f"{many}/once fresh", partial(_aonce, ALeased), RATIO),
        Row(f"{many}/once replay", partial(_aonce, AReplay), RATIO, replay=True),
        Row(f"{many}/claim own tx fresh", _aown, RATIO, 0.85),
        Row(f"{many}/claim tx= fresh", _ajoined, RATIO, 0.85),
    ]


# ---------------------------------------------------------------- by hand


def connection_to(url: str) -> psycopg.Connection[Any]:
    """A connection that prepares every statement at its first use."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=0)


async def aconnection_to(url: str) -> psycopg.AsyncConnection[Any]:
    """The same for async code."""
    return await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)


class Leased:
    """Insert, work, update, each committed by itself."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def __call__(self, key: str) -> Any:
        attempt = by_hand.attempt()
        if self.connection.execute(_INSERT, (key, by_hand.fingerprint(key), attempt)).rowcount != 1:
            return self.stored(key)
        result = function(key)
        self.complete(key, attempt, result)
        return result

    def complete(self, key: str, attempt: str, result: dict[str, Any]) -> None:
        """Store the result."""
        if self.connection.execute(_COMPLETE, (by_hand.encode(result), key, attempt)).rowcount != 1:
            raise RuntimeError("the claim was lost")

    def stored(self, key: str) -> Any:
        """The stored result, or None."""
        found = self.connection.execute(_READ, (key,)).fetchone()
        return None if found is None else by_hand.replayed(found, key)


class Transaction(Leased):
    """The record and an order in one transaction."""

    def __call__(self, key: str) -> Any:
        with self.connection.transaction():
            attempt = by_hand.attempt()
            if self.connection.execute(_INSERT, (key, by_hand.fingerprint(key), attempt)).rowcount != 1:
                return self.stored(key)
            self.connection.execute(_ORDER, (key, by_hand.AMOUNT))
            result = function(key)
            self.complete(key, attempt, result)
        return result


class Replay(Leased):
    """Look first, which is the fastest when the answer is there."""

    def __call__(self, key: str) -> Any:
        return self.stored(key) or super().__call__(key)


class ALeased:
    """`Leased` for async code."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    async def __call__(self, key: str) -> Any:
        attempt = by_hand.attempt()
        if (await self.connection.execute(_INSERT, (key, by_hand.fingerprint(key), attempt))).rowcount != 1:
            return await self.stored(key)
        result = await coroutine(key)
        await self.complete(key, attempt, result)
        return result

    async def complete(self, key: str, attempt: str, result: dict[str, Any]) -> None:
        """Store the result."""
        if (await self.connection.execute(_COMPLETE, (by_hand.encode(result), key, attempt))).rowcount != 1:
            raise RuntimeError("the claim was lost")

    async def stored(self, key: str) -> Any:
        """The stored result, or None."""
        found = await (await self.connection.execute(_READ, (key,))).fetchone()
        return None if found is None else by_hand.replayed(found, key)


class ATransaction(ALeased):
    """`Transaction` for async code."""

    async def __call__(self, key: str) -> Any:
        async with self.connection.transaction():
            attempt = by_hand.attempt()
            if (await self.connection.execute(_INSERT, (key, by_hand.fingerprint(key), attempt))).rowcount != 1:
                return await self.stored(key)
            await self.connection.execute(_ORDER, (key, by_hand.AMOUNT))
            result = await coroutine(key)
            await self.complete(key, attempt, result)
        return result


class AReplay(ALeased):
    """`Replay` for async code."""

    async def __call__(self, key: str) -> Any:
        return await self.stored(key) or await super().__call__(key)


# ---------------------------------------------------------------- side by side


@contextmanager
def _once(floor: Callable[[psycopg.Connection[Any]], Callable[[str], Any]]) -> Iterator[Sides]:
    with database() as url, connection_to(url) as connection:
        boundary = Boundary("bench", store=url)
        yield Sides(one_by_one(boundary.once(key="order")(function)), one_by_one(floor(connection)))
        boundary.close()


@contextmanager
def _own() -> Iterator[Sides]:
    with database() as url, connection_to(url) as connection:
        boundary = Boundary("bench", store=url, effects="transactional")

        def ours(key: str) -> None:
            with boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}) as claim:
                if not claim.replayed:
                    claim.tx.execute(_ORDER, (key, by_hand.AMOUNT))
                    claim.result = function(key)

        yield Sides(one_by_one(ours), one_by_one(Transaction(connection)))
        boundary.close()


@contextmanager
def _joined() -> Iterator[Sides]:
    with database() as url, connection_to(url) as connection, connection_to(url) as tx:
        boundary = Boundary("bench", store=url, effects="transactional")

        def ours(key: str) -> None:
            with (
                tx.transaction(),
                boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}, tx=tx) as claim,
            ):
                if not claim.replayed:
                    tx.execute(_ORDER, (key, by_hand.AMOUNT))
                    claim.result = function(key)

        yield Sides(one_by_one(ours), one_by_one(Transaction(connection)))
        boundary.close()


@contextmanager
def _aonce(floor: Callable[[psycopg.AsyncConnection[Any]], Work]) -> Iterator[Sides]:
    with _many() as (runner, url, connections):
        boundary = Boundary("bench", store=url)
        guarded: Callable[[str], Awaitable[Any]] = boundary.once(key="order")(coroutine)
        yield Sides(at_once(runner, [guarded] * CLIENTS), at_once(runner, [floor(one) for one in connections]))
        runner.run(boundary.aclose())


@contextmanager
def _aown() -> Iterator[Sides]:
    with _many() as (runner, url, connections):
        boundary = Boundary("bench", store=url, effects="transactional")

        async def ours(key: str) -> None:
            async with boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}) as claim:
                if not claim.replayed:
                    await claim.tx.execute(_ORDER, (key, by_hand.AMOUNT))
                    claim.result = await coroutine(key)

        yield Sides(at_once(runner, [ours] * CLIENTS), at_once(runner, [ATransaction(one) for one in connections]))
        runner.run(boundary.aclose())


@contextmanager
def _ajoined() -> Iterator[Sides]:
    with _many() as (runner, url, connections):
        boundary = Boundary("bench", store=url, effects="transactional")

        async def ours(tx: psycopg.AsyncConnection[Any], key: str) -> None:
            async with (
                tx.transaction(),
                boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}, tx=tx) as claim,
            ):
                if not claim.replayed:
                    await tx.execute(_ORDER, (key, by_hand.AMOUNT))
                    claim.result = await coroutine(key)

        yield Sides(
            at_once(runner, [partial(ours, one) for one in connections]),
            at_once(runner, [ATransaction(one) for one in connections]),
        )
        runner.run(boundary.aclose())


@contextmanager
def _many() -> Iterator[tuple[asyncio.Runner, str, list[psycopg.AsyncConnection[Any]]]]:
    with database() as url, asyncio.Runner() as runner:
        connections = [runner.run(aconnection_to(url)) for _ in range(CLIENTS)]
        yield runner, url, connections
        for connection in connections:
            runner.run(connection.close())
