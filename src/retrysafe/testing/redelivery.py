"""Messages as brokers, webhooks and queues deliver them: each at least once, some again, and perhaps out of order."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import TypeVar

from retrysafe.errors import ConfigurationError

T = TypeVar("T")
MOST = 4
"""How often one message is delivered at the most."""


def redelivered(
    messages: Iterable[T], *, seed: int | str | Random, chance: float = 0.3, out_of_order: bool = False
) -> list[T]:
    """The deliveries of these messages: every one of them at least once, and at least one of them again.

    Arguments:
        messages: what is to be delivered.
        seed: the same seed gives the same deliveries.
        chance: how likely a message is delivered once more, and then once more. 0: never.
        out_of_order: without it, first deliveries keep the order of the messages, and only what is delivered again
            comes late, anywhere after its first delivery, as when an acknowledgement was lost. With it, any order.

    Raises `ConfigurationError` when ``chance`` is not from 0 to below 1.
    """
    if not 0 <= chance < 1:
        raise ConfigurationError(f"chance={chance!r}: a probability from 0 to below 1.")
    random = seed if isinstance(seed, Random) else Random(seed)
    originals = list(messages)
    times = [_times(random, chance) for _ in originals]
    if originals and chance and max(times) == 1:
        times[random.randrange(len(times))] = 2
    placed: list[tuple[float, int, T]] = []
    for position, (message, count) in enumerate(zip(originals, times, strict=True)):
        first = random.uniform(0, len(originals)) if out_of_order else float(position)
        again = [random.uniform(first, len(originals)) for _ in range(count - 1)]
        placed += [(when, position, message) for when in (first, *again)]
    return [message for _, _, message in sorted(placed, key=lambda one: one[:2])]


def _times(random: Random, chance: float) -> int:
    count = 1
    while count < MOST and random.random() < chance:
        count += 1
    return count
