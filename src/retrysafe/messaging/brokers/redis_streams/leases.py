"""Which streams a consumer of a group holds: its fair share of them, each under a lease."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio

from retrysafe.boundary import Boundary
from retrysafe.claims.claim import Claim
from retrysafe.errors import InProgress, LeaseLost
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.records import Duration

_NAME = "retrysafe.partitions"
_TICK = 0.5
"""Seconds between two looks at who else is there."""
_COUNT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return redis.call('ZCARD', KEYS[1])
"""
"""How many consumers there are, with this one. KEYS: those who are there; ARGV: this one, and how long it counts."""


class _Holding:
    """One stream, for as long as a lease on it is held, by a task of its own."""

    def __init__(self, leases: Boundary, group: str, stream: str) -> None:
        self.claim: Claim | None = None
        self._settled, self._leave = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._hold(leases.claim(stream, scope=group), leases))

    async def begin(self) -> bool:
        """Whether the stream is ours; False when another consumer has it."""
        await self._settled.wait()
        if self.claim is None:
            await self._task  # raises what kept it from asking
        return self.claim is not None

    def token(self) -> int | None:
        """The fencing token, as long as the stream is certainly held."""
        if self.claim is None or self._task.done():
            return None
        try:
            self.claim.ensure_held()
        except LeaseLost:
            return None
        return self.claim.token

    def is_over(self) -> bool:
        """Whether the stream was held, and is not for certain any more; or could not be asked for."""
        return self._settled.is_set() and self.token() is None

    async def end(self) -> None:
        """Give the lease back, or end without it."""
        self._leave.set()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # a lease that was lost, or could not be given back, lapses

    async def _hold(self, claim: Claim, leases: Boundary) -> None:
        try:
            await leases.entrypoint.enter(claim)
        except InProgress:
            return
        else:
            claim.answered(Answered.UNEXECUTED, None)  # the stream is free again, however this ends
            self.claim = claim
            self._settled.set()
            try:
                await self._leave.wait()
            except asyncio.CancelledError as error:
                await leases.entrypoint.leave(claim, error)
                raise
            await leases.entrypoint.leave(claim, None)
        finally:
            self._settled.set()


class Holdings:
    """The streams that a consumer holds."""

    def __init__(
        self, client: redis.asyncio.Redis, streams: list[str], group: str, store: Any, lease: Duration
    ) -> None:
        self._client, self._streams, self._group = client, streams, group
        self._leases = Boundary(_NAME, store=store, lease=lease, observers=())
        self._present = round(seconds_of(lease, "lease") * 1000)
        self._me = secrets.token_hex(8)
        self._held: dict[str, _Holding] = {}
        self._next = 0.0
        self.leaving: set[str] = set()
        """Those that another consumer is to have; nothing of them is handed out any more."""

    def tokens(self) -> dict[str, int]:
        """The fencing tokens of the streams that are held and not being left."""
        found = {stream: holding.token() for stream, holding in self._held.items() if stream not in self.leaving}
        return {stream: token for stream, token in found.items() if token is not None}

    def drop(self, stream: str) -> None:
        """Another consumer has it, as a higher token shows."""
        self.leaving.add(stream)

    def lost(self) -> list[str]:
        """Those whose leases have ended without our doing, until they are left."""
        return [stream for stream, holding in self._held.items() if holding.is_over()]

    async def leave(self, streams: Iterable[str]) -> None:
        """Let others have these."""
        for stream in set(streams):
            if stream in self._held:
                await self._held.pop(stream).end()
            self.leaving.discard(stream)

    async def share(self) -> None:
        """Take streams up to a fair share of them, and choose what to leave beyond it."""
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            await self._share()
            self._next = now + _TICK

    async def _share(self) -> None:
        """Find out what the share is; take what is missing, choose what to leave."""
        present: int = await self._client.eval(_COUNT, 1, self._meeting(), self._me, self._present)
        share = math.ceil(len(self._streams) / max(1, present))
        kept = [stream for stream in self._held if stream not in self.leaving]
        self.leaving.update(kept[share:])
        wanted = [stream for stream in self._streams if stream not in self._held]
        for stream in random.sample(wanted, len(wanted)):
            if len(self._held) >= share:
                return
            holding = self._held[stream] = _Holding(self._leases, self._group, stream)
            if not await holding.begin():
                del self._held[stream]

    def _meeting(self) -> str:
        return f"{self._streams[0]}:consumers:{self._group}"

    async def aclose(self) -> None:
        """Leave all of them."""
        for stream in list(self._held):
            await self._held.pop(stream).end()
        await self._leases.aclose()
        with suppress(redis.RedisError):
            await self._client.zrem(self._meeting(), self._me)
