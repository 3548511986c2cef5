"""Work that must come to its end although its caller is cancelled."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import CancelledError

R = TypeVar("R")


async def finish(work: Coroutine[Any, Any, R]) -> tuple[R, CancelledError | None]:
    """Run ``work`` to its end in a task of its own; return its result and the first cancellation, if any.

    Cancellation arrives in two ways: `Task.cancel` once per call, which the loop below survives, and
    anyio's cancel scopes again at every await, which its shield stops. The caller decides what to do
    with the result and must raise the cancellation afterwards; it is never taken back here.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    cancelled: CancelledError | None = None
    with _shield():
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
    if cancelled is not None and not task.cancelled() and (failure := task.exception()) is not None:
        raise cancelled from failure
    return task.result(), cancelled


def _shield() -> AbstractContextManager[Any]:
    """anyio's shield, if the program uses anyio at all."""
    anyio = sys.modules.get("anyio")
    shield: AbstractContextManager[Any] = nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    return shield
