"""The relay: publishes the messages of an outbox, in order for each key, at least once, beside other relays.

A round of a relay
------------------
The messages of an outbox lie in a fixed number of buckets, by the hash of topic and key. A round asks the store which
buckets may have something new, and drains a batch of each of them, in random order, so that several relays spread out.
`run_once` repeats rounds until one has published nothing. An event loop drains several buckets at a time
(``concurrency=``), each on a connection of its own.

Draining a bucket (`retrysafe.messaging.relay.bucket`)
    hold      with a transaction that stays open meanwhile, or with a lease (`BucketLeases`), whose fencing token every
              later write names. A bucket that another relay holds is skipped.
    read      the messages that are due, up to ``batch`` and ``batch_bytes``: for each lane (the messages of one topic
              and key) from its oldest message on, and none behind a message that waits (`outbox_walk`).
    publish   wave by wave: a wave has at most one message of each lane, so that order is kept when one fails.
              `Dispatch` groups a wave by destination, each of which has a circuit breaker.
    conclude  what was published is deleted, or moved to the table of published messages; what failed is delayed, or
              moved to the dead letters (`retrysafe.protocol.publish_policy`). Commit; that releases a lease, too.

A relay that dies between publish and conclude leaves the messages to be published again, under their ids. Because the
message itself may have caused the death, attempts are noted before they begin (of a leased bucket in the transaction
that leases it): a message with an attempt that was begun and not finished is published alone, and given up after
``max_crashes`` such attempts.

What is read
    The database numbers messages when they are written, but transactions commit in another order. `LowWater` is the
    number below which every message has left; `Walks` remembers, for each bucket, the lanes that were passed over
    because they wait. Both only save work: after an error and at the start of a run everything is read again.

When it looks
    `Polls` decides the pause between rounds: none after a round that published, then growing up to its limit. A
    `StopSignal` ends the pause: an outbox of this process nudges it, and so does the listener on PostgreSQL's NOTIFY.
    `Presence` writes at intervals that this relay is alive, reports the backlog when it is this relay's turn, and
    reports relays that stopped without a farewell.

With ``cdc=``
    What was committed is read from PostgreSQL's log as soon as it is there (`retrysafe.messaging.cdc.following`), and
    drained like a batch of several buckets, for whose locks it waits. A round every second finds what is left.

An unavailable store or broker ends `run_once` with an exception. `run_forever` reports it, pauses and goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple, cast

from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import aput, arun, put, run
from retrysafe.backends.sql.outbox_log import SqlOutboxLog
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.cancellation import is_failure
from retrysafe.claims.observers import LoggingObserver, Observers
from retrysafe.entrypoint import UNUSABLE
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging import validation
from retrysafe.messaging.brokers.base import AsyncPublisher, Publisher
from retrysafe.messaging.cdc.batches import LoggedMessage, take
from retrysafe.messaging.cdc.following import Log
from retrysafe.messaging.cdc.slot import Slot
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.messaging.notifications import waking
from retrysafe.messaging.outbox import outbox_of
from retrysafe.messaging.relay.bucket import LOGGED, Probation, Setting, Totals, adrain, adrain_taken, drain
from retrysafe.messaging.relay.dispatch import Dispatch
from retrysafe.messaging.relay.kept import KeptMessages
from retrysafe.messaging.relay.leases import BucketLeases
from retrysafe.messaging.relay.listener import address, alistening, arefuse_pooler, listening, refuse_pooler
from retrysafe.messaging.relay.low_water import LowWater
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.messaging.relay.presence import Presence, Reporter
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.client import AsyncClient, Client
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Queued
from retrysafe.protocol.outbox_walk import Walks, most
from retrysafe.protocol.publish_policy import OnDead, Rules
from retrysafe.protocol.records import Duration
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import TransactionalStore
from retrysafe.stop_signal import Stops, StopSignal

Holding = Literal["transaction", "lease"]
MOST = 500
MOST_AT_ONCE = 9
"""Buckets under way together: each has a connection, of which we keep ten."""
_ALONE = (
    "This Relay is running already, and runs once at a time. Make another Relay: any number of them share the outbox. "
    "Nothing was published by this call."
)


def _require_publisher(publisher: object) -> None:
    """Raise `ConfigurationError` for what cannot publish, such as a broker's URL."""
    if isinstance(publisher, type):
        raise ConfigurationError(f"publisher= is the class {publisher.__name__}: make one, as its page shows.")
    if not callable(getattr(publisher, "publish", None)):
        raise ConfigurationError(
            f"publisher= is a {type(publisher).__qualname__}, which has no method publish(envelopes). "
            "Give the publisher of a broker, such as RabbitMQPublisher(url), or run  retrysafe relay --store URL "
            "--broker URL."
        )


