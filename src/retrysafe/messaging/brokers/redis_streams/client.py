"""Clients of redis.asyncio that were used on an event loop, on another one."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import redis.asyncio


def twin_of(argument: Any) -> Any:
    """For a client one with its settings and connections of its own; what is no client stays as it is.

    The connections that the former has are not touched: their event loop may be closed.
    """
    if not isinstance(argument, redis.asyncio.Redis):
        return argument
    pool: Any = copy.copy(argument.connection_pool)
    pool.reset()
    pool._lock = asyncio.Lock()
    if hasattr(pool, "_condition"):
        pool._condition = asyncio.Condition()
    return redis.asyncio.Redis.from_pool(pool)
