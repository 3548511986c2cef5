"""Protocols of client libraries: performing requests, lending transactions, and listening for settled keys."""

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
    """`Executor` for an async client library."""

    def __call__(self, request: Any, /) -> Awaitable[Any]: ...


class OpenTransaction(Protocol[T_co]):
    """A connection of the boundary's own for one transaction: the handler's object, and the executor."""

    @property
    def handle(self) -> Any:
        """The connection or session that the handler uses."""
        ...

    @property
    def execute(self) -> T_co:
        """Performs requests in the transaction."""
        ...


@runtime_checkable
class AfterCommit(Protocol):
    """An open transaction with work to do after its commit, such as hooks that the user registered in it."""

    def after_commit(self) -> None:
        """Run the hooks. Called after the record is written; errors reach the user, and the record stays as it is."""
        ...


@runtime_checkable
class Flushing(Protocol):
    """An executor on a session, which may buffer changes until it is flushed."""

    def flush(self) -> None:
        """Send the buffered changes, so that their rows are locked."""
        ...


@runtime_checkable
class AsyncFlushing(Protocol):
    """`Flushing` for async code."""

    async def aflush(self) -> None:
        """Send the buffered changes."""
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
    """A sync or async client that receives notices from its server beside answers."""

    heard: Callable[[Finding], None]
    """Called with each notice; set by the backend that uses the client."""


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
    """Receives the store's notifications of settled keys. One may be missed, because waiting also polls."""

    def listen(self, key: bytes) -> None:
        """Subscribe to ``key``. Returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Unsubscribe from ``key``."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class AsyncListener(Protocol):
    """`Listener` for async code, where listening never waits."""

    def listen(self, key: bytes) -> None:
        """Subscribe to ``key``. Returns at once, and raises nothing."""
        ...

    def ignore(self, key: bytes) -> None:
        """Unsubscribe from ``key``."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...

    def abandon(self) -> None:
        """Close the connection without the loop, which has been closed."""
        ...
