"""The wait of a consumer for its first message."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from retrysafe.messaging.brokers.lane_queue import LaneQueue

_LOOK = 1.0
"""Seconds after which a consumer looks after its connections and tasks, of whose end nobody may tell it."""


async def arrival(arrived: asyncio.Event, shelf: LaneQueue, deadline: float) -> None:
    """Wait until something has arrived, a lane has rested enough, it is time to look after the rest, or ``deadline``.

    Clear ``arrived`` before you look whether something is there. Instants are those of the event loop.
    """
    wakes = shelf.wakes()
    until = min(deadline, asyncio.get_running_loop().time() + _LOOK, deadline if wakes is None else wakes)
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await arrived.wait()