def _only(**given: Iterable[str] | None) -> dict[str, tuple[str, ...]]:
    """The values that a relay is restricted to, by column."""
    only: dict[str, tuple[str, ...]] = {}
    for column, values in given.items():
        if values is None:
            continue
        if isinstance(values, str):
            raise ConfigurationError(f"{column}s= is a list of names, not one text: {column}s=[{values!r}].")
        only[column] = tuple(validation.name(value, f"{column}s") for value in values)
        if not only[column]:
            raise ConfigurationError(f"{column}s= is empty: this relay would publish nothing. Leave it out for all.")
    return only


def _kind_of(publisher: object) -> str:
    """The kind of broker that a publisher of ours is for, and a digest of its address; else the name of its class."""
    kind, address = type(publisher), getattr(publisher, "broker_address", "")
    if isinstance(address, str) and address:
        return f"{address.partition('://')[0]}#{hashlib.sha256(address.encode()).hexdigest()[:8]}"
    before, _, rest = kind.__module__.partition("retrysafe.messaging.brokers.")
    return rest.partition(".")[0] if rest and not before else kind.__name__[:32]


class Relayed(NamedTuple):
    """The messages of a run by outcome: published, waiting for another attempt, and moved to the dead letters."""

    published: int
    delayed: int
    dead: int


