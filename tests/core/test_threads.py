"""A thread of one's own: in turn, to the end, in each process, and gone when nobody needs it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from weakref import finalize

import pytest

from retrysafe.threads import OwnThread
from tests.faults.helpers import until
from tests.tables import each_row

NAME = "retrysafe-test"


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def _join() -> None:
    for thread in _threads():
        thread.join(60)


async def test_calls_are_done_in_their_turn_and_raise_to_who_waits() -> None:
    own, done = OwnThread(NAME), list[int]()

    def fail() -> None:
        raise KeyError("here")

    await asyncio.gather(*(own.run(lambda number=number: done.append(number)) for number in range(100)))
    assert done == list(range(100))
    with pytest.raises(KeyError, match="here"):
        await own.run(fail)
    assert await own.run(threading.current_thread) in _threads()
    own.end()
    _join()


async def test_whoever_is_cancelled_waits_for_what_has_begun() -> None:
    own, begun, may_end, ended = OwnThread(NAME), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    waiting = asyncio.create_task(own.run(work))
    await asyncio.to_thread(begun.wait, 60)
    for _ in range(20):
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()
    own.end()
    _join()


def test_a_loop_that_was_closed_leaves_the_thread_at_work() -> None:
    own, may_end = OwnThread(NAME), threading.Event()

    async def leave() -> None:
        own.submit(lambda: may_end.wait(60))

    asyncio.run(leave())
    may_end.set()
    assert asyncio.run(own.run(lambda: "works")) == "works"
    own.end()
    _join()


def test_a_call_behind_its_end_begins_another_one() -> None:
    own = OwnThread(NAME)

    async def ended() -> threading.Thread:
        thread = await own.run(threading.current_thread)
        own.end()
        return thread

    assert asyncio.run(ended()) is not asyncio.run(ended())
    _join()
    assert _threads() == []


def test_a_call_behind_its_end_waits_for_what_was_to_be_done_before() -> None:
    own, begun, may_end, done = OwnThread(NAME), threading.Event(), threading.Event(), list[str]()

    def slow() -> None:
        begun.set()
        may_end.wait(60)
        done.append("before")

    async def both() -> None:
        first = own.submit(slow)
        await asyncio.to_thread(begun.wait, 60)
        for number in range(3):
            own.end()
            last = own.submit(lambda number=number: done.append(f"behind {number}"))  # type: ignore[misc]
        may_end.set()
        await asyncio.gather(first, last)

    asyncio.run(both())
    assert done == ["before", "behind 0", "behind 1", "behind 2"]
    own.end()
    _join()
    assert _threads() == []


def test_work_within_its_own_work_is_refused() -> None:
    """It waited for itself for ever."""
    own = OwnThread(NAME)

    async def within() -> None:
        with pytest.raises(RuntimeError, match="from within its own"):
            await own.run(lambda: None)

    asyncio.run(own.run(lambda: asyncio.run(within())))
    own.end()
    _join()


@each_row("begun", [False, True])
def test_a_thread_that_cannot_begin_keeps_no_later_one_waiting(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call waited for ever: for the end of a thread that had not begun, or that nobody told to end."""
    own, start = OwnThread(NAME), threading.Thread.start

    def fails(self: threading.Thread) -> None:
        if begun:
            start(self)  # and a signal handler raises
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(threading.Thread, "start", fails)
        asyncio.run(own.run(lambda: None))

    async def later() -> str:
        return await asyncio.wait_for(own.submit(lambda: "works"), 5)

    assert asyncio.run(later()) == "works"
    own.end()
    _join()
    assert _threads() == []


def test_work_within_work_of_before_its_end_is_refused() -> None:
    """Each of both threads waited for the other."""
    own, begun, may_go_on = OwnThread(NAME), threading.Event(), threading.Event()

    async def within() -> None:
        with pytest.raises(RuntimeError, match="from within its own"):
            await own.run(lambda: None)

    def work() -> None:
        begun.set()
        may_go_on.wait(60)
        asyncio.run(within())

    async def both() -> None:
        first = own.submit(work)
        await asyncio.to_thread(begun.wait, 60)
        own.end()
        second = own.submit(lambda: None)
        may_go_on.set()
        await asyncio.gather(first, second)

    asyncio.run(both())
    own.end()
    _join()


def test_a_call_beside_its_end_is_done() -> None:
    own, over = OwnThread(NAME), threading.Event()

    def end() -> None:
        while not over.is_set():
            own.end()

    async def call() -> None:
        for _ in range(2000):
            await asyncio.wait_for(own.run(lambda: None), 60)

    ending, interval = threading.Thread(target=end), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        ending.start()
        asyncio.run(call())
    finally:
        over.set()
        ending.join()
        sys.setswitchinterval(interval)
    own.end()
    _join()
    assert _threads() == []


def test_used_and_ended_many_times_it_keeps_nothing_of_those_before() -> None:
    own = OwnThread(NAME)
    ends = {id(end) for end in finalize._registry}  # type: ignore[attr-defined]
    for _ in range(5):
        asyncio.run(own.run(lambda: None))
        own.end()
    _join()
    assert {id(end) for end in finalize._registry} <= ends  # type: ignore[attr-defined]


def test_it_ends_when_nobody_has_it() -> None:
    """Not even by what its last call has raised, which has the frames of whoever waited for it."""

    def fail() -> None:
        raise KeyError("here")

    async def waited(own: OwnThread) -> None:
        with pytest.raises(KeyError):
            await own.run(fail)

    def gone() -> bool:
        gc.collect()
        return not _threads()

    asyncio.run(waited(OwnThread(NAME)))
    until(gone)


@pytest.mark.slow
def test_a_child_begins_its_own() -> None:
    own = OwnThread(NAME)
    asyncio.run(own.run(lambda: None))
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = asyncio.run(asyncio.wait_for(own.run(lambda: 0), 60))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    own.end()
    _join()
