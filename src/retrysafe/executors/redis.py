"""redis-py, sync and async: scripts by digest, loaded again when the server has forgotten them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.ports import Script


@lru_cache(maxsize=64)
def digest(source: str) -> str:
    """The name under which Redis knows a script."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """A connection pool of redis-py; it is safe to use from many threads."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    @classmethod
    def connect(cls, url: str) -> RedisClient:
        """A client with a pool of its own."""
        return cls(redis.Redis.from_url(url))

    def __call__(self, request: Script, /) -> Any:
        try:
            try:
                return self._client.evalsha(digest(request.source), len(request.keys), *request.keys, *request.args)
            except NoScriptError:
                return self._client.eval(request.source, len(request.keys), *request.keys, *request.args)
        except RedisError as error:
            raise StoreUnavailable(str(error)) from error

    def transaction(self) -> Any:
        """Redis has no transactions that could hold the caller's data."""
        raise ConfigurationError("store=: Redis has no transactions to share.")

    def close(self) -> None:
        """Close the pool."""
        self._client.close()


class AsyncRedisClient:
    """The same for async code; the pool belongs to one event loop."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    @classmethod
    def connect(cls, url: str) -> AsyncRedisClient:
        """A client with a pool of its own."""
        return cls(redis.asyncio.Redis.from_url(url))

    async def __call__(self, request: Script, /) -> Any:
        call: Any = self._client
        try:
            try:
                return await call.evalsha(digest(request.source), len(request.keys), *request.keys, *request.args)
            except NoScriptError:
                return await call.eval(request.source, len(request.keys), *request.keys, *request.args)
        except RedisError as error:
            raise StoreUnavailable(str(error)) from error

    def transaction(self) -> Any:
        """Redis has no transactions that could hold the caller's data."""
        raise ConfigurationError("store=: Redis has no transactions to share.")

    async def aclose(self) -> None:
        """Close the pool."""
        await self._client.aclose()

    def abandon(self) -> None:
        """Nothing to hang up: what is left goes with this object."""