class Relay:
    """Publishes what is in the outboxes of a database, and removes it when the broker has it.

    Any number of relays may work on one database: a bucket of messages has one at a time. Messages of one topic and
    key leave in the order in which they were written, the next one when the one before has left. A message leaves at
    least once: a relay that dies after publishing leaves it to be published again, under the same id, which an inbox
    recognises.

    Use it as a context manager (``with`` or ``async with``) around the life of an application, call `run_forever` or
    `arun_forever` in a process of its own, or `run_once` and `arun_once` from a job. Outboxes of the same ``store`` and
    process wake it. The publisher is yours to close.

    Arguments:
        store: the database of the outbox, as ``Outbox(store=…)`` takes it.
        publisher: a `Publisher` for `run_once` and threads, an `AsyncPublisher` for event loops.
        hold: how a bucket is held while its messages are published: by an open "transaction" (PostgreSQL, MySQL), or by
            a "lease" with a fencing token, for slow brokers; SQLite, which has one writer, has leases only.
        lease: how long a bucket whose relay has died stays held, with leases; they are renewed while a relay lives.
        batch: how many messages of a bucket are taken at once.
        batch_bytes: how many bytes of payloads and headers, at most; one message is taken however large it is.
        concurrency: how many buckets an `AsyncPublisher` works on together.
        keep_published: move published messages to ``retrysafe_outbox_published`` instead of removing them, and remove
            them there after this time; True is "7d".
        max_attempts: how often the broker may refuse a message before it is moved to the dead letters.
        max_crashes: how often a message may be under way when its relay dies before it is taken for the cause, and
            moved there too. After a first time it is tried alone. With transactions, the first death of a relay that
            has published from the bucket before is not counted.
        backoff_base, backoff_max: bounds of the wait before a refused message is tried again: of the first one, doubled
            with each, and of the last. The wait is a random time below them.
        on_dead: what its lane does then: "skip" continues with the next message, "park" waits for a person.
        publish_timeout: how long one call of the publisher may take: longer than its own time-outs. An
            `AsyncPublisher` is not waited for any longer, and its messages are tried again. A transaction that holds a
            bucket stays open for 15 s more, whatever the server's setting; PostgreSQL and MariaDB then end it, so that
            other relays get the buckets of one that is frozen or cut off.
        stalled_after: how long a message may be due before the event "backlog_stalled".
        listen: the URL of the PostgreSQL server, for a separate connection that is notified when an
            ``Outbox(notify=True)`` of another process has written. A pooler in transaction mode cannot be used. Needs
            psycopg.
        cdc: read new messages from PostgreSQL's log, by this slot, instead of asking the table for them at intervals.
            On event loops, and with transactions.
        sources, topics: publish the messages of these alone, where services with brokers of their own share a database:
            the ``source=`` of their outboxes, and topics; by default all. Every relay of the database needs its share.
        observers: receive the relay's events; by default a `LoggingObserver`.
    """

    def __init__(
        self,
        store: Any,
        publisher: Publisher | AsyncPublisher,
        *,
        hold: Holding | None = None,
        lease: Duration = "30s",
        batch: int = 200,
        batch_bytes: int = 4 << 20,
        concurrency: int = 4,
        keep_published: bool | Duration = False,
        max_attempts: int = 10,
        max_crashes: int = 3,
        backoff_base: Duration = "500ms",
        backoff_max: Duration = "5m",
        on_dead: Literal["skip", "park"] = "skip",
        publish_timeout: Duration = "1m",
        stalled_after: Duration = "1m",
        listen: str | None = None,
        cdc: Slot | None = None,
        sources: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        if (
            not 1 <= batch <= MOST
            or min(max_attempts, max_crashes, batch_bytes) < 1
            or not 1 <= concurrency <= MOST_AT_ONCE
        ):
            raise ConfigurationError(
                f"batch= is a number from 1 to {MOST}, concurrency= one from 1 to {MOST_AT_ONCE}, batch_bytes=, "
                "max_attempts= and max_crashes= numbers from 1."
            )
        _require_publisher(publisher)
        self._backend = registry.connect(store)
        self._listen = address(listen)
        self._publisher: Any = publisher
        self._at_once = concurrency
        outbox, sql = outbox_of(self._backend)
        outbox.only = _only(source=sources, topic=topics)
        hold = hold or ("transaction" if outbox.locks_rows else "lease")
        if hold == "transaction" and not outbox.locks_rows:
            raise ConfigurationError(
                'hold="transaction" would keep every writer of a SQLite file waiting for the broker: use "lease".'
            )
        if cdc is not None and (hold != "transaction" or not isinstance(sql, PostgresqlStore)):
            raise ConfigurationError('cdc= reads the log of a PostgreSQL store, with hold="transaction".')
        observing = (LoggingObserver(),) if observers is None else tuple(observers)
        leases = BucketLeases(self._backend, seconds_of(lease, "lease"))
        backoff = Backoff(seconds_of(backoff_base, "backoff_base"), seconds_of(backoff_max, "backoff_max"))
        rules = Rules(max_attempts=max_attempts, max_crashes=max_crashes, backoff=backoff, on_dead=OnDead(on_dead))
        self._low = LowWater(outbox)
        self._walks = Walks(time.monotonic)
        self._reporter = Reporter(Observers(observing))
        timeout = seconds_of(publish_timeout, "publish_timeout")
        self._dispatch = Dispatch(publisher, self._reporter.emit, timeout=timeout)
        self._setting = Setting(
            store=cast("TransactionalStore", sql),
            outbox=outbox,
            leases=leases if hold == "lease" else None,
            rules=rules,
            batch=most(batch, batch_bytes),
            keep=keep_published is not False,
            low=self._low,
            walks=self._walks,
            patience=timeout,
            dispatch=self._dispatch,
            probation=Probation(),
        )
        self._log = None if cdc is None else Log(cdc, self._reporter.emit)
        to = f"{_kind_of(publisher)}{'+' if outbox.only else ''}"
        self._presence = Presence(outbox, self._reporter, hold, seconds_of(stalled_after, "stalled_after"), to=to)
        self._attended: list[Presence | LowWater | KeptMessages] = [self._presence, self._low]
        if keep_published is not False:
            self._attended.append(KeptMessages(sql, keep_published, self._reporter.emit))
        self._polls = Polls()
        self._stops = Stops(_ALONE)
        self._stop_signal = StopSignal()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def backend(self) -> Backend:
        """The database that it works on."""
        return self._backend

    # ------------------------------------------------------------ one run

    def run_once(self) -> Relayed:
        """Publish until nothing more is due.

        Raises `StoreUnavailable` if the store fails, and `BrokerUnavailable` if the publisher says that its broker is
        not there: what had left until then has left.
        """
        total = Totals()
        with self._stops.run() as self._stop_signal, self._working(self._open()) as (setting, client):
            self._backend.check(client)
            while self._round(setting, client, total) or self._anew():
                pass
        return Relayed(total.left, total.delayed, total.dead)

    async def arun_once(self) -> Relayed:
        """`run_once` for async code."""
        total = Totals()
        with self._stops.run() as self._stop_signal:
            async with self._aworking(await self._aopen()) as (setting, client):
                await self._backend.acheck(client)
                while await self._around(setting, client, total) or await self._has_more():
                    pass
        return Relayed(total.left, total.delayed, total.dead)

    def _round(self, setting: Setting, client: Client, total: Totals) -> bool:
        """Drain each bucket once; whether anything was published."""
        before, self._dispatch.refused = total.left, ""
        self._attend(client)
        for number in _shuffle(put(self._waiting(setting), client)):
            if self._stop_signal.rung:
                return False
            began = time.monotonic()
            self._report(drain(setting, client, number), began, total)
            self._attend(client)
        return self._may_find_more(published=total.left > before)

    def _waiting(self, setting: Setting) -> Ask[list[int]]:
        """Ask for the buckets that may have new messages."""
        return setting.outbox.waiting(self._low.mark, self._walks.find_passed(self._dispatch.topics_shut()))

    async def _has_more(self) -> bool:
        """Tell whether there may be more after an empty round: behind a call under way, or from the beginning."""
        return not self._stop_signal.rung and (await self._dispatch.settle(self._stop_signal) or self._anew())

    def _anew(self) -> bool:
        """Read from the beginning again; whether something had been skipped until now."""
        return any([self._low.reset(), self._walks.restart()])

    async def _around(self, setting: Setting, client: AsyncClient, total: Totals) -> bool:
        """`_round` for async code, several buckets at a time, so that a slow one does not delay the others."""
        before, self._dispatch.refused = total.left, ""
        await self._resume(setting, client)
        await self._aattend(client)
        numbers = iter(_shuffle(await aput(self._waiting(setting), client)))

        async def work() -> None:
            for number in numbers:
                if self._stop_signal.rung:
                    return
                began = time.monotonic()
                self._report(await adrain(setting, client, number), began, total)
                await self._aattend(client)

        for ended in await asyncio.gather(*(work() for _ in range(self._at_once)), return_exceptions=True):
            if ended is not None:
                raise ended
        return self._may_find_more(published=total.left > before) and not self._stop_signal.rung

    async def _resume(self, setting: Setting, client: AsyncClient) -> None:
        """Resume the lanes whose calls have ended meanwhile."""
        if ended := self._dispatch.take_ended():
            await arun(ask(setting.outbox.resume_lanes(ended)), client)

    def _may_find_more(self, *, published: bool) -> bool:
        """Tell whether to look again behind a round. Raises `BrokerUnavailable` when everything was refused in it."""
        self._require_that_not_all_is_refused()
        return bool(self._dispatch.refused) or published or self._walks.further

    def _require_that_not_all_is_refused(self) -> None:
        if self._dispatch.refused and not self._dispatch.works:
            raise BrokerUnavailable(self._dispatch.refused)

    def _report(self, done: Totals, began: float, total: Totals) -> None:
        for verdict in done.verdicts:
            self._reporter.report_outcome(verdict, time.monotonic() - began, self._dispatch.destination)
        total.include(done)
        if done.away:
            raise BrokerUnavailable(done.away)

    # ------------------------------------------------------------ presence

    def _attend(self, client: Client) -> None:
        for one in self._attended:
            if one.is_due():
                run(one.steps(), client)

    async def _aattend(self, client: AsyncClient) -> None:
        for one in self._attended:
            if one.is_due():
                await arun(one.steps(), client)

    # ------------------------------------------------------------ connections

    def _open(self) -> Client:
        if self._log is not None:
            raise ConfigurationError("cdc= is for event loops: relay with arun_forever or async with.")
        if iscoroutinefunction(self._publisher.publish):
            raise ConfigurationError(
                "publisher= is for async code: relay with arun_once, arun_forever or async with, or give the "
                "publisher's sync twin, or SyncPublisher(lambda: …) around what makes it."
            )
        refuse_pooler(self._listen)
        client = self._backend.new_client()
        try:
            self._backend.check(client)
        except UNUSABLE:
            client.close()
            raise
        except Exception as error:  # noqa: BLE001 - it is asked again in every round
            self._reporter.report_failure(error)
        return client

    async def _aopen(self) -> AsyncClient:
        if not iscoroutinefunction(self._publisher.publish):
            raise ConfigurationError(
                "publisher= is for sync code: relay with run_once, run_forever or with, or give the publisher's async "
                "twin. Nothing was published."
            )
        await arefuse_pooler(self._listen, self._stop_signal)
        if self._log is not None:
            await self._log.check(self._stop_signal)
        client = self._backend.new_aclient()
        try:
            await self._backend.acheck(client)
        except UNUSABLE:
            await client.aclose()
            raise
        except BaseException as error:
            if not is_failure(error):
                await client.aclose()
                raise
            self._reporter.report_failure(error)
        return client

    @contextmanager
    def _working(self, client: Client) -> Iterator[tuple[Setting, Client]]:
        """Hold the connections of a run."""
        self._anew()
        self._dispatch.reset()
        self._presence.reset()
        try:
            with waking(self._backend, self._stop_signal), listening(self._listen, self._stop_signal):
                yield self._setting, client
        finally:
            with suppress(RetrysafeError):
                run(self._presence.farewell(), client)
            client.close()

    @asynccontextmanager
    async def _aworking(self, client: AsyncClient) -> AsyncIterator[tuple[Setting, AsyncClient]]:
        self._anew()
        self._dispatch.reset()
        self._presence.reset()
        try:
            with waking(self._backend, self._stop_signal):
                async with alistening(self._listen, self._stop_signal):
                    yield self._setting._replace(turn=asyncio.Lock()), client
        finally:
            await self._dispatch.aclose()
            with suppress(RetrysafeError):
                await arun(self._presence.farewell(), client)
            with suppress(RetrysafeError):
                await self._resume(self._setting, client)
            await client.aclose()

    # ------------------------------------------------------------ until stopped

    def run_forever(self) -> None:
        """Publish in this thread until `stop` is called; a store or a broker that fails is tried again.

        Raises `SchemaOutdated` and `StoreMisconfigured` before the first message, as `Boundary.check` does.
        It heeds no signals, as the commands do: a program may let SIGTERM call `stop`.
        """
        with self._stops.run() as self._stop_signal:
            self._forever(self._open())

    def _forever(self, client: Client) -> None:
        with self._working(client) as (setting, client):
            while not self._stop_signal.rung:
                try:
                    self._backend.check(client)
                    rest = self._rest(found=self._round(setting, client, Totals()))
                except Exception as error:  # noqa: BLE001 - a relay must not end by what happens to one batch
                    rest = self._fail(error)
                if self._stop_signal.wait(rest):
                    self._polls = self._polls.after_nudge()

    async def arun_forever(self) -> None:
        """`run_forever` for async code."""
        with self._stops.run() as self._stop_signal:
            await self._aforever(await self._aopen())

    async def _aforever(self, client: AsyncClient) -> None:
        async with self._aworking(client) as (setting, client):
            while not self._stop_signal.rung:
                try:
                    await self._backend.acheck(client)
                    if self._log is not None and self._log.is_due():
                        await self._follow(self._log, setting, client)
                    rest = self._rest(found=await self._around(setting, client, Totals()))
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    rest = self._fail(error)
                if await self._stop_signal.await_for(rest):
                    self._polls = self._polls.after_nudge()

    async def _follow(self, log: Log, setting: Setting, client: AsyncClient) -> None:
        """Publish from the log, with a round now and then, until it cannot be read or the relay is to stop."""
        asks = SqlOutboxLog(cast("PostgresqlStore", setting.store))

        async def publish(batch: Sequence[LoggedMessage]) -> bool:
            shown: list[Queued] | None = []

            def taking() -> Program[list[Queued] | None]:
                nonlocal shown
                shut = setting.dispatch.topics_shut()
                shown = yield from take(setting.store, setting.outbox, asks, batch, setting.silence, shut)
                return shown

            began = time.monotonic()
            self._report(await adrain_taken(setting, client, LOGGED, taking), began, Totals())
            self._require_that_not_all_is_refused()
            return shown is not None

        await log.follow(publish, partial(self._around, setting, client, Totals()), self._stop_signal, setting.batch)

    def stop(self) -> None:
        """Stop after the current batch. Safe to call from a signal handler.

        It is for the run that is under way, or else for the first one.
        """
        self._stops.stop()

    def _rest(self, *, found: bool) -> float:
        self._polls, rest = self._polls.after_messages() if found else self._polls.empty(random.random())
        return rest

    def _fail(self, error: BaseException) -> float:
        self._anew()
        self._reporter.report_failure(error)
        self._polls, rest = self._polls.after_failure(random.random())
        return rest

    # ------------------------------------------------------------ beside an application

    def __enter__(self) -> Relay:
        self._stop_signal = stop = self._stops.begin()
        with ExitStack() as begun:
            begun.callback(self._stops.end, stop)
            client = self._open()  # errors of configuration are raised here, not in the thread
            begun.callback(client.close)

            def work() -> None:
                with self._stops.during(stop):
                    self._forever(client)

            self._thread = threading.Thread(target=work, name="retrysafe-relay", daemon=True)
            self._thread.start()
            begun.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stops.ring()
        if self._thread is not None:
            self._thread.join()

    async def __aenter__(self) -> Relay:
        self._stop_signal = stop = self._stops.begin(asyncio.get_running_loop())
        try:
            client = await self._aopen()
        except BaseException:
            self._stops.end(stop)
            raise

        async def work() -> None:
            with self._stops.during(stop):
                await self._aforever(client)

        self._task = asyncio.create_task(work(), name="retrysafe-relay")
        self._task.add_done_callback(lambda _: self._stops.end(stop))  # of one that was cancelled before it began
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._stops.ring()
        if self._task is not None:
            await self._task


def _shuffle(buckets: list[int]) -> list[int]:
    """The buckets in random order, so that relays do not follow each other from bucket to bucket."""
    return random.sample(buckets, len(buckets))
