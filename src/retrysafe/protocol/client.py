"""Client libraries: who performs a request, lends a transaction, and hears what a server tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from retrysafe.protocol.records import Finding

T_co = TypeVar("T_co", covariant=True)


class Executor(Protocol):
    """Performs one request on one client library, and returns its answer."""

    def __call__(self, request: Any, /) -> Any: ...


class AsyncExecutor(Protocol):
    """The same for an async client library."""

    def __call__(self, request: Any, /) -> Awaitable[Any]: ...


class OpenTransaction(Protocol[T_co]):
    """A connection of the boundary's own for one transaction: what the handler gets, and the executor."""

    @property
    def handle(self) -> Any:
        """What the handler works with: a connection or a session."""
        ...

    @property
    def execute(self) -> T_co:
        """Performs requests in the transaction."""
        ...


@runtime_checkable
class AfterCommit(Protocol):
    """An open transaction that has something to do after its commit, such as hooks which the user registered in it."""

    def after_commit(self) -> None:
        """Do it. Called once all is recorded; its errors reach the user, and change nothing in the record."""
        ...


@runtime_checkable
class Flushing(Protocol):
    """An executor on a session, which may keep changes back until it is told to send them."""

    def flush(self) -> None:
        """Send them, so that what they lock is locked."""
        ...


@runtime_checkable
class AsyncFlushing(Protocol):
    """The same for async code."""

    async def aflush(self) -> None:
        """Send them."""
        ...


class Client(Executor, Protocol):
    """An executor that owns its connections."""

    def transaction(self) -> AbstractContextManager[OpenTransaction[Executor]]:
        """Lend a connection for one transaction; what is still open at the end is rolled back."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """A client, of either colour, that hears what its server says beside its answers."""

    heard: Callable[[Finding], None]
    """Called with what it heard; set by who uses the client."""


class AsyncClient(AsyncExecutor, Protocol):
    """An async executor that owns its connections."""

    def transaction(self) -> AbstractAsyncContextManager[OpenTransaction[AsyncExecutor]]:
        """Lend a connection for one transaction; what is still open at the end is rolled back."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...

    def abandon(self) -> None:
        """Let every connection go without the loop it belongs to, which has been closed."""
        ...


class Listener(Protocol):
    """Hears from the store that keys were settled elsewhere. What it misses is found by looking again."""

    def listen(self, key: bytes) -> None:
        """Begin to hear of ``key``; returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Hear of ``key`` no more."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class AsyncListener(Protocol):
    """The same on an event loop, where listening never waits either."""

    def listen(self, key: bytes) -> None:
        """Begin to hear of ``key``; returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Hear of ``key`` no more."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...

    def abandon(self) -> None:
        """Hang up without the loop, which has been closed."""
        ...
