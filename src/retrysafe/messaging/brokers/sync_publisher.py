"""Publishers for event loops, in sync code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from retrysafe import runtime
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import AsyncPublisher
from retrysafe.protocol.messages import Envelope, PublishResult

T = TypeVar("T")


class SyncPublisher:
    """An `AsyncPublisher` as a `Publisher`: an event loop in a thread of its own publishes.

    For sync relays, as in a Django project, to the brokers whose publishers are for event loops::

        relay = Relay("default", SyncPublisher(lambda: RabbitMQPublisher(url)))

    Thread and publisher are made when they are first needed, once for all threads, and made anew in a forked process.

    Arguments:
        make: makes the publisher; it must not connect yet. A function, so that each process has a publisher of its own.
    """

    _publisher: AsyncPublisher | None
    _loop: _Loop | None

    def __init__(self, make: Callable[[], AsyncPublisher]) -> None:
        self._make = make
        self._begin_anew()
        _living.add(self)

    def __getattr__(self, name: str) -> Any:
        """Pass on the attributes that only some publishers have: ``destination`` and ``by_topic``."""
        if name not in ("destination", "by_topic"):
            raise AttributeError(name)
        with self._lock:
            publisher = self._make_publisher()
        return getattr(publisher, name)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order.

        Raises `ConnectionError` when the publisher is closed meanwhile: what became of the messages is unknown then.
        """
        with self._lock:
            publisher = self._make_publisher()
            if self._loop is None or self._loop.ended:
                self._loop = _Loop()
            future = self._loop.begin(lambda: publisher.publish(envelopes))
        return _result(future)

    def close(self) -> None:
        """Close the connection, and end the thread. What other threads publish meanwhile ends with an error.

        A broker that does not let go of the connection is left after five seconds.
        """
        with self._lock:
            publisher, loop = self._publisher, self._loop
            self._publisher = self._loop = None
        if publisher is None or loop is None or loop.ended:
            return  # nothing was published here
        try:
            with suppress(TimeoutError):
                _result(loop.begin(publisher.aclose), _PATIENCE)
        finally:
            loop.end()

    def _make_publisher(self) -> AsyncPublisher:
        if self._publisher is None:
            self._publisher = self._make()
        return self._publisher

    def _begin_anew(self) -> None:
        """Without publisher and thread, as in a forked process, where a lock of before may be held for ever."""
        self._lock = threading.Lock()
        self._publisher = self._loop = None


class _Loop:
    """An event loop in a thread. What was begun on it comes to an end, at the latest with the thread."""

    def __init__(self) -> None:
        self.ended = False
        self._begun: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="retrysafe-publisher", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin work, from any other thread. Raises `ConnectionError` when the loop has ended."""
        if threading.current_thread() is self._thread:
            raise ConfigurationError(
                "SyncPublisher was called on the event loop of its own publisher, which would wait for itself: call "
                "the publisher there, and await it."
            )
        with self._lock:
            if self.ended:
                raise ConnectionError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future

    def end(self) -> None:
        """Cancel what has not ended, and end the thread."""
        with self._lock:
            if not self.ended:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with suppress(SystemExit, KeyboardInterrupt):  # the waiter for the work is told
            self._loop.run_forever()
        with self._lock:
            self.ended = True
        self._loop.run_until_complete(_cancel_rest())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        for future in self._begun.copy():  # of work that is not to be cancelled: no result would ever come
            future.cancel()
        self._loop.close()


async def _cancel_rest() -> None:
    await asyncio.sleep(0)  # the last coroutine becomes a task
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_PATIENCE)


def _result(future: Future[T], seconds: float | None = None) -> T:
    """The result of work on the loop; a caller that is interrupted, or waits no longer, cancels it."""
    try:
        return future.result(seconds)
    except CancelledError:
        raise ConnectionError(_CLOSED) from None
    except BaseException:
        future.cancel()
        raise


def _begin_anew_in_child() -> None:
    for one in list(_living):
        one._begin_anew()


_PATIENCE = 5.0
"""Seconds for which the end waits for the broker, and then for what it has cancelled."""
_CLOSED = "The publisher was closed meanwhile: whether the broker has the messages is unknown."
_living: WeakSet[SyncPublisher] = WeakSet()
runtime.in_child(_begin_anew_in_child)
