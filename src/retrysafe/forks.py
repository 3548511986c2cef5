"""What a fork waits for: uses of what a child cannot have while another thread of its parent is at it.

A child has one thread. What another thread of its parent had begun, an import or a transaction, comes to no end in it:
its lock stays locked. So while a fork is under way other threads begin no such use, and it waits for those that have
begun, for `PATIENCE` seconds at most. Then what is idle is closed, and the process forks. Forks of several threads take
turns.

A signal handler's exception may end any hook of a fork between two steps: Python prints it, and goes on to fork. So the
gate is open again after a while whatever happened, and a child finds out by itself that it is one.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its lock would be held while a fork waits here, were it imported later
import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from weakref import ref

PATIENCE = 1.0
"""Seconds for which a fork waits for what other threads have begun."""

_uses: set[ref[Use]] = set()
_forking: dict[int, _Fork] = {}
"""By thread, in their turn."""
_before: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []
_process = os.getpid()


class Use:
    """Something that a fork waits for, for ``with``. When this is gone it has ended, whatever happened to its code."""

    __slots__ = ("__weakref__", "has_begun", "is_elsewhere", "mine", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.mine: ref[Use] = ref(self)
        self.has_begun = False
        """Whether it is more than one that waits for a fork."""
        self.is_elsewhere = False
        """Whether another thread is at work in it now, for its own: then a fork in that waits for it, too."""

    def __enter__(self) -> object:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> None:
        """Begin. Beside a fork it waits for that, unless its thread has begun another use already."""
        come_to_this_process()
        _uses.add(self.mine)  # before it looks: so a fork sees this use, or this sees the fork
        if _forking:
            self._wait_for_forks()
        self.has_begun = True

    def end(self) -> None:
        """End."""
        _uses.discard(self.mine)

    def _wait_for_forks(self) -> None:
        until = time.monotonic() + PATIENCE
        while (fork := _fork_beside(self.thread)) is not None:
            _uses.discard(self.mine)
            goes_on = any(use.thread == self.thread for use in begun()) or not fork.is_over_within(_left(until))
            _uses.add(self.mine)
            if goes_on:
                break


class _Fork:
    """A fork that is under way in a thread, and those within it from signal handlers."""

    def __init__(self) -> None:
        self.depth = 1
        self.until = time.monotonic() + 2 * PATIENCE
        self._under_way = threading.Lock()  # an event would wait for itself: the garbage collector uses things, too
        self._under_way.acquire()

    def is_over_within(self, seconds: float) -> bool:
        """Whether it is over, or will be so soon."""
        if not self._under_way.acquire(timeout=seconds):
            return False
        self._under_way.release()
        return True

    def end(self) -> None:
        """Tell those that wait."""
        self._under_way.release()


def register(*, before: Callable[[], None], in_child: Callable[[], None]) -> None:
    """Have something done before each fork, when no other thread is in a use, and in each child, once or again."""
    _before.append(before)
    _in_child.append(in_child)


def begun() -> list[Use]:
    """The uses that are under way; in a child that has not come to itself, those of its parent."""
    return [use for use in _known() if use.has_begun]


def _known() -> list[Use]:
    found: list[Use] = []
    for mine in _uses.copy():
        if (use := mine()) is None:
            _uses.discard(mine)
        else:
            found.append(use)
    return found


def come_to_this_process() -> None:
    """In a child, let go of what is its parent's."""
    if _process != os.getpid():
        _after_in_child()


def prepare_to_keep() -> None:
    """Before a fork: have at hand what `keep_for_ever` needs, which another thread may be importing."""
    import ctypes  # noqa: F401


def keep_for_ever(objects: Iterable[object]) -> None:
    """Let none of these be destroyed in this process, not even at its end."""
    import ctypes

    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _fork_beside(thread: int) -> _Fork | None:
    """A fork that a use of a thread has to wait for."""
    if thread in _forking:
        return None
    for other, fork in _forking.copy().items():
        if time.monotonic() < fork.until:
            return fork
        _forking.pop(other, None)  # nobody has told that it was over
    return None


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _before_fork() -> None:
    me = threading.get_ident()
    if (outer := _forking.get(me)) is not None:
        outer.depth += 1
        return
    _forking[me] = _Fork()
    try:
        until = time.monotonic() + PATIENCE
        while not _may_fork(me) and _left(until):
            time.sleep(0.001)
    finally:
        for prepare in _before:
            prepare()


def _may_fork(me: int) -> bool:
    """Whether it is this thread's turn, and no other is at work in a use."""
    first = next(iter([*_forking]), me)
    return first == me and all(use.thread == me and not use.is_elsewhere for use in _known())


def _after_in_parent() -> None:
    me = threading.get_ident()
    fork = _forking.get(me)
    if fork is None:
        return
    fork.depth -= 1
    if not fork.depth:
        _forking.pop(me, None)
        fork.end()


def _after_in_child() -> None:
    global _process
    for adapt in _in_child:
        adapt()
    _uses.clear()
    _forking.clear()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
