"""Redis beside SET NX, SET and GET on the same client library; by hand an owner is not verified."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand, services
from benchmarks.guarding import CLIENTS, aonce, coroutine, function, once
from benchmarks.rivals.contenders import powertools
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Work, at_once, one_by_one
from benchmarks.stores import redis as store

LEASE_MS = 30_000
_PREFIX = f"bench:{os.getpid()}:"
_ON_REDIS: dict[str, Any] = {"needs": ("redis",), "counted": ("redis",)}


def rows() -> Sequence[Row]:
    """Fresh and replay, a sync client and many async ones; and the lane alone."""
    found = []
    for kind, replay in (("fresh", False), ("replay", True)):
        sync: dict[str, Opener] = {
            OURS: partial(once, store),
            FLOOR: partial(_by_hand, replay),
            "Powertools": powertools,
        }
        many = {OURS: partial(aonce, store, CLIENTS), FLOOR: partial(_aby_hand, replay)}
        beside = "SET NX, SET and GET by hand"
        found.append(Row(f"redis/once sync {kind}", beside, sync, replay, **_ON_REDIS))
        found.append(Row(f"redis/once async ×{CLIENTS} {kind}", beside, many, replay, **_ON_REDIS))
    return [*found, Row(f"redis/lane ×{CLIENTS}", "redis.asyncio", {OURS: _lane, FLOOR: _one_by_one}, **_ON_REDIS)]


@contextmanager
def _by_hand(replay: bool) -> Iterator[Side]:
    import redis

    client = redis.Redis.from_url(services.url("redis"))

    def fresh(key: str) -> Any:
        if not client.set(_PREFIX + key, _running(key), nx=True, px=LEASE_MS):
            return stored(key)
        result = function(key)
        client.set(_PREFIX + key, _completed(key, result), ex=by_hand.DAY)
        return result

    def stored(key: str) -> Any:
        found: Any = client.get(_PREFIX + key)
        return None if found is None else by_hand.replayed((found[:32], found[32:]), key)

    floor: Callable[[str], Any] = (lambda key: stored(key) or fresh(key)) if replay else fresh
    yield one_by_one(floor)
    client.close()


@contextmanager
def _aby_hand(replay: bool) -> Iterator[Side]:
    import redis.asyncio

    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(services.url("redis"))

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

        floor: Work = look_first if replay else fresh
        yield at_once(runner, [floor] * CLIENTS)
        runner.run(client.aclose())


@contextmanager
def _lane() -> Iterator[Side]:
    """A script by many tasks, over one auto-pipelined connection."""
    import redis.asyncio

    from retrysafe.backends.redis import async_client
    from retrysafe.backends.redis.store import RedisStore

    store = RedisStore()
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(services.url("redis"), protocol=2)
        lane = async_client.AsyncRedisClient(async_client.one_server(client, ours=False))

        async def read(key: str) -> Any:
            return await lane(store.read(hashlib.sha256(key.encode()).digest()).request)

        yield at_once(runner, [read] * CLIENTS)
        runner.run(lane.aclose())
        runner.run(client.aclose())


@contextmanager
def _one_by_one() -> Iterator[Side]:
    """The same script by the same tasks, over redis-py's pool."""
    import redis.asyncio

    from retrysafe.backends.redis.client import by_digest
    from retrysafe.backends.redis.store import RedisStore

    store = RedisStore()
    with asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(services.url("redis"), protocol=2)
        execute: Any = client.execute_command
        runner.run(_known(client, store.read(b"0" * 32).request))

        async def read(key: str) -> Any:
            request = store.read(hashlib.sha256(key.encode()).digest()).request
            return await execute(*by_digest(request))

        yield at_once(runner, [read] * CLIENTS)
        runner.run(client.aclose())


async def _known(client: Any, request: Any) -> None:
    """See to it that the server knows the script of a request."""
    await client.script_load(request.source)


def _running(key: str) -> bytes:
    return by_hand.fingerprint(key) + b'"running"'


def _completed(key: str, result: dict[str, Any]) -> bytes:
    return by_hand.fingerprint(key) + by_hand.encode(result)
