"""How long an upstream is waited for: a limit for silence, which rests while a client is waited for, and a total."""

from __future__ import annotations

import asyncio
from types import TracebackType

from retrysafe.gateway.failures import SILENT, TOO_LONG, Failed
from retrysafe.gateway.settings import Timeouts


class Patience:
    """Ends the block with `TimeoutError` when the upstream is silent, or takes no bytes, for too long."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._read = timeouts.read
        self._loop = asyncio.get_running_loop()
        self._whole = asyncio.timeout(timeouts.total)
        self._silence = asyncio.timeout(timeouts.connect + timeouts.read)
        self._over = False

    async def __aenter__(self) -> Patience:
        await self._whole.__aenter__()
        await self._silence.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        try:
            await self._silence.__aexit__(kind, error, trace)
        except TimeoutError as late:
            await self._whole.__aexit__(TimeoutError, late, trace)
            raise
        await self._whole.__aexit__(kind, error, trace)

    def rest(self) -> None:
        """Somebody else is waited for."""
        self._reschedule(None)

    def begin(self) -> None:
        """The upstream is waited for, from now."""
        self._reschedule(self._loop.time() + self._read)

    def _reschedule(self, when: float | None) -> None:
        if not self._over and not self._silence.expired():
            self._silence.reschedule(when)

    @property
    def ended(self) -> Failed | None:
        """Which limit has ended the block, if one has."""
        if self._silence.expired():
            return SILENT
        return TOO_LONG if self._whole.expired() else None
