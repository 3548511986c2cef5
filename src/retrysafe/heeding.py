"""Waiting for what a client library of others answers, without losing that the task was cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def heeding(asked: Awaitable[T]) -> T:
    """What was asked; `CancelledError` when the task was cancelled meanwhile, whatever became of it.

    In Python 3.11 ``asyncio.wait_for``, under which redis-py and others wait, loses a cancellation that comes with its
    end: the task would go on, and with it whoever waits for its end.
    """
    import asyncio

    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await asked
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
