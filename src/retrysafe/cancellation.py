"""Work that must come to its end although its caller is cancelled."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe import lazy
from retrysafe.runtime import PerProcess

if TYPE_CHECKING:
    from asyncio import CancelledError, Future, Task
    from concurrent.futures import Executor, ThreadPoolExecutor

R = TypeVar("R")

CLOSING = 5.0
"""Seconds that a closing still has once its caller is cancelled."""


def is_cancelled() -> bool:
    """Tell whether the task that asks is cancelled: another task, or a future that it awaits, may be what was."""
    try:
        task = lazy.asyncio.current_task()
    except RuntimeError:  # no event loop is running in this thread
        return False
    return task is not None and task.cancelling() > 0


def is_failure(error: BaseException) -> bool:
    """Tell whether it is an error, or the cancellation of something that was awaited and not of the task that asks."""
    if isinstance(error, Exception):
        return True
    return isinstance(error, lazy.asyncio.CancelledError) and not is_cancelled()


async def run_to_completion(
    work: Coroutine[Any, Any, R] | Future[R], *, patience: float | None = None
) -> tuple[R, CancelledError | None]:
    """Run ``work`` to its end in a task of its own; return its result and the first cancellation, if any.

    Cancellation arrives in two ways: `Task.cancel` once per call, which the loop below survives, and
    anyio's cancel scopes again at every await, which its shield stops from the first one on. The caller
    decides what to do with the result and must raise the cancellation afterwards; it is never taken back here. It lets
    ``work`` go on for ``patience`` seconds; then that is cancelled, and waited for.

    `asyncio.run` cancels every task before it returns, that of ``work`` too: to a store that is a crash. What a thread
    does is waited for as a future, which nothing cancels.
    """
    task = lazy.asyncio.ensure_future(work)
    cancelled = await _await_end(task)
    if cancelled is not None:
        late = None if patience is None else task.get_loop().call_later(patience, task.cancel)
        with _shield():
            while not task.done():
                await _await_end(task)
        if late is not None:
            late.cancel()
    if cancelled is not None:
        if task.cancelled():
            raise cancelled
        if (failure := task.exception()) is not None:
            raise cancelled from failure
    return task.result(), cancelled


async def close_completely(closing: Coroutine[Any, Any, None]) -> None:
    """Run ``closing`` to its end, at most `CLOSING` seconds after a cancellation, which goes on afterwards."""
    _, cancelled = await run_to_completion(closing, patience=CLOSING)
    if cancelled is not None:
        raise cancelled


async def run_in_thread(work: Callable[[], R], threads: Executor | None = None) -> tuple[R, CancelledError | None]:
    """Do sync work in a thread, by default one of the loop's executor, in the caller's context and to its end.

    Returns its result and the first cancellation of the caller, which must be raised.
    """
    loop = lazy.asyncio.get_running_loop()
    done = loop.run_in_executor(threads, copy_context().run, partial(raise_no_stop, work))
    return await run_to_completion(done)


def raise_no_stop(work: Callable[[], R]) -> R:
    """Return the work's value in a form that a future can hold: `StopIteration` becomes a `RuntimeError` (PEP 479)."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("what was done in a thread raised StopIteration") from error


def new_threads(count: int, name: str) -> ThreadPoolExecutor:
    """An executor of so many threads; imported here, since sync programs have no use for it."""
    return lazy.futures.ThreadPoolExecutor(count, name)


class WorkerThread:
    """A thread for blocking calls, one after the other, apart from the loop's executor, which handlers may fill.

    Arguments:
        name: of the thread.
        count: of threads, for so many calls at a time.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._executor = PerProcess(lambda: new_threads(count, name))

    async def run(self, work: Callable[[], R]) -> R:
        """Do it there. If the caller is cancelled, waits for the end of the call, which uses the caller's objects."""
        result, cancelled = await self.run_to_completion(work)
        if cancelled is not None:
            raise cancelled
        return result

    async def run_to_completion(self, work: Callable[[], R]) -> tuple[R, CancelledError | None]:
        """Do it there; return its result and the first cancellation of the caller, which must be raised."""
        return await run_in_thread(work, self._executor())

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Have it done there, to its end, also when the caller waits no longer."""
        return lazy.asyncio.get_running_loop().run_in_executor(self._executor(), raise_no_stop, work)

    def end(self) -> None:
        """Let the thread end behind what it has to do; the next call begins another one."""
        executor = self._executor.pop()
        if executor is not None:
            executor.shutdown(wait=False)


# ---------------------------------------------------------------- Python 3.11's wait_for


def watch_cancellation() -> Callable[[], bool]:
    """A test, for any thread, whether the task that calls this has been cancelled since."""
    task = lazy.asyncio.current_task()
    before = task.cancelling() if task else 0
    return lambda: task is not None and task.cancelling() > before


async def await_shared(task: Task[R], ended: Exception) -> R:
    """The result of a task that others wait for too; raises ``ended`` if another caller has cancelled it."""
    is_cancelled = watch_cancellation()
    try:
        return await lazy.asyncio.shield(task)
    except lazy.asyncio.CancelledError:
        if task.cancelled() and not is_cancelled():
            raise ended from None
        raise


async def reraise_cancellation(call: Awaitable[R]) -> R:
    """The result of ``call``; raises a cancellation that a library has swallowed (``wait_for`` until Python 3.11)."""
    is_cancelled = watch_cancellation()
    try:
        result = await call
    except Exception as error:
        if is_cancelled():
            raise lazy.asyncio.CancelledError from error
        raise
    if is_cancelled():
        raise lazy.asyncio.CancelledError
    return result


async def _await_end(task: Future[Any]) -> CancelledError | None:
    """Wait for the end of ``task``; a cancellation of the caller ends the wait, not the task, and is returned."""
    ended = task.get_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(end)
    try:
        await ended
    except lazy.asyncio.CancelledError as error:
        return error
    finally:
        task.remove_done_callback(end)
    return None


def _shield() -> AbstractContextManager[Any]:
    """anyio's shield, if the program uses anyio at all."""
    anyio = sys.modules.get("anyio")
    shield: AbstractContextManager[Any] = nullcontext() if anyio is None else anyio.CancelScope(shield=True)
    return shield
