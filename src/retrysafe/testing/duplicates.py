"""Duplicates: simultaneous copies of one operation, and messages as brokers deliver them.

Simultaneous copies begin together, on threads or as tasks of one loop. Messages are delivered at least once, some
again, and perhaps out of order.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable, iscoroutine
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError

T = TypeVar("T")
MOST = 4
"""The largest number of deliveries of one message."""


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


STRAGGLER = 30.0
"""Seconds within which every copy has come to the start."""


class Outcome(NamedTuple, Generic[T]):
    """The end of one call: its answer, or the error that it raised."""

    answer: T | None
    error: BaseException | None

    def __str__(self) -> str:
        return f"answered {self.answer!r}" if self.error is None else f"raised {self.error_line}"

    @property
    def error_line(self) -> str:
        """The error in one line."""
        first = str(self.error).partition("\n")[0]
        return f"{type(self.error).__name__}: {first}" if first else type(self.error).__name__


def concurrently(operation: Callable[[], T], copies: int = 8) -> list[Outcome[T]]:
    """Call ``operation`` on so many threads, which begin together; return what each call came to.

    Raises `ConfigurationError` for a coroutine function, which `aconcurrently` calls.
    """
    start = threading.Barrier(_at_least_two(copies))

    def one(number: int) -> Outcome[T]:
        start.wait(STRAGGLER)
        return outcome_of(operation)

    with ThreadPoolExecutor(copies, "duplicate") as threads:
        contexts = [contextvars.copy_context() for _ in range(copies)]
        running = [threads.submit(context.run, one, number) for number, context in enumerate(contexts)]
        return [done.result() for done in running]


async def aconcurrently(operation: Callable[[], Awaitable[T]], copies: int = 8) -> list[Outcome[T]]:
    """Await ``operation`` in so many tasks of the running loop; return what each came to."""
    return list(await asyncio.gather(*(aoutcome_of(operation) for _ in range(_at_least_two(copies)))))


def outcome_of(operation: Callable[[], T]) -> Outcome[T]:
    try:
        answer = operation()
    except Exception as error:  # noqa: BLE001 - it is what the call came to
        return Outcome(None, error)
    refuse_coroutine(answer)
    return Outcome(answer, None)


async def aoutcome_of(operation: Callable[[], Awaitable[T]]) -> Outcome[T]:
    try:
        return Outcome(await operation(), None)
    except Exception as error:  # noqa: BLE001 - it is what the call came to
        return Outcome(None, error)


def refuse_coroutine(answer: Any) -> None:
    """An answer that is not awaited has done nothing: every assertion about it would be vain."""
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise ConfigurationError(
            "The operation returned an awaitable, so nothing has run. Await aassert_once() or aconcurrently() instead."
        )


def _at_least_two(copies: int) -> int:
    if copies < 2:
        raise ConfigurationError(f"copies={copies!r}: duplicates are at least 2.")
    return copies
