"""Publishers for event loops, in sync code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from retrysafe.messaging.brokers.base import AsyncPublisher
from retrysafe.protocol.messages import Envelope, PublishResult

T = TypeVar("T")


class SyncPublisher:
    """An `AsyncPublisher` as a `Publisher`: an event loop in a thread of its own publishes.

    For sync relays, as in a Django project, to the brokers whose publishers are for event loops::

        relay = Relay("default", SyncPublisher(lambda: RabbitMQPublisher(url)))

    Thread and publisher are made when they are first needed, and made anew in a forked process.

    Arguments:
        make: makes the publisher; it must not connect yet. A function, so that each process has a publisher of its own.
    """

    def __init__(self, make: Callable[[], AsyncPublisher]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._process = 0
        self._publisher: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        """What only some publishers have: ``destination`` and ``by_topic``."""
        if name not in ("destination", "by_topic"):
            raise AttributeError(name)
        return getattr(self._made(), name)

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish messages of different lanes; return the result of each, in the same order."""
        return self._done(self._made().publish(envelopes))

    def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._process != os.getpid() or self._thread is None or self._loop is None:
            return  # nothing was published here
        try:
            self._done(self._publisher.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._publisher = self._loop = self._thread = None

    def _made(self) -> Any:
        if self._process != os.getpid():
            # a forked process has neither the thread nor, for sure, a lock that is free
            self._process, self._lock = os.getpid(), threading.Lock()
            self._publisher = self._loop = self._thread = None
        if self._publisher is None:
            self._publisher = self._make()
        return self._publisher

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the loop; a caller that is interrupted cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="retrysafe-publisher", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
