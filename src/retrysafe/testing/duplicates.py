"""Simultaneous duplicates: copies of one operation that begin together, on threads or as tasks of one loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable, iscoroutine
from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.errors import ConfigurationError

T = TypeVar("T")
STRAGGLER = 30.0
"""Seconds within which every copy has come to the start."""


class Outcome(NamedTuple, Generic[T]):
    """What one call came to: its answer, or the error that it raised."""

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
    """Call once."""
    try:
        answer = operation()
    except Exception as error:  # noqa: BLE001 - it is what the call came to
        return Outcome(None, error)
    refuse_coroutine(answer)
    return Outcome(answer, None)


async def aoutcome_of(operation: Callable[[], Awaitable[T]]) -> Outcome[T]:
    """Await once."""
    try:
        return Outcome(await operation(), None)
    except Exception as error:  # noqa: BLE001 - it is what the call came to
        return Outcome(None, error)


def refuse_coroutine(answer: Any) -> None:
    """An answer that nobody awaits has done nothing: every assertion about it would be vain."""
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
