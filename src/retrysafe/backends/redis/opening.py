"""Backends on Redis and Valkey, from a URL or a client of redis-py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.redis import async_client, client
from retrysafe.backends.redis import url as urls
from retrysafe.backends.redis.listener import AsyncRedisListener, RedisListener
from retrysafe.backends.redis.store import RedisStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.backends.urls import without_password

IMPATIENCE = 0.5
"""Seconds for which a fast store may keep its answer back, unless its URL says otherwise."""
_ADDRESS = "redis://…"
"""Of a client, which does not say where it leads."""


def from_url(url: str, **options: Any) -> Backend:
    address = urls.parse(url, **options)
    return _backend(
        partial(urls.sync, address),
        partial(urls.asynchronous, address),
        address=without_password(url),
        most=address.most_connections,
    )


def impatient(url: str) -> Backend:
    """A backend that is only asked for what is quick."""
    return from_url(url, silence=IMPATIENCE)


def from_client(redis: Any) -> Backend:
    return _backend(partial(client.one_server, redis, ours=False), None)


def from_async_client(redis: Any) -> Backend:
    return _backend(None, partial(async_client.one_server, redis, ours=False))


def from_cluster(redis: Any) -> Backend:
    return _backend(partial(client.cluster, lambda: redis, ours=False), None)


def from_async_cluster(redis: Any) -> Backend:
    return _backend(None, partial(async_client.cluster, redis, ours=False))


def _backend(
    sync: Callable[[], client.Masters] | None,
    asynchronous: Callable[[], async_client.AsyncMasters] | None,
    *,
    address: str = _ADDRESS,
    most: int | None = None,
) -> Backend:
    """A backend over what makes the masters for sync code, and for a loop; one of them may be None."""
    access = StoreAccess(address)
    if sync is not None:
        access = access._replace(
            sync=lambda: client.RedisClient(sync(), most),
            listening=lambda heard: RedisListener(sync(), heard),
        )
    if asynchronous is not None:
        access = access._replace(
            asynchronous=lambda: async_client.AsyncRedisClient(asynchronous()),
            alistening=lambda heard: AsyncRedisListener(asynchronous(), heard),
        )
    return Backend(RedisStore(), access)
