"""The relay: publishes what outboxes hold, in order, at least once, beside any number of other relays."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from retrysafe import connect
from retrysafe.bell import Bell
from retrysafe.boundary import Boundary
from retrysafe.core.backoff import Backoff
from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.polling import Polls
from retrysafe.core.relaying import OnDead, Rules
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.draining import Setting, Sum, adrain, drain
from retrysafe.messaging.outbox import outbox_of
from retrysafe.observers import LoggingObserver, Observers
from retrysafe.ports import AsyncClient, AsyncPublisher, Client, Observer, Publisher
from retrysafe.programs.drivers import arun, ask, run
from retrysafe.types import Duration

if TYPE_CHECKING:
    import asyncio

Holding = Literal["transaction", "lease"]
MOST = 500
_NAME = "retrysafe.relay"


class Relayed(NamedTuple):
    """What a run has done: messages that left, that wait for another attempt, and that were given up."""

    left: int
    delayed: int
    dead: int


class Relay:
    """Publishes what is in the outboxes of a database, and removes it when the broker has it.

    Any number of relays may work on one database: a bucket of messages has one at a time. Messages of one topic and
    key leave in the order in which they were written, the next one when the one before has left. A message leaves at
    least once: a relay that dies after publishing leaves it to be published again, under the same id, which an inbox
    recognises.

    Arguments:
        store: what ``Outbox(store=…)`` was given.
        publisher: a `Publisher` for `run_once` and threads, an `AsyncPublisher` for event loops.
        hold: how a bucket is held while its messages are published: by an open "transaction" (PostgreSQL, MySQL), or by
            a "lease" with a fencing token, for slow brokers; SQLite, which has one writer, has leases only.
        lease: of a bucket that is held by a lease: how long after the death of its relay it waits for another one.
        batch: how many messages of a bucket are taken at once.
        keep: move what has left to ``retrysafe_outbox_published`` instead of removing it.
        attempts: how often the broker may refuse a message before it is moved to the dead letters.
        pause, longest_pause: bounds of the wait before a refused message is tried again: of the first one, doubled
            with each, and of the last. The wait is a random time below them.
        on_dead: what then becomes of its lane: "skip" goes on with the next message, "park" waits for a person.
        observers: told of what happens; by default a `LoggingObserver`.
    """

    def __init__(
        self,
        store: Any,
        publisher: Publisher | AsyncPublisher,
        *,
        hold: Holding | None = None,
        lease: Duration = "30s",
        batch: int = 200,
        keep: bool = False,
        attempts: int = 10,
        pause: Duration = "500ms",
        longest_pause: Duration = "5m",
        on_dead: Literal["skip", "park"] = "skip",
        observers: Iterable[Observer] | None = None,
    ) -> None:
        if not 1 <= batch <= MOST or attempts < 1:
            raise ConfigurationError(f"batch= is a number from 1 to {MOST}, attempts= one from 1.")
        self._backend = connect.connect(store)
        self._publisher: Any = publisher
        outbox, sql = outbox_of(self._backend)
        hold = hold or ("transaction" if outbox.locks_rows else "lease")
        if hold == "transaction" and not outbox.locks_rows:
            raise ConfigurationError(
                'hold="transaction" would keep every writer of a SQLite file waiting for the broker: use "lease".'
            )
        observing = (LoggingObserver(),) if observers is None else tuple(observers)
        self._leases = store if hold == "lease" else None
        self._lease = seconds_of(lease, "lease")
        backoff = Backoff(seconds_of(pause, "pause"), seconds_of(longest_pause, "longest_pause"))
        rules = Rules(attempts=attempts, backoff=backoff, on_dead=OnDead(on_dead))
        self._setting = Setting(sql, outbox, None, rules, batch, keep)
        self._observers = Observers(observing)
        self._polls = Polls()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ one run

    def run_once(self) -> Relayed:
        """Publish until nothing more is due; raise if the store fails."""
        with self._working() as (setting, client):
            self._backend.check(client)
            total = Sum()
            while self._round(setting, client, total):
                pass
        return Relayed(total.left, total.delayed, total.dead)

    async def arun_once(self) -> Relayed:
        """The same for async code."""
        async with self._aworking() as (setting, client):
            await self._backend.acheck(client)
            total = Sum()
            while await self._around(setting, client, total):
                pass
        return Relayed(total.left, total.delayed, total.dead)

    def _round(self, setting: Setting, client: Client, total: Sum) -> bool:
        """Go once over the buckets; whether anything left."""
        before = total.left
        for number in _shuffled(run(ask(setting.outbox.waiting()), client)):
            if self._bell.rung:
                return False
            total.include(drain(setting, client, self._publisher, number))
        return total.left > before

    async def _around(self, setting: Setting, client: AsyncClient, total: Sum) -> bool:
        before = total.left
        for number in _shuffled(await arun(ask(setting.outbox.waiting()), client)):
            if self._bell.rung:
                return False
            total.include(await adrain(setting, client, self._publisher, number))
        return total.left > before

    @contextmanager
    def _working(self) -> Iterator[tuple[Setting, Client]]:
        """Connections, and leases where they are wanted, for as long as a run lasts."""
        client, leases = self._backend.another(), self._leasing()
        try:
            yield self._setting._replace(leases=leases), client
        finally:
            client.close()
            if leases is not None:
                leases.close()

    @asynccontextmanager
    async def _aworking(self) -> AsyncIterator[tuple[Setting, AsyncClient]]:
        client, leases = self._backend.aanother(), self._leasing()
        try:
            yield self._setting._replace(leases=leases), client
        finally:
            await client.aclose()
            if leases is not None:
                await leases.aclose()

    def _leasing(self) -> Boundary | None:
        return None if self._leases is None else Boundary(_NAME, store=self._leases, lease=self._lease, observers=())

    # ------------------------------------------------------------ for ever

    def run_forever(self) -> None:
        """Publish in this thread until `stop` is called; a store that fails is tried again."""
        with self._working() as (setting, client):
            while not self._bell.rung:
                try:
                    rest = self._rest(found=self._round(setting, client, Sum()))
                except Exception as error:  # noqa: BLE001 - a relay must not end by what happens to one batch
                    rest = self._failed(error)
                self._bell.wait(rest)

    async def arun_forever(self) -> None:
        """The same for async code."""
        async with self._aworking() as (setting, client):
            while not self._bell.rung:
                try:
                    rest = self._rest(found=await self._around(setting, client, Sum()))
                except Exception as error:  # noqa: BLE001 - the same
                    rest = self._failed(error)
                await self._bell.await_for(rest)

    def stop(self) -> None:
        """Let what runs end after its current batch; signal handlers may call it too."""
        self._bell.ring()

    def _rest(self, *, found: bool) -> float:
        self._polls, rest = self._polls.found() if found else self._polls.empty(random.random())
        return rest

    def _failed(self, error: Exception) -> float:
        self._observers.tell("relay_failed", _NAME, "", b"", "", {"error": str(error) or type(error).__name__})
        self._polls, rest = self._polls.failed(random.random())
        return rest

    # ------------------------------------------------------------ beside an application

    def __enter__(self) -> Relay:
        self._bell = Bell()
        self._thread = threading.Thread(target=self.run_forever, name="retrysafe-relay", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    async def __aenter__(self) -> Relay:
        import asyncio

        self._bell = Bell(asyncio.get_running_loop())
        self._task = asyncio.create_task(self.arun_forever(), name="retrysafe-relay")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task


def _shuffled(buckets: list[int]) -> list[int]:
    """In an order by chance, so that relays do not follow each other from bucket to bucket."""
    return random.sample(buckets, len(buckets))
