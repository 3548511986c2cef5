"""Outcomes that a store did not take at once: tried again until the lease ends, by a thread or by a task.

The work is over and its caller has the result. Settling is conditional on the state, the attempt and the token of the
record, so an outcome that comes late is stored if the attempt still owns its record, and fenced if it does not.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from retrysafe import runtime
from retrysafe.backends.driver import arun, run
from retrysafe.protocol.backoff import SETTLING
from retrysafe.protocol.requests import Steps

if TYPE_CHECKING:
    import asyncio

    from retrysafe.protocol.client import AsyncClient, Client

LAST_TRY = 5.0
"""Seconds in which what is left is tried once more when its boundary is closed or its process or event loop ends."""


class Deferred(NamedTuple):
    """One outcome: how it is settled, and up to when on the holder's clock.

    ``concluded`` is told in the end whether the record was the attempt's own; None: the store never answered.
    """

    until: float
    settle: Callable[[], Steps[bool]]
    concluded: Callable[[bool | None], None]


class _Pending:
    """The outcomes that are not settled, and when they are tried again: all together, for they have one store."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[Deferred, None] = {}
        self._failures = 0
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._left)

    def add(self, one: Deferred) -> None:
        if not self._left:
            self.went(well=True)
        self._left[one] = None

    def drop(self, one: Deferred) -> None:
        """It is settled, or given up."""
        self._left.pop(one, None)

    def went(self, *, well: bool) -> None:
        """Note how a round of tries went: the next one is after a pause that grows with every failure."""
        import random

        self._failures = 0 if well else self._failures + 1
        self._next = self._clock() + SETTLING.delay(self._failures, random.random())

    def pause(self) -> float:
        """Seconds until something is to be done."""
        ends = min((one.until for one in self._left), default=self._next)
        return max(0.0, min(self._next, ends) - self._clock())

    def over(self) -> list[Deferred]:
        """Those whose lease has ended."""
        now = self._clock()
        return [one for one in self._left if one.until <= now]

    def shuffled(self) -> list[Deferred]:
        """All, in an order by chance: one that always fails must not stand before the others."""
        import random

        return random.sample(list(self._left), len(self._left))


class ThreadSettler:
    """Tries in a daemon thread, through a client of its own; once more when it is closed or the process ends."""

    def __init__(self, connect: Callable[[], Client], clock: Callable[[], float]) -> None:
        self._connect = connect
        self._pending = _Pending(clock)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._closed = False
        self._pid = runtime.pid

    def add(self, one: Deferred) -> None:
        """Try ``one`` until it is settled, or its lease has ended; after `close` it is given up."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._pending.add(one)
                if self._thread is None:
                    atexit.register(self._at_exit)
                    self._thread = threading.Thread(target=self._run, name="retrysafe-settler", daemon=True)
                    self._thread.start()
                self._changed.notify()
        if closed:
            one.concluded(None)

    def close(self) -> None:
        """Try what is left once more, and give it up if that fails."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            atexit.unregister(self._at_exit)
            self._thread.join()

    def _at_exit(self) -> None:
        if self._pid == runtime.pid:
            self.close()

    def _run(self) -> None:
        while self._wait():
            self._conclude(self._over(), None)
            self._note(well=self._round())
        give_up_at = time.monotonic() + LAST_TRY
        for one in self._shuffled():
            if time.monotonic() > give_up_at or not self._try(one):
                break
        self._conclude(self._shuffled(), None)
        if self._client is not None:
            self._client.close()

    def _round(self) -> bool:
        """Try all, but no more once this is closed: who closes waits for `LAST_TRY`, not for thousands of answers."""
        return all(self._closed or self._try(one) for one in self._shuffled())

    def _wait(self) -> bool:
        """Wait until something is to be done; False when this is closed."""
        with self._changed:
            while not self._closed:
                pause = self._pending.pause() if self._pending else None
                if pause == 0:
                    break
                self._changed.wait(pause)
            return not self._closed

    def _try(self, one: Deferred) -> bool:
        """Put the outcome once more; whether the store answered."""
        try:
            self._client = self._client or self._connect()
            done = run(one.settle(), self._client, patience=0)
        except Exception:  # noqa: BLE001 - whatever the trouble is, it may pass
            return False
        self._conclude([one], done)
        return True

    def _conclude(self, ended: list[Deferred], done: bool | None) -> None:
        for one in ended:
            with self._changed:
                self._pending.drop(one)
            one.concluded(done)

    def _note(self, *, well: bool) -> None:
        with self._changed:
            self._pending.went(well=well)

    def _over(self) -> list[Deferred]:
        with self._changed:
            return self._pending.over()

    def _shuffled(self) -> list[Deferred]:
        with self._changed:
            return self._pending.shuffled()


class LoopSettler:
    """`ThreadSettler` for async code: a task. Cancelled, as at the end of `asyncio.run`, it tries once more."""

    def __init__(self, connect: Callable[[], AsyncClient], clock: Callable[[], float]) -> None:
        self._connect = connect
        self._pending = _Pending(clock)
        self._task: asyncio.Task[None] | None = None
        self._client: AsyncClient | None = None

    def add(self, one: Deferred) -> None:
        """Try ``one`` until it is settled, or its lease has ended."""
        import asyncio

        self._pending.add(one)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="retrysafe-settler")
            # an outcome that is put off when asyncio.run has cancelled all tasks is given up with the loop
            self._task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def aclose(self) -> None:
        """Try what is left once more, and give it up if that fails."""
        import asyncio

        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._last()  # a task that was cancelled before it began has tried nothing

    def abandon(self) -> None:
        """Give up what is left: the loop is closed."""
        self._conclude(self._pending.shuffled(), None)
        if self._client is not None:
            self._client.abandon()

    async def _run(self) -> None:
        import asyncio

        try:
            while self._pending:
                await asyncio.sleep(self._pending.pause())
                self._conclude(self._pending.over(), None)
                self._pending.went(well=await self._round())
        except asyncio.CancelledError:
            await self._last()
            raise
        # The client stays open: what is added while this task waited for it to close would be left to nobody.

    async def _round(self) -> bool:
        for one in self._pending.shuffled():
            if not await self._try(one):
                return False
        return True

    async def _last(self) -> None:
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_TRY):
                await self._round()
        self._conclude(self._pending.shuffled(), None)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _try(self, one: Deferred) -> bool:
        """Put the outcome once more; whether the store answered."""
        try:
            self._client = self._client or self._connect()
            done = await arun(one.settle(), self._client, patience=0)
        except Exception:  # noqa: BLE001 - whatever the trouble is, it may pass
            return False
        self._conclude([one], done)
        return True

    def _conclude(self, ended: list[Deferred], done: bool | None) -> None:
        for one in ended:
            self._pending.drop(one)
            one.concluded(done)
