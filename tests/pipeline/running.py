"""A run: the six processes, who kills them, and the wait for the end."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess

from tests.messaging.harnesses.base import Mortal, Place
from tests.pipeline import books, roles
from tests.pipeline.books import Audit
from tests.pipeline.brokers import GROUP, KINDS, broker, place

_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = [
    "tests.pipeline.roles",
    "psycopg",
    "asyncpg",
    *(harness.library for harness in KINDS.values() if harness.library),
]
SETTLING = 15.0
"""Seconds in which what is left must be settled."""
EACH = 3
"""The number of relays, and of inboxes."""
PATIENCE = 150.0
"""Seconds in which something must be applied while the broker is there.

What a relay had under way when it was killed rests for its ``publish_timeout=``, a minute: no less than twice as long.
"""

_PROGRESS = 20
"""Orders that are applied between two kills, at least."""


@dataclass
class Run:
    """The settings and the events of a run."""

    kind: str
    where: str
    database: str
    orders: int
    every: float
    """Seconds between two kills."""
    seed: int
    tell: Callable[[str], None] = print
    server: Mortal | None = None
    """The broker, if it is to be killed too, and started again: once, when a third is applied."""
    others_go_on: bool = False
    """True if its cluster goes on without it; then it is started when another third is applied."""
    relays: tuple[str, ...] = ("relay",)
    """Roles of the relays: all of them have the first; each next one takes over after its share of the orders."""
    share: int = 0
    """Orders of which the present role's relays are ready to tell."""
    kills: dict[str, int] = field(default_factory=lambda: {"relay": 0, "inventory": 0})
    broker_kills: int = 0
    broker_is_away: bool = False
    switched: int = 0
    applied: int = 0
    seconds: float = 0.0
    left: int = 0

    @property
    def topic(self) -> str:
        """One of its own, since others use the broker too."""
        return f"orders-{self.database.rpartition('/')[2]}"

    @property
    def all_were_killed(self) -> bool:
        """True if each of those that are to be killed was, at least once."""
        return min(self.kills.values()) > 0 and (self.server is None or self.broker_kills > 0)

    @property
    def allowed(self) -> int:
        """Orders that may be taken: the last third when all were killed, or a fast machine would be done before."""
        return self.share if self.all_were_killed else min(self.share, self.orders * 2 // 3)

    @property
    def is_down(self) -> bool:
        """True if nothing can be applied until the broker is there again."""
        return self.broker_is_away and not self.others_go_on

    def __str__(self) -> str:
        killed = f"{self.kills['relay']} relays and {self.kills['inventory']} inboxes killed"
        if self.broker_kills:
            killed += ", and the broker"
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
        self.begin()
        return self

    def begin(self) -> None:
        """Start all of them."""
        self._places = []
        for role in ("relay", "inventory"):
            self._places += [(role, self._start(role)) for _ in range(EACH)]

    def __exit__(self, *_: object) -> None:
        for _, process in self._places:
            process.kill()
            process.join()

    def _start(self, role: str) -> ForkServerProcess:
        run = self._run
        if role == "relay":
            role = run.relays[run.switched]
        process = _CONTEXT.Process(target=roles.begin, args=(role, run.database, run.where, run.topic), daemon=True)
        process.start()
        return process

    def check(self) -> None:
        """Check that no process ends by itself."""
        for role, process in self._places:
            assert process.exitcode is None, f"a process of {role} ended by itself: {process.exitcode}"

    def kill_one(self, chance: random.Random) -> None:
        """SIGKILL one of the six, and replace it: one of the role that was killed less often."""
        least = min(self._run.kills, key=self._run.kills.__getitem__)
        place = chance.choice([place for place, (role, _) in enumerate(self._places) if role == least])
        role, process = self._places[place]
        process.kill()
        process.join()
        self._run.kills[role] += 1
        self._places[place] = (role, self._start(role))

    def switch(self) -> None:
        """Start relays of the next role, and then let those before them end as they should."""
        self._run.switched += 1
        before = [one for one in self._places if one[0] == "relay"]
        others = [one for one in self._places if one[0] != "relay"]
        self._places = [*((role, self._start(role)) for role, _ in before), *others]
        _end(before)

    def end(self) -> None:
        """Let all of them end as they should: when they have finished what they have begun."""
        _end(self._places)


def _end(places: Sequence[tuple[str, ForkServerProcess]]) -> None:
    for _, process in places:
        process.terminate()
    for name, process in places:
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
            orders = (run.database, run.topic, run.orders, run.seed, stop := threading.Event(), lambda: run.allowed)
            taking = asyncio.ensure_future(asyncio.to_thread(books.take_orders, *orders))
            killing = asyncio.ensure_future(_kill(six, run, chance, over := asyncio.Event()))
            try:
                await _until_applied(six, run, killing)
            finally:
                stop.set()
                over.set()
                await taking
                await killing  # to its end: a thread that kills is not cancelled
            await _until_nothing_is_left(six, run, harness.left, at)
        run.seconds = time.monotonic() - began
    finally:
        await harness.remove(at)
    return books.audit(run.database)


async def _kill(six: Six, run: Run, chance: random.Random, over: asyncio.Event) -> None:
    last = -_PROGRESS
    await _allow_share(run, over)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), chance.uniform(0.5, 1.5) * run.every)
        if over.is_set():
            break
        six.check()
        await _kill_or_start_broker(run)
        if run.switched < run.applied * len(run.relays) // run.orders < len(run.relays):
            await asyncio.to_thread(six.switch)
            await _allow_share(run, over)
        # else a slow machine would do nothing but start processes
        if run.applied >= last + _PROGRESS or not run.all_were_killed:
            last = run.applied
            await asyncio.to_thread(six.kill_one, chance)
    if run.broker_is_away and run.server is not None:
        await asyncio.to_thread(run.server.start)


