"""PostgreSQL through psycopg, sync and async: pooled boundaries beside prepared statements on own connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks import by_hand
from benchmarks.guarding import CLIENTS, aclaim, ajoined, aonce, claim, coroutine, function, joined, once
from benchmarks.rivals.contenders import dbos
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Work, at_once, one_by_one
from benchmarks.stores import database, postgresql
from retrysafe import insert_once

_INSERT = by_hand.INSERT.format("%s", "%s", "%s").encode()
_COMPLETE = by_hand.COMPLETE.format("%s", "%s", "%s").encode()
_ENTRY = by_hand.ENTRY.format("%s").encode()
_READ = by_hand.READ.format("%s").encode()
_ORDER = by_hand.ORDER.format("%s", "%s").encode()


def rows() -> Sequence[Row]:
    """Leased, the boundary's own transaction, and the caller's."""
    store = partial(postgresql, "psycopg")
    many = CLIENTS
    sync: tuple[tuple[str, Opener, Opener], ...] = (
        ("once fresh", partial(once, store), partial(_by_hand, Leased)),
        ("once replay", partial(once, store), partial(_by_hand, Replay)),
        ("claim own tx fresh", partial(claim, store, _order), partial(_by_hand, Transaction)),
        ("claim tx= fresh", partial(joined, store, _connect, _order), partial(_by_hand, Transaction)),
        ("insert_once", partial(_by_hand, Inserted), partial(_by_hand, Entry)),
    )
    concurrent: tuple[tuple[str, Opener, Opener], ...] = (
        ("once fresh", partial(aonce, store, many), partial(_aby_hand, ALeased)),
        ("once replay", partial(aonce, store, many), partial(_aby_hand, AReplay)),
        ("claim own tx fresh", partial(aclaim, store, _aorder, many), partial(_aby_hand, ATransaction)),
        ("claim tx= fresh", partial(ajoined, store, _aconnect, _aorder, many), partial(_aby_hand, ATransaction)),
    )
    return [
        Row(
            f"postgresql psycopg {clients}/{name}",
            "prepared statements by hand",
            {OURS: ours, FLOOR: floor} | ({"DBOS": dbos} if clients == "sync" and name.startswith("once") else {}),
            replay="replay" in name,
            needs=("postgresql",),
            counted=("postgresql",),
        )
        for clients, kinds in (("sync", sync), (f"async ×{many}", concurrent))
        for name, ours, floor in kinds
    ]


def _order(tx: Any, key: str) -> None:
    tx.execute(_ORDER, (key, by_hand.AMOUNT))


async def _aorder(tx: Any, key: str) -> None:
    await tx.execute(_ORDER, (key, by_hand.AMOUNT))


def _connect(url: str) -> psycopg.Connection[Any]:
    """A connection that prepares every statement at its first use."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=0)


async def _aconnect(url: str) -> psycopg.AsyncConnection[Any]:
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
            _order(self.connection, key)
            result = function(key)
            self.complete(key, attempt, result)
        return result


class Entry(Leased):
    """A row in its transaction, unless it is there."""

    def __call__(self, key: str) -> Any:
        with self.connection.transaction():
            return self.insert(by_hand.entry(key))

    def insert(self, entry: dict[str, Any]) -> bool:
        """Insert it, and tell whether it is new."""
        return self.connection.execute(_ENTRY, tuple(entry.values())).rowcount == 1


class Inserted(Entry):
    """The same by `insert_once`."""

    def insert(self, entry: dict[str, Any]) -> bool:
        return insert_once(self.connection, "by_hand", entry, key=("key",))[1]


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
            await _aorder(self.connection, key)
            result = await coroutine(key)
            await self.complete(key, attempt, result)
        return result


class AReplay(ALeased):
    """`Replay` for async code."""

    async def __call__(self, key: str) -> Any:
        return await self.stored(key) or await super().__call__(key)


@contextmanager
def _by_hand(floor: Callable[[psycopg.Connection[Any]], Callable[[str], Any]]) -> Iterator[Side]:
    with database() as url, _connect(url) as connection:
        yield one_by_one(floor(connection))


@contextmanager
def _aby_hand(floor: Callable[[psycopg.AsyncConnection[Any]], Work]) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        connections = [runner.run(_aconnect(url)) for _ in range(CLIENTS)]
        yield at_once(runner, [floor(one) for one in connections])
        for connection in connections:
            runner.run(connection.close())
