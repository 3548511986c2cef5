"""Waiting without losing that the task was cancelled, and without taking another's cancellation for its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def cancelled_since() -> Callable[[], bool]:
    """What tells whether the task that calls this has been cancelled since then. It may be asked in any thread."""
    import asyncio

    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    return lambda: task is not None and task.cancelling() > before


async def shielded(task: asyncio.Task[T], ended: Exception) -> T:
    """The result of a task that others wait for too; ``ended`` is raised when somebody else has cancelled it.

    Its `CancelledError` would tell whoever waits that he himself was cancelled.
    """
    import asyncio

    is_cancelled = cancelled_since()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and not is_cancelled():
            raise ended from None
        raise


async def heeding(asked: Awaitable[T]) -> T:
    """What was asked; `CancelledError` when the task was cancelled meanwhile, whatever became of it.

    In Python 3.11 ``asyncio.wait_for``, under which redis-py and others wait, loses a cancellation that comes with its
    end: the task would go on, and with it whoever waits for its end.
    """
    import asyncio

    is_cancelled = cancelled_since()
    try:
        found = await asked
    except Exception as error:
        if is_cancelled():
            raise asyncio.CancelledError from error
        raise
    if is_cancelled():
        raise asyncio.CancelledError
    return found
