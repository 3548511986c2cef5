"""Event loops that are closed over what runs on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class InterruptedLoop:
    """A loop that ends as by a KeyboardInterrupt out of `run_until_complete`: its tasks neither end nor are cancelled.

    What they are in the middle of is given up with the block, and not by the collector of garbage in a later test.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._left: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> InterruptedLoop:
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something to its end."""
        return self._loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin something that does not end."""
        self._loop.create_task(work)

    def close(self) -> None:
        """Close it over what runs."""
        self._left = asyncio.all_tasks(self._loop)
        self._loop.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            assert isinstance(coroutine, Coroutine)
            coroutine.close()
