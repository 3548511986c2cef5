"""The memory store's client: a dictionary under a lock, and a clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.client import Executor, OpenTransaction
from retrysafe.protocol.records import Record
from retrysafe.protocol.requests import Step


def wall_clock() -> int:
    """This machine's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


class MemoryClient:
    """Performs steps one at a time; ``clock`` gives microseconds since the Unix epoch."""

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self.records: dict[bytes, Record] = {}
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, request: Step, /) -> Any:
        with self._lock:
            return request(self.records, self._clock())

    def transaction(self) -> AbstractContextManager[OpenTransaction[Executor]]:
        """Memory has no transactions."""
        raise ConfigurationError("store=: memory has no transactions.")

    def close(self) -> None:
        """Drop the records."""
        self.records.clear()


class AsyncMemoryClient:
    """`MemoryClient` for async code, on the same records; a step never has to wait."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client

    async def __call__(self, request: Step, /) -> Any:
        return self._client(request)

    def transaction(self) -> Any:
        """Memory has no transactions."""
        return self._client.transaction()

    async def aclose(self) -> None:
        """Drop the records."""
        self._client.close()

    def abandon(self) -> None:
        """Nothing to hang up: what is left goes with this object."""
