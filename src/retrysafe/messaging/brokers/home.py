"""The owner of a consumer or publisher: the process and the event loop that first used it, until it is closed.

Its connections, and what waits for them, are those of an event loop, and what it has received is in that loop's hands.
On another one clients fail in ways that name no cause; in a process that was forked they share sockets with the parent,
and a consumer would hand out what its parent has in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from retrysafe import runtime
from retrysafe.cancellation import close_completely, run_to_completion
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.messages import PublishResult, PublishStatus
from retrysafe.runtime import new_lock

T = TypeVar("T")
_Method: TypeAlias = Callable[..., Awaitable[Any]]

GRACE = 1.0
"""Seconds for which who closes a publisher waits for what it is publishing."""


def _same(argument: Any) -> Any:
    return argument


def of_one_loop(
    *, follows: bool = False, moves: bool = False, anew: Callable[[Any], Any] = _same
) -> Callable[[type[T]], type[T]]:
    """Let the consumers or publishers of a class be used where they belong, and nowhere else.

    Elsewhere their methods raise `ConfigurationError` before they do anything, and ``aclose`` returns at once. One that
    was closed begins anew with the next `receive` or `publish`, on whichever event loop and in whichever process, from
    the arguments that it was made with. Until then ``lag`` knows nothing, and ``ack`` and ``give_back`` do nothing: the
    broker hands out again what was not settled. When it is closed, a `receive` that is under way returns ``[]``, and a
    `publish` says of each message that it may have been published, unless it ends within `GRACE`. What has begun to be
    closed is closed to its end, although whoever waits for that is cancelled, also by the end of `asyncio.run`.

    Arguments:
        follows: whether it begins anew on another event loop, too, once that of before is closed: for publishers. A
            consumer that was not closed has messages in hand, for which its broker would wait.
        moves: whether it comes by itself to another event loop, once that of before is closed, and to another process:
            then nothing is begun anew for it.
        anew: what each argument is replaced by when it begins anew, such as a client that has connections.
    """

    def kept(kind: type[T]) -> type[T]:
        made: Any = kind
        begin = made.__init__

        @wraps(begin)
        def made_once(self: Any, *arguments: Any, **options: Any) -> None:
            arguments, options = tuple(map(_lasting, arguments)), {name: _lasting(one) for name, one in options.items()}

            def again() -> None:
                given = {name: anew(value) for name, value in options.items()}
                begin(self, *map(anew, arguments), **given)

            begin(self, *arguments, **options)
            self._home = _Home(type(self).__name__, again, follows=follows, moves=moves)

        made.__init__ = made_once
        for name, at_home in _AT_HOME.items():
            if hasattr(kind, name):
                setattr(kind, name, at_home(getattr(kind, name)))
        return kind

    return kept


def _lasting(argument: Any) -> Any:
    """Return an argument that can be read again."""
    return tuple(argument) if isinstance(argument, Iterator) else argument


class _Call(NamedTuple):
    """A call that is under way when its object may be closed."""

    ended: asyncio.Event
    grace: float
    """Seconds that it has left then."""


class _Home:
    """The place of one object."""

    def __init__(self, what: str, begin: Callable[[], None], *, follows: bool, moves: bool) -> None:
        self._what, self._begin = what, begin
        self._follows, self._moves = follows, moves
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False
        """True if it was closed, or is being closed, and has not begun anew."""
        self._closing: asyncio.Task[None] | None = None
        """The task that closes it, or has closed it."""
        self._under_way: dict[asyncio.Timeout, _Call] = {}
        """The calls that are under way, by what ends each of them."""
        self._coming = new_lock()
        _everywhere.add(self)

    @property
    def has_connections(self) -> bool:
        """True if it may have some that a child must leave alone."""
        return self._loop is not None and not self._moves

    async def enter(self) -> None:
        """Come to this process and event loop. Raises `ConfigurationError` when the object belongs to others."""
        while (closing := self._being_closed_here()) is not None:
            await asyncio.wait([closing])
        with self._coming:
            if self._may_come() or (self.is_closed and not self._is_being_closed()):
                self._begin_anew()
            self.require()
            self._process, self._loop, self.is_closed = runtime.pid, asyncio.get_running_loop(), False

    def require(self) -> None:
        """Raise `ConfigurationError` elsewhere."""
        if self._is_here() or self._may_come():
            return
        if self._process != runtime.pid:
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

    async def until_closed(self, call: Awaitable[T], otherwise: Callable[[], T], grace: float = 0.0) -> T:
        """The result of a call; ``otherwise`` when the object is closed meanwhile, and it does not end in time."""
        ending, ended = asyncio.timeout(None), asyncio.Event()
        self._under_way[ending] = _Call(ended, grace)
        try:
            async with ending:
                return await call
        except TimeoutError:
            if not ending.expired():
                raise
            return otherwise()
        finally:
            self._under_way.pop(ending, None)
            ended.set()

    async def close(self, aclose: Callable[[], Awaitable[None]]) -> None:
        """Close what can be closed here, once, whoever else closes it at the same time."""
        closing = self._being_closed_here()
        if closing is None:
            if not self._is_here():
                if not (self._moves and self._may_come()):
                    return
                self._under_way = {}  # they have ended with their event loop
            self._process, self._loop, self.is_closed = runtime.pid, asyncio.get_running_loop(), True
            begun = asyncio.get_running_loop().create_future()
            closing = self._closing = asyncio.create_task(self._close_completely(aclose, begun))
            closing.add_done_callback(lambda _: None if begun.done() else begun.set_result(False))
            has_begun, cancelled = await run_to_completion(begun)
            if not has_begun:  # asyncio.run has ended before its first step
                await close_completely(self._close(aclose))
            if cancelled is not None:
                raise cancelled
        await asyncio.shield(closing)

    async def _close_completely(self, aclose: Callable[[], Awaitable[None]], begun: asyncio.Future[bool]) -> None:
        begun.set_result(True)
        await close_completely(self._close(aclose))

    async def _close(self, aclose: Callable[[], Awaitable[None]]) -> None:
        now = asyncio.get_running_loop().time()
        for ending, call in self._under_way.items():
            if not ending.expired():
                ending.reschedule(now + call.grace)
        for call in list(self._under_way.values()):
            await call.ended.wait()
        await aclose()

    def _begin_anew(self) -> None:
        self._loop, self._closing, self._under_way = None, None, {}
        if not self._moves:
            self._begin()

    def _is_being_closed(self) -> bool:
        return (
            self._closing is not None
            and not self._closing.done()
            and self._process == runtime.pid
            and not self._has_ended()
        )

    def _being_closed_here(self) -> asyncio.Task[None] | None:
        return self._closing if self._is_being_closed() and self._is_here() else None

    def _is_here(self) -> bool:
        """Tell whether this is where it belongs, if anywhere."""
        return self._loop is None or (self._process == runtime.pid and self._loop is asyncio.get_running_loop())

    def _may_come(self) -> bool:
        """Tell whether it may come here from where it was, although it was not closed there."""
        if self._moves and self._process != runtime.pid:
            return True
        return (self._follows or self._moves) and self._has_ended()

    def _has_ended(self) -> bool:
        """Tell whether its event loop is closed, and was this process's."""
        return self._process == runtime.pid and self._loop is not None and self._loop.is_closed()


