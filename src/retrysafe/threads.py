"""A thread of one's own for coroutines to work in.

An event loop's default executor is not for what ends a wait, as a commit that releases a lock does, or shows that
somebody is alive: handlers may fill it, and wait there for just that.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

from retrysafe.cancellation import returned, run_to_completion
from retrysafe.locks import ProcessLock

T = TypeVar("T")
_Calls: TypeAlias = "SimpleQueue[Callable[[], None] | None]"


class OwnThread:
    """A thread that does one call after the other. It begins with the first one, in each process.

    Several event loops may call it, and end it, at the same time.

    Arguments:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = ProcessLock()
        self._thread: Thread | None = None
        self._end: finalize[[Any], OwnThread] | None = None
        """What ends the thread when this is gone."""
        self._calls: _Calls = SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Do it there, and return its result. Who is cancelled meanwhile waits for its end: it uses what is theirs."""
        done, cancelled = await run_to_completion(self.submit(work))
        if cancelled is not None:
            raise cancelled
        return done

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done there, for an event loop, and to its end, also when nobody waits for it any more.

        Raises `RuntimeError` in the thread itself, which would wait for itself.
        """
        loop = get_running_loop()
        if getattr(_here, "turn", None) is self._turn:
            raise RuntimeError(f"{self._name} was given work from within its own")
        done: Future[T] = loop.create_future()
        with self._turn.mine:
            self._begun().put(partial(_do, loop, done, work))
        return done

    def end(self) -> None:
        """Let the thread end behind what it has to do; the next call begins another one, which waits for that."""
        with self._turn.mine:
            if self._end is not None:
                self._end()
                self._end = None

    def _begun(self) -> _Calls:
        before = self._thread
        is_gone = before is None or not before.is_alive()  # also in a child, which has no threads of its parent
        if self._end is None or is_gone:
            if self._end is not None:
                self._end.detach()
            calls: _Calls = SimpleQueue()
            thread = Thread(target=_work, args=[calls, before, self._turn], name=self._name, daemon=True)
            end: finalize[[Any], OwnThread] = finalize(self, calls.put, None)
            try:
                thread.start()
            except BaseException:  # a signal handler's too: then the thread may have begun, and ends at once
                end()
                raise
            self._calls, self._thread, self._end = calls, thread, end
        return self._calls


_here = threading.local()
"""``turn``: of whom this thread is."""


def _work(calls: _Calls, before: Thread | None, turn: ProcessLock) -> None:
    _here.turn = turn
    if before is not None:
        before.join()
        del before
    while (call := calls.get()) is not None:
        call()
        del call  # with what it has raised, and the frames of who waits for it


def _do(loop: AbstractEventLoop, done: Future[T], work: Callable[[], T]) -> None:
    told: Callable[[], None]
    try:
        told = partial(done.set_result, returned(work))
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
        told = partial(done.set_exception, error)
    with suppress(RuntimeError):  # the loop was closed: nobody is waiting any more
        loop.call_soon_threadsafe(_tell, done, told)


def _tell(done: Future[Any], told: Callable[[], None]) -> None:
    if not done.done():
        told()
