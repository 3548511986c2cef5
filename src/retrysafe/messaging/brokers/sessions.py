"""The base of consumers and publishers: one session with a broker at a time.

A session is an object per connection, or per use until `aclose`, and never used again. Its connections belong to an
event loop, and what it has received is in that loop's hands. On another loop clients fail in ways that name no cause;
in a forked process they share sockets with the parent, and a consumer would hand out what its parent has in hand. So
there `ConfigurationError` is raised before anything is done, until the session is closed where it was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

from retrysafe import runtime
from retrysafe.cancellation import close_completely
from retrysafe.errors import ConfigurationError

T = TypeVar("T")


class ClosableSession(Protocol):
    """An opened session."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=ClosableSession)


class _CallUnderWay(NamedTuple):
    """A call in progress, which ends when its session is closed."""

    ended: asyncio.Event
    grace: float
    """Seconds that it may then still take."""


class SessionOwner(Generic[S]):
    """Opens a session when it is first used, and another one after `aclose`, on any event loop.

    Arguments:
        new_session: makes a session that is not connected yet.
    """

    _ends_with_loop: ClassVar[bool] = False
    """True if a session is given up with its closed event loop: for publishers.

    A consumer that was not closed has messages in hand, for which its broker would wait.
    """

    def __init__(self, new_session: Callable[[], S]) -> None:
        self._new_session = new_session
        self._session: S | None = None
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Timeout, _CallUnderWay] = {}
        """The calls in progress, by the timeout that ends each."""

    async def aclose(self) -> None:
        """Close the session. Elsewhere than where it was opened, this does nothing. The next use opens another one.

        A `receive` in progress returns no messages; a `publish` in progress has a second to end. A cancelled caller
        does not stop the close.
        """
        if (closing := self._closing_here()) is None:
            session = self._session
            if session is None or not self._is_here():
                return
            self._session = None
            closing = self._closing = asyncio.create_task(close_completely(self._close(session)))
        await asyncio.shield(closing)

    async def _enter(self) -> S:
        """Return the session of this process and event loop, or make one.

        Raises `ConfigurationError` when the session is elsewhere.
        """
        while (closing := self._closing_here()) is not None:
            await asyncio.wait([closing])
        return self._session_here() or self._begin_here()

    def _session_here(self) -> S | None:
        """Return the session, if there is one here. Raises `ConfigurationError` when it is elsewhere."""
        if self._session is None or self._is_here():
            return self._session
        assert self._loop is not None
        if self._process != runtime.pid:
            raise ConfigurationError(
                f"This {type(self).__name__} was used in another process before a fork: its connections, and what it "
                "has in hand, are that process's. Nothing was handed out, settled or published here. Make another one "
                "in the process that uses it, after the fork."
            )
        if self._ends_with_loop and self._loop.is_closed():
            return None
        raise ConfigurationError(
            f"This {type(self).__name__} was used on another event loop, to which its connections, and what it has in "
            "hand, belong. Nothing was handed out, settled or published on this one. Use it in one asyncio.run for "
            "all of its life, close it (await aclose()) in the loop that has used it, or make another one for each "
            "loop."
        )

    def _begin_here(self) -> S:
        self._process, self._loop, self._calls = runtime.pid, asyncio.get_running_loop(), {}
        return self._make_session()

    def _make_session(self) -> S:
        session = self._session = self._new_session()
        _sessions.add(session)
        return session

    async def _until_closed(self, call: Awaitable[T], otherwise: Callable[[], T], grace: float = 0.0) -> T:
        """Return the result of a call, or ``otherwise()`` if the session is closed first and the grace is over."""
        ending, ended = asyncio.timeout(None), asyncio.Event()
        self._calls[ending] = _CallUnderWay(ended, grace)
        try:
            async with ending:
                return await call
        except TimeoutError:
            if not ending.expired():
                raise
            return otherwise()
        finally:
            self._calls.pop(ending, None)
            ended.set()

    async def _close(self, session: S) -> None:
        now = asyncio.get_running_loop().time()
        for ending, call in self._calls.items():
            if not ending.expired():
                ending.reschedule(now + call.grace)
        for call in list(self._calls.values()):
            await call.ended.wait()
        await self._hang_up(session)

    async def _hang_up(self, session: S) -> None:
        await session.close()

    def _is_here(self) -> bool:
        return self._process == runtime.pid and self._loop is asyncio.get_running_loop()

    def _closing_here(self) -> asyncio.Task[None] | None:
        return self._closing if self._closing is not None and self._is_here() and not self._closing.done() else None


_sessions: WeakSet[Any] = WeakSet()
# Clients that are collected in a child tell their broker so, by the socket of its parent.
runtime.in_child(lambda: runtime.inherit(*_sessions))
