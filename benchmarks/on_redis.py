"""Redis beside SET NX, SET and GET on the same client library; by hand an owner is not verified."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand
from benchmarks.on_memory import coroutine, function
from benchmarks.rows import RATIO, Row, Sides, Work, at_once, one_by_one
from retrysafe import Boundary

VARIABLE = "RETRYSAFE_TEST_REDIS"
CLIENTS = 16
LEASE_MS = 30_000
_PREFIX = f"bench:{os.getpid()}:"


def rows() -> Sequence[Row]:
    """Fresh and replay, a sync client and many async ones."""
    return [
        Row(f"redis/once {name} {kind}", partial(sides, replay), RATIO, replay=replay)
        for name, sides in (("sync", _once), (f"async ×{CLIENTS}", _aonce))
        for kind, replay in (("fresh", False), ("replay", True))
    ] + [Row(f"redis/lane ×{CLIENTS}, beside redis.asyncio", _lane, RATIO, aim=2)]


@contextmanager
def _once(replay: bool) -> Iterator[Sides]:
    import redis

    client = redis.Redis.from_url(os.environ[VARIABLE])

    def fresh(key: str) -> Any:
        if not client.set(_PREFIX + key, _running(key), nx=True, px=LEASE_MS):
            return stored(key)
        result = function(key)
        client.set(_PREFIX + key, _completed(key, result), ex=by_hand.DAY)
        return result

    def stored(key: str) -> Any:
        found: Any = client.get(_PREFIX + key)
        return None if found is None else by_hand.replayed((found[:32], found[32:]), key)

    boundary = Boundary(f"bench {os.getpid()}", store=os.environ[VARIABLE])
    floor: Callable[[str], Any] = (lambda key: stored(key) or fresh(key)) if replay else fresh
    yield Sides(one_by_one(boundary.once(key="order")(function)), one_by_one(floor))
    boundary.close()
    client.close()


@contextmanager
def _aonce(replay: bool) -> Iterator[Sides]:
    import redis.asyncio

    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(os.environ[VARIABLE])

        async def fresh(key: str) -> Any:
            if not await client.set(_PREFIX + key, _running(key), nx=True, px=LEASE_MS):
                return await stored(key)
            result = await coroutine(key)
            await client.set(_PREFIX + key, _completed(key, result), ex=by_hand.DAY)
            return result

        async def stored(key: str) -> Any:
            found: Any = await client.get(_PREFIX + key)
            return None if found is None else by_hand.replayed((found[:32], found[32:]), key)

        async def look_first(key: str) -> Any:
            return await stored(key) or await fresh(key)

        boundary = Boundary(f"bench {os.getpid()}", store=os.environ[VARIABLE])
        guarded: Callable[[str], Awaitable[Any]] = boundary.once(key="order")(coroutine)
        floor: Work = look_first if replay else fresh
        yield Sides(at_once(runner, [guarded] * CLIENTS), at_once(runner, [floor] * CLIENTS))
        runner.run(boundary.aclose())
        runner.run(client.aclose())


@contextmanager
def _lane() -> Iterator[Sides]:
    """The same script by the same tasks: over one auto-pipelined lane, and one by one over redis-py's pool."""
    import redis.asyncio

    from retrysafe.backends.redis import async_client
    from retrysafe.backends.redis.client import by_digest
    from retrysafe.backends.redis.store import RedisStore

    store = RedisStore()

    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(os.environ[VARIABLE], protocol=2)
        lane = async_client.AsyncRedisClient(async_client.one_server(client, ours=False))

        async def ours(key: str) -> Any:
            return await lane(store.read(hashlib.sha256(key.encode()).digest()).request)

        async def floor(key: str) -> Any:
            request = store.read(hashlib.sha256(key.encode()).digest()).request
            return await client.execute_command(*by_digest(request))

        runner.run(ours("first"))  # the server knows the script
        yield Sides(at_once(runner, [ours] * CLIENTS), at_once(runner, [floor] * CLIENTS))
        runner.run(lane.aclose())
        runner.run(client.aclose())


def _running(key: str) -> bytes:
    return by_hand.fingerprint(key) + b'"running"'


def _completed(key: str, result: dict[str, Any]) -> bytes:
    return by_hand.fingerprint(key) + by_hand.encode(result)
