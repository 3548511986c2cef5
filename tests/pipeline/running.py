"""A run: the six processes, who kills them, and the wait for the end."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from typing import Protocol

from tests.messaging.harnesses.base import Place
from tests.pipeline import books, roles
from tests.pipeline.books import Audit
from tests.pipeline.brokers import GROUP, KINDS, broker, place

_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.pipeline.roles", "psycopg", "asyncpg", "aio_pika", "redis.asyncio", "nats"]
SETTLING = 15.0
"""Seconds in which what is left must be settled."""
RESTARTS = 2
EACH = 3
"""How many relays, and how many inboxes."""
PATIENCE = 60.0
"""Seconds in which something must be applied."""


class Mortal(Protocol):
    """A server of the run's own."""

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def start(self) -> None:
        """Start again on the same data, and wait until it answers."""
        ...


@dataclass
class Run:
    """What is asked for, and what happened."""

    kind: str
    where: str
    database: str
    orders: int
    every: float
    """Seconds between two kills."""
    seed: int
    tell: Callable[[str], None] = print
    server: Mortal | None = None
    """The broker, where it is killed and started again too: at each third of the orders."""
    kills: dict[str, int] = field(default_factory=lambda: {"relay": 0, "inventory": 0})
    restarts: int = 0
    applied: int = 0
    seconds: float = 0.0
    left: int = 0

    @property
    def topic(self) -> str:
        """One of its own, since others use the broker too."""
        return f"orders-{self.database.rpartition('/')[2]}"

    def __str__(self) -> str:
        killed = f"{self.kills['relay']} relays and {self.kills['inventory']} inboxes killed"
        if self.restarts:
            killed += f", the broker {self.restarts} times"
        return (
            f"{self.kind}: {self.orders} orders in {self.seconds:.0f} s ({self.orders / self.seconds:.0f}/s), {killed}"
        )


class Six:
    """Three relays and three inboxes; one that is killed is replaced."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._places: list[tuple[str, ForkServerProcess]] = []

    def __enter__(self) -> Six:
        _CONTEXT.set_forkserver_preload(PRELOADED)
        for role in ("relay", "inventory"):
            self._places += [(role, self._start(role)) for _ in range(EACH)]
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in self._places:
            process.kill()
            process.join()

    def _start(self, role: str) -> ForkServerProcess:
        run = self._run
        process = _CONTEXT.Process(target=roles.begin, args=(role, run.database, run.where, run.topic), daemon=True)
        process.start()
        return process

    def check(self) -> None:
        """Nobody ends by himself."""
        for role, process in self._places:
            assert process.exitcode is None, f"a process of {role} ended by itself: {process.exitcode}"

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL one of the six, and replace it."""
        place = chance.randrange(len(self._places))
        role, process = self._places[place]
        process.kill()
        process.join()
        self._run.kills[role] += 1
        self._places[place] = (role, self._start(role))

    def end(self) -> None:
        """Let all of them end as they should: when they have finished what they have begun."""
        for _, process in self._places:
            process.terminate()
        for name, process in self._places:
            process.join(60)
            well = (0, -signal.SIGTERM)  # one that has only just begun is ended by the signal
            assert process.exitcode in well, f"{name} did not end as it should: {process.exitcode}"


async def perform(run: Run) -> Audit:
    """The whole: orders, kills, the end of the work, and the audit."""
    at, harness = place(run.where, run.topic), KINDS[run.kind]
    assert harness.left is not None
    assert harness.remove is not None
    await broker(run.where, run.topic).declare([run.topic], [GROUP])
    began, chance = time.monotonic(), random.Random(f"kills {run.seed}")
    try:
        with Six(run) as six:
            orders = (run.database, run.topic, run.orders, run.seed, stop := threading.Event())
            taking = asyncio.ensure_future(asyncio.to_thread(books.take_orders, *orders))
            over = asyncio.Event()
            killing = asyncio.ensure_future(_kill(six, run, chance, over))
            restarting = asyncio.ensure_future(_restart(run, over))
            try:
                await _until_applied(six, run, killing)
            finally:
                stop.set()
                over.set()
                await taking
                await killing  # to its end: a thread that kills is not cancelled
                await restarting
            await _until_settled(harness.left, at)
            await asyncio.to_thread(six.end)
        run.seconds = time.monotonic() - began
        run.left = await harness.left(at)
    finally:
        await harness.remove(at)
    return books.audit(run.database)


async def _kill(six: Six, run: Run, chance: random.Random, over: asyncio.Event) -> None:
    last = -1
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), chance.uniform(0.5, 1.5) * run.every)
        if over.is_set():
            return
        six.check()
        if run.applied > last:  # else a slow machine would do nothing but start processes
            last = run.applied
            await asyncio.to_thread(six.kill_one, chance)


async def _restart(run: Run, over: asyncio.Event) -> None:
    """Kill the broker, and start it again, at each third of the orders."""
    while run.server is not None and run.restarts < RESTARTS and not over.is_set():
        if run.applied > run.orders * (run.restarts + 1) / (RESTARTS + 1):
            await asyncio.to_thread(run.server.kill)
            await asyncio.to_thread(run.server.start)
            run.restarts += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.1)


async def _until_settled(left: Callable[[Place], Awaitable[int]], at: Place) -> None:
    """Wait until what was handed out again is settled: what a killed process had comes after its lease."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLING):
            while await left(at):  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(0.2)


async def _until_applied(six: Six, run: Run, killing: asyncio.Future[None]) -> None:
    """Wait until there is nothing to apply any more, or nothing was applied for a long time: the audit will tell."""
    last, since, told = -1, time.monotonic(), 0.0
    while True:
        applied, waiting = await asyncio.to_thread(books.progress, run.database)
        now, run.applied = time.monotonic(), applied
        if applied >= run.orders and not waiting:
            return
        if applied > last:
            last, since = applied, now
        if now - since > PATIENCE or killing.done():
            return
        if now - told > 10:
            told = now
            run.tell(f"  {applied} applied, {waiting} in the outbox, {sum(run.kills.values())} kills")
        await asyncio.sleep(0.2)  # between two looks at the tables
