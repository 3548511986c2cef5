"""Publishers for event loops, in sync code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import AsyncPublisher
from retrysafe.protocol.messages import Envelope, PublishResult
from retrysafe.runtime import PerProcess

T = TypeVar("T")
_PATIENCE = 5.0
"""Seconds for which the end waits for the broker, and then for what it has cancelled."""
_CLOSED = "The publisher was closed meanwhile: whether the broker has the messages is unknown."


class SyncPublisher:
    """An `AsyncPublisher` as a `Publisher`: an event loop in a thread of its own publishes.

    For sync relays, as in a Django project, to the brokers whose publishers are for event loops::

        relay = Relay("default", SyncPublisher(lambda: RabbitMQPublisher(url)))

    Thread and publisher are made when they are first needed, once for all threads, and made anew in a forked process.

    Arguments:
        make: makes the publisher; it must not connect yet. A function, so that each process has a publisher of its own.
    """

    def __init__(self, make: Callable[[], AsyncPublisher]) -> None:
        self._working = PerProcess(lambda: _Working(make()))

    def __getattr__(self, name: str) -> Any:
        """Pass on the attributes that only some publishers have."""
        if name not in ("destination", "by_topic", "broker_address"):
            raise AttributeError(name)
        return getattr(self._working().publisher, name)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order.

        Raises `ConnectionError` when the publisher is closed meanwhile: what became of the messages is unknown then.
        """
        working = self._working()
        return working.call(lambda: working.publisher.publish(envelopes))

    def close(self) -> None:
        """Close the connection, and end the thread. What other threads publish meanwhile ends with an error.

        A broker that does not let go of the connection is left after five seconds.
        """
        if (working := self._working.pop()) is not None:
            working.close()


class _Working:
    """A publisher, and an event loop in a thread once there is something to publish."""

    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def __init__(self, publisher: AsyncPublisher) -> None:
        self.publisher = publisher
        self._lock = threading.Lock()
        self._begun: set[Future[Any]] = set()
        self._ended = False

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
        """The result of work on the loop; a caller that is interrupted, or waits no longer, cancels it."""
        future = self._begin(work)
        try:
            return future.result(seconds)
        except CancelledError:
            raise ConnectionError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the publisher, cancel what has not ended, and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return  # nothing was published here
        try:
            with suppress(TimeoutError):
                self.call(self.publisher.aclose, _PATIENCE)
        finally:
            with self._lock:
                self._ended = True
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_PATIENCE)
            for future in self._begun.copy():  # of work that is not to be cancelled: no result would ever come
                future.cancel()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        if threading.current_thread() is self._thread:
            raise ConfigurationError(
                "SyncPublisher was called on the event loop of its own publisher, which would wait for itself: call "
                "the publisher there, and await it."
            )
        with self._lock:
            if self._loop is None:
                ready: Future[asyncio.AbstractEventLoop] = Future()
                thread = threading.Thread(target=_run, args=(ready,), name="retrysafe-publisher", daemon=True)
                thread.start()
                self._thread, self._loop = thread, ready.result()
            if self._ended or self._loop.is_closed():
                raise ConnectionError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future


def _run(ready: Future[asyncio.AbstractEventLoop]) -> None:
    with suppress(SystemExit, KeyboardInterrupt), asyncio.Runner() as runner:  # the waiter for the work is told
        loop = runner.get_loop()
        ready.set_result(loop)
        loop.run_forever()
