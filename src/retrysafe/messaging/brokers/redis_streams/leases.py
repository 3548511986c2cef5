"""The streams that a consumer of a group holds: its fair share of them, each under a lease."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio

from retrysafe.boundary import Boundary
from retrysafe.claims.named_lease import Lease
from retrysafe.errors import InProgress, LeaseLost
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration
from retrysafe.runtime import InstanceId

_NAME = "retrysafe.partitions"
_TICK = 0.5
"""Seconds between two counts of the group's consumers."""
_COUNT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
"""
"""Counts the consumers of the group, with this one. KEYS: their set; ARGV: this one, and for how long it counts."""


class _StreamLease:
    """One stream and the lease on it, which a task of its own holds."""

    def __init__(self, leases: Boundary, group: str, stream: str) -> None:
        self.lease: Lease | None = None
        self._settled, self._leave = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._hold(leases.lease(stream, scope=group)))

    async def begin(self) -> bool:
        """Claim the stream for this consumer; False when another consumer holds it."""
        await self._settled.wait()
        if self.lease is None:
            await self._task  # raises the error that prevented it
        return self.lease is not None

    def token(self) -> int | None:
        """The fencing token; None unless the stream is held for certain."""
        if self.lease is None or self._task.done():
            return None
        try:
            self.lease.ensure_held()
        except LeaseLost:
            return None
        return self.lease.token

    def is_over(self) -> bool:
        """Tell whether the lease has ended or may have ended, or could not be claimed."""
        return self._settled.is_set() and self.token() is None

    async def end(self) -> None:
        self._leave.set()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if not self._task.cancelled():
            self._task.exception()  # a lease that was lost, or could not be released, lapses

    async def _hold(self, lease: Lease) -> None:
        try:
            async with lease:
                self.lease = lease
                self._settled.set()
                await self._leave.wait()
        except InProgress:
            return
        finally:
            self._settled.set()


class PartitionLeases:
    def __init__(
        self, client: redis.asyncio.Redis, streams: list[str], group: str, store: Any, lease: Duration
    ) -> None:
        self._client, self._streams, self._group = client, streams, group
        self._leases = Boundary(_NAME, store=store, lease=lease, observers=())
        self._present = round(seconds_of(lease, "lease") * 1000)
        self._me = InstanceId()
        self._held: dict[str, _StreamLease] = {}
        self._next = 0.0
        self.leaving: set[str] = set()
        """Streams that move to another consumer; no message of them is handed out any more."""

    def tokens(self) -> dict[str, int]:
        """The fencing tokens of the streams that are held and not being left."""
        found = {stream: lease.token() for stream, lease in self._held.items() if stream not in self.leaving}
        return {stream: token for stream, token in found.items() if token is not None}

    def drop(self, stream: str) -> None:
        """Leave a stream that another consumer holds, as its higher token shows."""
        self.leaving.add(stream)

    def find_lost(self) -> list[str]:
        """Streams whose leases were lost, until `leave` is called for them."""
        return [stream for stream, lease in self._held.items() if lease.is_over()]

    async def leave(self, streams: Iterable[str]) -> None:
        for stream in set(streams):
            if stream in self._held:
                await self._held.pop(stream).end()
            self.leaving.discard(stream)

    async def share(self) -> None:
        """Take streams up to a fair share, and choose those to leave beyond it; at most twice a second."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + _TICK
        present: int = await self._client.eval(_COUNT, 1, self._meeting(), str(self._me), self._present)
        share = math.ceil(len(self._streams) / max(1, present))
        kept = [stream for stream in self._held if stream not in self.leaving]
        self.leaving.update(kept[share:])
        wanted = [stream for stream in self._streams if stream not in self._held]
        for stream in random.sample(wanted, len(wanted)):
            if len(self._held) >= share:
                return
            lease = self._held[stream] = _StreamLease(self._leases, self._group, stream)
            if not await lease.begin():
                del self._held[stream]

    def _meeting(self) -> str:
        return f"{self._streams[0]}:consumers:{self._group}"

    async def aclose(self) -> None:
        for stream in list(self._held):
            await self._held.pop(stream).end()
        await self._leases.aclose()
        with suppress(redis.RedisError):
            await self._client.zrem(self._meeting(), str(self._me))
