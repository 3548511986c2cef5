"""Pub/sub for those who wait: a thread or a task that hears on one connection that keys were settled.

It starts with the first key that is waited for. While it is cut off, waiting keys are found by looking again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from retrysafe.backends.redis.async_client import AsyncMasters, Wire
from retrysafe.backends.redis.client import Masters, Reply
from retrysafe.backends.redis.store import name_of
from retrysafe.cancellation import reraise_cancellation
from retrysafe.errors import StoreUnavailable

M = TypeVar("M")

PAUSE = 0.5
"""Seconds before a listener that was cut off connects again."""
_READ = 60.0
_FAILURES = (RedisError, OSError, StoreUnavailable, ValueError, AttributeError, RuntimeError)
"""Errors of a connection that one thread uses while another one closes it."""


class _ByChannel(Generic[M]):
    """The keys that are listened for, by the names of their channels."""

    def __init__(self, masters: M, heard: Callable[[bytes], None]) -> None:
        self._masters = masters
        self._heard = heard
        self._keys: dict[bytes, bytes] = {}

    def _hear(self, channel: bytes) -> None:
        key = self._keys.get(channel)
        if key is not None:
            self._heard(key)


class RedisListener(_ByChannel[Masters]):
    """A daemon thread with a connection of its own."""

    def __init__(self, masters: Masters, heard: Callable[[bytes], None]) -> None:
        super().__init__(masters, heard)
        self._changing = threading.Lock()
        self._pubsub: Any = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def listen(self, key: bytes) -> None:
        name = name_of(key)
        with self._changing:
            self._keys[name] = key
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="retrysafe-redis-listener", daemon=True)
                self._thread.start()
            elif self._pubsub is not None:
                with suppress(*_FAILURES):
                    self._pubsub.subscribe(name)

    def ignore(self, key: bytes) -> None:
        name = name_of(key)
        with self._changing:
            self._keys.pop(name, None)
            if self._pubsub is not None:
                with suppress(*_FAILURES):
                    self._pubsub.unsubscribe(name)

    def close(self) -> None:
        self._closed.set()
        with self._changing:
            thread, pubsub = self._thread, self._pubsub
        connection = getattr(pubsub, "connection", None)
        if connection is not None:
            with suppress(*_FAILURES):
                connection.disconnect()  # wakes the thread up
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._masters.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear_until_it_breaks()
            except Exception:  # noqa: BLE001 - what befalls a connection that is closed by another thread has many names
                self._closed.wait(PAUSE)
            finally:
                with self._changing:
                    pubsub, self._pubsub = self._pubsub, None
                if pubsub is not None:
                    with suppress(*_FAILURES):
                        pubsub.close()

    def _hear_until_it_breaks(self) -> None:
        node: Any = random.choice(list(self._masters.all().values()))  # any of them hears all
        pubsub = node.pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe(
            b"retrysafe"
        )  # connects, for which no claim must wait; without a channel, it would not be read
        with self._changing:
            if self._keys:
                pubsub.subscribe(*self._keys)
            pubsub.connection.retry = Retry(NoBackoff(), 1)  # redis-py reconnects and subscribes again by itself
            self._pubsub = pubsub
        while not self._closed.is_set():
            message = pubsub.get_message(timeout=_READ)
            if message is not None and message["type"] == "message":
                channel = message["channel"]
                self._hear(channel.encode() if isinstance(channel, str) else channel)


class AsyncRedisListener(_ByChannel[AsyncMasters]):
    """A task with a wire of its own."""

    def __init__(self, masters: AsyncMasters, heard: Callable[[bytes], None]) -> None:
        super().__init__(masters, heard)
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None

    def listen(self, key: bytes) -> None:
        name = name_of(key)
        self._keys[name] = key
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._wire is not None:
            self._wire.send(("SUBSCRIBE", name))

    def ignore(self, key: bytes) -> None:
        name = name_of(key)
        self._keys.pop(name, None)
        if self._wire is not None:
            self._wire.send(("UNSUBSCRIBE", name))

    async def aclose(self) -> None:
        while self._task is not None and not self._task.done():
            self._task.cancel()  # again, for a library that was connecting may have taken it for a time-out of its own
            await asyncio.wait((self._task,), timeout=PAUSE)
        await self._masters.aclose()

    def abandon(self) -> None:
        if self._wire is not None and self._wire.is_open:
            self._wire.abandon()
        self._masters.abandon()

    async def _run(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                connection = next(iter((await reraise_cancellation(self._masters.all())).values()))
                wire = await Wire.over(connection(), self._receive)
                try:
                    for name in self._keys:
                        wire.send(("SUBSCRIBE", name))
                    self._wire = wire
                    await asyncio.wait((wire.lost,))  # cancelling this must not look like a loss
                finally:
                    self._wire = None
                    if wire.is_open:
                        wire.close()
                        await asyncio.sleep(0)
            await asyncio.sleep(PAUSE)

    def _receive(self, reply: Reply) -> None:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            self._hear(reply[1])
