"""Work that must come to its end although its caller is cancelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import CancelledError, Future, Task
    from concurrent.futures import Executor

R = TypeVar("R")

CLOSING = 5.0
"""Seconds that a closing still has once whoever waits for it is cancelled."""


def is_cancelled() -> bool:
    """Whether the task that asks is cancelled: another task, or a future that it awaits, may be what was."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop is running in this thread
        return False
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Whether it is an error, or the cancellation of something that was awaited and not of the task that asks."""
    if isinstance(error, Exception):
        return True
    import asyncio

    return isinstance(error, asyncio.CancelledError) and not is_cancelled()


async def run_to_completion(
    work: Coroutine[Any, Any, R] | Future[R], *, at_exit: bool = False, patience: float | None = None
) -> tuple[R, CancelledError | None]:
    """Run ``work`` to its end in a task of its own; return its result and the first cancellation, if any.

    Cancellation arrives in two ways: `Task.cancel` once per call, which the loop below survives, and
    anyio's cancel scopes again at every await, which its shield stops from the first one on. The caller
    decides what to do with the result and must raise the cancellation afterwards; it is never taken back here. It lets
    ``work`` go on for ``patience`` seconds; then that is cancelled, and waited for.

    `asyncio.run` cancels every task that it knows, and waits for them, before it returns. The caller's is one of them;
    that of ``work`` is too, unless ``at_exit``: for work whose waits are short, since nothing else ends them. What a
    thread does is waited for as a future, which nobody can cancel.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        if at_exit:
            unlisted(task)
        cancelled = await _ended_or_cancelled(task)
        if cancelled is not None:
            late = None if patience is None else task.get_loop().call_later(patience, task.cancel)
            with _shield():
                while not task.done():
                    await _ended_or_cancelled(task)
            if late is not None:
                late.cancel()
    except BaseException:  # of a signal handler: nobody waits for the task any more
        if at_exit and not task.done():
            asyncio.tasks._register_task(task)
        raise
    if cancelled is not None:
        if task.cancelled():
            raise cancelled
        if (failure := task.exception()) is not None:
            raise cancelled from failure
    return task.result(), cancelled


async def close_completely(closing: Coroutine[Any, Any, None]) -> None:
    """Run ``closing`` to its end, also when `asyncio.run` ends meanwhile; a cancellation goes on afterwards."""
    _, cancelled = await run_to_completion(closing, at_exit=True, patience=CLOSING)
    if cancelled is not None:
        raise cancelled


def unlisted(task: Task[R]) -> Task[R]:
    """The task, which the end of `asyncio.run` does not cancel from now on: the caller waits for its end.

    See https://docs.python.org/3/library/asyncio-extending.html, "Task lifetime support".
    """
    import asyncio

    asyncio.tasks._unregister_task(task)
    return task


async def run_in_thread(work: Callable[[], R], threads: Executor | None = None) -> tuple[R, CancelledError | None]:
    """Do sync work in a thread, by default one of the loop's executor, in the caller's context and to its end.

    Returns its result and the first cancellation of the caller, which must be raised.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    done = loop.run_in_executor(threads, copy_context().run, partial(returned, work))
    return await run_to_completion(done)


def returned(work: Callable[[], R]) -> R:
    """What it returns, for a future, which can hold no `StopIteration`: a `RuntimeError` takes its place (PEP 479)."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("what was done in a thread raised StopIteration") from error


async def _ended_or_cancelled(task: Future[Any]) -> CancelledError | None:
    """Wait for the end of ``task``; a cancellation of the caller ends the wait, not the task, and is returned."""
    import asyncio

    ended = task.get_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError as error:
        return error
    finally:
        task.remove_done_callback(end)
    return None


def _shield() -> AbstractContextManager[Any]:
    """anyio's shield, if the program uses anyio at all."""
    anyio = sys.modules.get("anyio")
    shield: AbstractContextManager[Any] = nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    return shield
