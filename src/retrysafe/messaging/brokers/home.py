"""Where a consumer or publisher belongs: in the process and the event loop that first used it, until it is closed.

Its connections, and what waits for them, are those of an event loop, and what it has received is in that loop's hands.
On another one clients fail in ways that name no cause; in a process that was forked they share sockets with the parent,
and a consumer would hand out what its parent has in hand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from retrysafe.errors import ConfigurationError

T = TypeVar("T")
_Method: TypeAlias = Callable[..., Awaitable[Any]]

_OPENING = ("receive", "lag", "publish")
"""What may connect."""
_SETTLING = ("ack", "give_back")
"""What concerns what was handed out here."""


def _same(argument: Any) -> Any:
    return argument


def of_one_loop(
    *, follows: bool = False, in_threads: bool = False, anew: Callable[[Any], Any] = _same
) -> Callable[[type[T]], type[T]]:
    """Let the consumers or publishers of a class be used where they belong, and nowhere else.

    Elsewhere their methods raise `ConfigurationError` before they do anything, and ``aclose`` returns at once. One that
    was closed begins anew on the next event loop, or in the next process, that uses it, from the arguments that it was
    made with; on the same loop it is the closed one that it is.

    Arguments:
        follows: whether it begins anew on another event loop, too, once that of before is closed: for publishers. A
            consumer that was not closed has messages in hand, for which its broker would wait.
        in_threads: whether it works in threads, which do not end with an event loop: then it can be closed from another
            one.
        anew: what each argument is replaced by when it begins anew, such as a client that has connections.
    """

    def kept(kind: type[T]) -> type[T]:
        made: Any = kind
        begin = made.__init__

        @wraps(begin)
        def made_once(self: Any, *arguments: Any, **options: Any) -> None:
            def again() -> None:
                given = {name: anew(value) for name, value in options.items()}
                begin(self, *map(anew, arguments), **given)

            begin(self, *arguments, **options)
            self._home = _Home(type(self).__name__, again, follows=follows, in_threads=in_threads)

        made.__init__ = made_once
        for name in _OPENING:
            if hasattr(kind, name):
                setattr(kind, name, _at_home(getattr(kind, name), _Home.enter))
        for name in _SETTLING:
            if hasattr(kind, name):
                setattr(kind, name, _at_home(getattr(kind, name), _Home.require))
        made.aclose = _closing(made.aclose)
        return kind

    return kept


class _Home:
    """The place of one object."""

    def __init__(self, what: str, begin: Callable[[], None], *, follows: bool, in_threads: bool) -> None:
        self._what, self._begin = what, begin
        self._follows, self._in_threads = follows, in_threads
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def enter(self) -> None:
        """Come to this process and event loop. Raises `ConfigurationError` when the object belongs to others."""
        if not self._is_here():
            if not (self._is_closed or (self._follows and self._has_ended())):
                self.require()
            self._begin()
        self._process, self._loop, self._is_closed = os.getpid(), asyncio.get_running_loop(), False

    def require(self) -> None:
        """Raise `ConfigurationError` elsewhere."""
        if self._is_here():
            return
        if self._process != os.getpid():
            raise ConfigurationError(
                f"This {self._what} was used in another process before a fork: its connections, and what it has in "
                "hand, are that process's. Nothing was handed out, settled or published here. Make another one in the "
                "process that uses it, after the fork."
            )
        raise ConfigurationError(
            f"This {self._what} was used on another event loop, to which its connections, and what it has in hand, "
            "belong. Nothing was handed out, settled or published on this one. Use it in one asyncio.run for all of "
            "its life, close it (await aclose()) in the loop that has used it, or make another one for each loop."
        )

    def leaves(self) -> bool:
        """Whether there is something to close that can be closed here."""
        return self._is_here() or (self._in_threads and not self._is_closed and self._has_ended())

    def left(self) -> None:
        """It is closed."""
        self._is_closed = True

    def _is_here(self) -> bool:
        """Whether this is where it belongs, if anywhere."""
        return self._loop is None or (self._process == os.getpid() and self._loop is asyncio.get_running_loop())

    def _has_ended(self) -> bool:
        """Whether its event loop is closed, and was this process's."""
        return self._process == os.getpid() and self._loop is not None and self._loop.is_closed()


def _at_home(method: _Method, check: Callable[[_Home], None]) -> _Method:
    @wraps(method)
    async def checked(self: Any, *arguments: Any) -> Any:
        check(self._home)
        return await method(self, *arguments)

    return checked


def _closing(method: _Method) -> _Method:
    @wraps(method)
    async def closing(self: Any) -> None:
        if self._home.leaves():
            try:
                await method(self)
            finally:
                self._home.left()

    return closing