_everywhere: WeakSet[_Home] = WeakSet()


def _keep() -> None:
    """In a child, keep what is its parent's: clients that are collected say so to their broker, by the same socket."""
    runtime.inherit(*(home for home in _everywhere if home.has_connections))


runtime.in_child(_keep)


def _receiving(method: _Method) -> _Method:
    @wraps(method)
    async def received(self: Any, limit: int, wait: float, /) -> Any:
        await self._home.enter()
        return await self._home.until_closed(method(self, limit, wait), list)

    return received


def _publishing(method: _Method) -> _Method:
    @wraps(method)
    async def published(self: Any, envelopes: Sequence[Any], /) -> Any:
        def cut_off() -> list[PublishResult]:
            error = "The publisher was closed while it published: the message may have been published."
            return [PublishResult(PublishStatus.UNKNOWN, error)] * len(envelopes)

        await self._home.enter()
        return await self._home.until_closed(method(self, envelopes), cut_off, GRACE)

    return published


def _telling(method: _Method) -> _Method:
    @wraps(method)
    async def told(self: Any) -> Any:
        if self._home.is_closed:
            return {}
        await self._home.enter()
        return await self._home.until_closed(method(self), dict)

    return told


def _settling(method: _Method) -> _Method:
    @wraps(method)
    async def settled(self: Any, *deliveries: Any) -> None:
        if not self._home.is_closed:
            self._home.require()
            await method(self, *deliveries)

    return settled


def _closing(method: _Method) -> _Method:
    @wraps(method)
    async def closed(self: Any) -> None:
        await self._home.close(partial(method, self))

    return closed


_AT_HOME: dict[str, Callable[[_Method], _Method]] = {
    "receive": _receiving,
    "publish": _publishing,
    "lag": _telling,
    "ack": _settling,
    "give_back": _settling,
    "aclose": _closing,
}
"""The replacement of each method."""
