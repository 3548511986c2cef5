"""What the client takes from outside: clocks, chance, sleep and new keys, so that tests can give their own."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import uuid4


async def _asleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


class World(NamedTuple):
    """``clock`` is monotonic, ``wall`` is since 1970, both in seconds; ``chance`` is random in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = _asleep
    new_key: Callable[[], str] = lambda: str(uuid4())
