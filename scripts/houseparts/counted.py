"""The program that `instructions` runs under callgrind: one kind of call after the other, in blocks between marks.

Chance, the collector of garbage and the keys are fixed. A thread of the library counts for itself.
"""

from __future__ import annotations

import asyncio
import gc
import os

from houseparts import operations

BLOCKS, CALLS = 7, 20
WARMING = 20
SEGMENTS = ("once-fresh", "once-replay", "asgi-bare", "asgi-fresh", "asgi-replay")


def mark() -> None:
    """Call what nothing else calls: a function of the C library, at which callgrind writes down what it has counted."""
    os.getloadavg()


async def main() -> None:
    """Warm everything, then go through the segments."""
    boundary = operations.boundary_on_memory()
    once = boundary.once(key="order")(operations.place)
    bare, guarded = operations.bare(), operations.guarded(boundary)
    warming = [f"warming {number:06}" for number in range(WARMING)]
    blocks = [[f"order {block:03}{number:03}" for number in range(CALLS)] for block in range(BLOCKS)]
    for key in warming * 2:
        once(key)
        await bare(key)
        await guarded(key)
    gc.collect()
    gc.disable()
    mark()
    for _ in ("fresh", "replay"):
        for keys in blocks:
            for key in keys:
                once(key)
            mark()
    for post in (bare, guarded, guarded):
        for keys in blocks:
            for key in keys:
                await post(key)
            mark()


if __name__ == "__main__":
    asyncio.run(main())
