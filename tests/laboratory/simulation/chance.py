"""Chance for each actor: a stream of its own, so that what one meets does not change what another one does."""

from __future__ import annotations

from collections.abc import Callable

_MASK = (1 << 64) - 1


def stream(seed: int) -> Callable[[], float]:
    """Numbers in [0, 1), the same everywhere for a seed.

    A linear congruential generator, begun at a well mixed place (the finaliser of SplitMix64): it is made in a tenth
    of the time of a `random.Random`, and a schedule makes several.
    """
    state = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    state ^= state >> 31

    def draw() -> float:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
        return (state >> 11) * 1.1102230246251565e-16

    return draw