async def _allow_share(run: Run, over: asyncio.Event) -> None:
    """Allow the orders of the present role's share, as soon as its relays are ready."""
    role = run.relays[run.switched]
    while not over.is_set() and not await asyncio.to_thread(  # noqa: ASYNC110 - the server tells nobody
        roles.is_ready, role, run.database
    ):
        await asyncio.sleep(0.05)
    run.share = math.ceil(run.orders * (run.switched + 1) / len(run.relays))


async def _kill_or_start_broker(run: Run) -> None:
    """Kill or start the broker when it is time; mishaps of the six go on while it is away."""
    if run.server is None:
        return
    if run.broker_is_away:
        if not run.others_go_on or run.applied > run.orders * 2 // 3:
            await asyncio.to_thread(run.server.start)
            run.broker_is_away = False
    elif not run.broker_kills and run.applied > run.orders // 3:
        await asyncio.to_thread(run.server.kill)
        run.broker_kills, run.broker_is_away = 1, True


async def _until_nothing_is_left(six: Six, run: Run, left: Callable[[Place], Awaitable[int]], at: Place) -> None:
    """Let all of them end; who ends gives back what he holds, and some brokers tell of that only then."""
    began, longer = time.monotonic(), 0.0
    while True:
        await asyncio.sleep(longer)  # until they have settled what they hold, of which nobody tells
        await _until_settled(left, at)
        await asyncio.to_thread(six.end)
        run.left = await left(at)
        if not run.left or time.monotonic() - began > PATIENCE:
            return
        await asyncio.to_thread(six.begin)
        longer += 1.0


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
        if applied > last or run.is_down:
            last, since = applied, now
        if now - since > PATIENCE or killing.done():
            left = await asyncio.to_thread(books.left, run.database)
            run.tell(f"  {applied} applied, and nothing more; in the outbox: {left}")
            return
        if now - told > 10:
            told = now
            run.tell(f"  {applied} applied, {waiting} in the outbox, {sum(run.kills.values())} kills")
        await asyncio.sleep(0.2)  # between two looks at the tables
