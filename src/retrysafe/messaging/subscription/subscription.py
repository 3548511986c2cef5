"""A subscription receives messages, handles them lane by lane, and acks them when their effects are committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from retrysafe.cancellation import is_failure, reraise_cancellation
from retrysafe.errors import ConfigurationError, RetrysafeError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.messaging.inbox.dead_letters import acount_marked
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.messaging.subscription.watchdog import RECONNECTS, STALLED, Watchdog
from retrysafe.messaging.subscription.working import LOOK, SubscriptionRun
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.records import Duration
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome
from retrysafe.stop_signal import Stops, StopSignal

MOST_LANES = 10_000
"""Each lane is a task, also while it has nothing to do."""
MOST_IN_FLIGHT = 1_000_000
LAG_EVERY = 10.0
"""Seconds between two looks at how far a group is behind."""
_LONGEST_REST = 5.0
"""Seconds before it asks again a broker that is away, at most: messages wait for it."""
_SOON = 1.0
"""Seconds between two looks at whether a failure is over."""


_ALONE = (
    "This Subscription is running already: its consumer serves one run at a time. Make another Subscription, with a "
    "consumer of its own."
)
_TOLD_BY = "redelivery_window= of the consumer, or --redelivery-window"
"""The options with which a user gives the window if no broker tells."""


class Subscription:
    """Receives messages from a broker, runs a handler for each, and acks them: on an event loop, or in a thread.

    Messages of one topic and key are handled one after the other, in the order in which the broker delivers them; up to
    ``lanes`` messages with different keys are handled at once. A message that fails is tried again after a pause; only
    its own lane waits for it. After two messages of a key in a row that became dead letters, each further one of the
    key is tried once, until one is handled. Retries do not hold up messages that were never tried: while there are
    both, of four turns three are for new messages, and a quarter of the ``lanes`` (at least one of several) begins no
    retry. A failed message without a key is given back to a consumer that has no ``make_room``. A message that may have
    crashed a consumer is tried with no other in progress; the others wait a few seconds at most for that.

    The ack follows the commit. If the consumer dies between the two, the broker delivers the message again, and the
    inbox recognises it. The broker delivers unsettled messages again when the subscription ends.

    Arguments:
        consumer: the consumer that receives the messages; the subscription closes it when it ends.
        handler: a handler of `Inbox.handler` or `Inbox.batch_handler`.
        lanes: how many messages, or batches, are handled at once, up to 10,000; by default 16, and 2 for batches. Plain
            functions run in the threads of the loop's default executor, whose number (by default CPUs + 4) limits them
            too.
        in_flight: how many received messages are in memory at most, up to a million. Those that are tried again count
            a tenth, here and in the consumer's ``prefetch``.
        redrive: how often the subscription looks for dead letters that were marked to be handled again.

    Raises `ConfigurationError` when the boundary's window is shorter than the redelivery window of the broker: a
    message could be handled twice. If the consumer reads the redelivery window from its broker, the error is raised
    after the first `receive`.
    """

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler[..., Any],
        *,
        lanes: int | None = None,
        in_flight: int = 1000,
        redrive: Duration = "5s",
    ) -> None:
        if not isinstance(handler, Handler):
            raise ConfigurationError(
                f"handler= is a {type(handler).__module__}.{type(handler).__qualname__}; expected the handler of an "
                'inbox: Subscription(consumer, handle), with @inbox.handler("inventory") above def handle(message).'
            )
        self._consumer = consumer
        self._handler = handler
        self._workers = lanes if lanes is not None else (16 if handler.portion == 1 else 2)
        if not 1 <= self._workers <= MOST_LANES or not 1 <= in_flight <= MOST_IN_FLIGHT:
            raise ConfigurationError(
                f"lanes= is a number from 1 to {MOST_LANES}, and in_flight= one from 1 to {MOST_IN_FLIGHT}."
            )
        self._in_flight = in_flight
        self._redrive = seconds_of(redrive, "redrive")
        self._stops = Stops(_ALONE)
        self._bell = StopSignal()
        self._task: asyncio.Task[None] | None = None
        self._run: SubscriptionRun | None = None
        self._window_checked = False
        if consumer.redelivery_window is not None:
            self._check_window()

    # ------------------------------------------------------------ running

    async def arun_forever(self) -> None:
        """Handle messages until `stop` is called; after an error of the broker or the database, try again.

        It heeds no signals, as the command does: a program may let SIGTERM call `stop`, which finishes and acknowledges
        the messages in progress.

        Raises `ConfigurationError` when the boundary's configuration lets the handler handle no message at all, when
        the consumer is configured wrongly, and when its broker redelivers for longer than the boundary's window; before
        the first message also `SchemaOutdated` and `StoreMisconfigured`, as `Boundary.check` does. Raises
        `BrokerUnavailable` when a partition that this consumer has gives none of its messages for minutes, on several
        connections one after the other: let the process end, so that a new one begins.
        """
        with self._stops.run() as self._bell:
            await self._run_forever()

    async def _run_forever(self) -> None:
        run = self._run = SubscriptionRun(self._consumer, self._handler, self._in_flight, self._bell, forever=True)
        try:
            try:
                await self._check_store()
            except RetrysafeError as error:
                run.report(error)  # a task that runs this may be looked at late
                raise
            await run.work(
                self._workers, self._receive(run), handling=[self._redrives(run)], watching=[self._lags(run)]
            )
        finally:
            await self._consumer.aclose()

    def run_forever(self) -> None:
        """`arun_forever` for sync code, on an event loop of its own in this thread."""
        with self._stops.run() as self._bell:
            asyncio.run(self._run_forever())

    async def arun_once(self, wait: float = 0.0) -> Counter[MessageOutcome]:
        """Handle marked dead letters, and messages until none has arrived for ``wait`` seconds; count their outcomes.

        Messages that have to be tried again are given back to the broker. `stop` ends it after the messages in
        progress. Raises errors of the broker's client and the store.

        The consumer stays open, for the next run on this event loop; on another one most raise `ConfigurationError`,
        unless they were closed before. A job that calls ``asyncio.run`` each time uses `run_once`, which closes them.
        """
        with self._stops.run() as self._bell:
            return await self._run_once(wait)

    async def _run_once(self, wait: float) -> Counter[MessageOutcome]:
        await self._check_store()
        run = self._run = SubscriptionRun(self._consumer, self._handler, self._in_flight, self._bell, forever=False)
        await run.work(self._workers, self._drain_all(run, wait))
        return run.tally

    def run_once(self, wait: float = 0.0) -> Counter[MessageOutcome]:
        """`arun_once` for sync code, on an event loop of its own; closes the connections."""

        async def once() -> Counter[MessageOutcome]:
            try:
                return await self._run_once(wait)
            finally:
                await self._consumer.aclose()

        with self._stops.run() as self._bell:
            return asyncio.run(once())

    def stop(self) -> None:
        """End after the messages in progress have been acknowledged; threads and signal handlers may call it too.

        It is for the run that is under way, or else for the first one.
        """
        self._stops.stop()

    @property
    def in_progress(self) -> int:
        """The number of messages being handled at this moment, for which a `stop` waits.

        A look for dead letters that are marked counts as one.
        """
        return 0 if self._run is None else self._run.in_progress

    @property
    def unhandled(self) -> int:
        """The number of messages of the last `run_once` that became dead letters, or have to come again."""
        return 0 if self._run is None else self._run.unhandled

    @property
    def left_marked(self) -> int:
        """The number of marked dead letters that the last `run_once` left to another process.

        It is handling them, or has died less than 30 s ago.
        """
        return 0 if self._run is None else self._run.left_marked

    async def __aenter__(self) -> Subscription:
        self._bell = bell = self._stops.begin(asyncio.get_running_loop())
        try:
            await self._check_store()  # it is raised here, not in the task
        except BaseException:
            self._stops.end(bell)
            await self._consumer.aclose()
            raise

        async def work() -> None:
            with self._stops.during(bell):
                await self._run_forever()

        self._task = asyncio.create_task(work(), name=f"retrysafe-{self._handler.consumer}")
        self._task.add_done_callback(lambda _: self._stops.end(bell))  # of one that was cancelled before it began
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._stops.ring()
        if self._task is not None:
            await self._task

    async def _check_store(self) -> None:
        refused = await self._handler.setting.entry.find_unusable(self._handler.letters.backend)
        if refused is not None:
            raise refused

    def _check_window(self) -> None:
        """Raise `ConfigurationError` when the broker may hand out a message again that the inbox has forgotten.

        A consumer that reads its redelivery window from its broker has it after its first `receive`. When it is unknown
        then, an event says so. Further calls do nothing.
        """
        if self._window_checked:
            return
        boundary, redelivery_window = self._handler.setting.entry, self._consumer.redelivery_window
        if redelivery_window is None:
            self._handler.emit("retention_unknown", window=boundary.window, told_by=_TOLD_BY)
        elif boundary.window < redelivery_window:
            raise ConfigurationError(
                f"window= of boundary {boundary.name!r} is {boundary.window / 3600:g} h, and the broker may hand a "
                f"message out again for {redelivery_window / 3600:g} h: it would be handled twice. Make the window "
                "longer, or let the broker keep messages for a shorter time."
            )
        self._window_checked = True

    # ------------------------------------------------------------ receiving

    async def _receive(self, run: SubscriptionRun) -> None:
        polls = Polls()
        while not self._bell.rung:
            room = await run.room()
            try:
                if room:
                    await self._receive_into(run, room, LOOK)
                    run.failing.discard("receive")
                polls, _ = polls.after_messages()
            except BaseException as error:
                if not is_failure(error) or isinstance(error, ConfigurationError):
                    raise
                run.failing.add("receive")
                run.report(error)  # tried again after any error of the broker's client
                chance = random.random()
                polls, rest = polls.after_failure(chance)
                await self._bell.await_for(min(rest, _LONGEST_REST * chance))

    async def _drain_all(self, run: SubscriptionRun, wait: float) -> None:
        """Handle the marked dead letters, each once, and then all messages of the broker."""
        settled, found = True, list[HandleResult]()
        while settled and not self._bell.rung:
            found = await self._redrive_marked(run)
            run.count_redriven(found)
            settled = any(one.again is None for one in found)
        setting, letters = self._handler.setting, self._handler.letters
        others = not found and await acount_marked(setting, letters) > 0  # another process has the lease of redriving
        await self._drain(run, wait)
        run.left_marked = await acount_marked(setting, letters) if others else 0

    async def _drain(self, run: SubscriptionRun, wait: float) -> None:
        left = wait
        while not self._bell.rung:
            room = await run.room()
            if not room:
                continue
            piece = min(left, LOOK)
            received = await self._receive_into(run, room, piece)
            left = wait if received else left - piece
            if not received and left <= 0:
                return

    async def _receive_into(self, run: SubscriptionRun, room: int, wait: float) -> bool:
        """Receive messages, and tell whether any have come. They are the run's at once, whichever task is cancelled
        meanwhile: it gives them back.
        """

        async def receive() -> bool:
            deliveries = await self._consumer.receive(room, wait)
            try:
                self._check_window()  # before any of them is handled
            except ConfigurationError:
                run.refuse(deliveries)
                raise
            run.add(deliveries)
            return bool(deliveries)

        return await reraise_cancellation(receive())

    async def _redrives(self, run: SubscriptionRun) -> None:
        while not self._bell.rung:
            settled = False
            try:
                settled = any(one.again is None for one in await self._redrive_marked(run))
                run.failing.discard("store")
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - tried again after any error of the database
                run.failing.add("store")
                run.report(error)
            if not settled:  # else there may be more than were looked for at once
                await self._bell.await_for(self._redrive)

    async def _redrive_marked(self, run: SubscriptionRun) -> list[HandleResult]:
        """Handle marked dead letters; after `stop` no further one."""
        run.in_progress += 1
        try:
            return await self._handler.ahandle_marked(stopped=lambda: self._bell.rung)
        finally:
            run.in_progress -= 1

    async def _lags(self, run: SubscriptionRun) -> None:
        """At intervals, tell the observers how far the group is behind, and see to partitions that give nothing."""
        told: set[str] = set()
        watchdog = Watchdog()
        lag = getattr(self._consumer, "lag", None)
        while not self._bell.rung:
            if self._handler.setting.entry.is_observed("consumer_retries"):
                for place, messages in run.retried.items():
                    self._handler.emit("consumer_retries", partition=place, messages=messages)
            is_observed = self._handler.setting.entry.is_observed("consumer_lag")
            assigned = getattr(self._consumer, "assigned", None)
            if self._fails(run):
                pass  # `receive` tells why; a lag that is counted without a connection says nothing
            elif lag is None:
                self._handler.emit("consumer_seen")
            elif is_observed or assigned:
                found = await self._lag(lag, is_observed=is_observed)
                if found is not None and not self._fails(run):
                    self._handler.emit("consumer_seen")
                    told = self._tell_lag(told, found) if is_observed else told
                    await self._watch(
                        watchdog, run, {place: found[place] for place in assigned or () if place in found}
                    )
            await self._until_next_look(run)

    async def _until_next_look(self, run: SubscriptionRun) -> None:
        """Wait; after an error only for a moment, since observers are to hear soon that it is over."""
        until, failed = asyncio.get_running_loop().time() + LAG_EVERY, False
        while not failed and not self._bell.rung:
            failed, run.reported = run.reported or self._fails(run), False
            await self._bell.await_for(min(LAG_EVERY, _SOON))
            if asyncio.get_running_loop().time() >= until:
                return

    def _fails(self, run: SubscriptionRun) -> bool:
        return bool(run.failing) or getattr(self._consumer, "is_failing", False)

    async def _lag(
        self, lag: Callable[[], Awaitable[Mapping[str, int]]], *, is_observed: bool
    ) -> Mapping[str, int] | None:
        try:
            return await reraise_cancellation(lag())
        except Exception as error:  # noqa: BLE001 - `receive` tells of a broker that is away; this is tried again
            if is_observed:
                self._handler.emit("lag_uncounted", error=f"{type(error).__name__}: {error}".partition("\n")[0])
            return None

    def _tell_lag(self, told: set[str], found: Mapping[str, int]) -> set[str]:
        """Tell it, and what was told before and is another consumer's now as 0; the names that were told."""
        for place, messages in (dict.fromkeys(told - found.keys(), 0) | {**found}).items():
            self._handler.emit("consumer_lag", partition=place, messages=messages)
        return {*found}

    async def _watch(self, watchdog: Watchdog, run: SubscriptionRun, lag: Mapping[str, int]) -> None:
        """Connect anew when a partition gives nothing; end when that has not helped, for a new process to begin."""
        now = asyncio.get_running_loop().time()
        stalled = watchdog.look(lag, run.received, run.partitions_in_memory(), now)
        for place, reconnects in stalled.items():
            self._handler.emit("consumer_stalled", partition=place, messages=lag[place], reconnects=reconnects)
            if reconnects >= RECONNECTS:
                raise BrokerUnavailable(
                    f"{lag[place]} messages wait in {place}, which this consumer has, and none has arrived for "
                    f"{STALLED * (reconnects + 1):g} s, on {reconnects + 1} connections one after the other. Start the "
                    "process again, and look at the broker's log if that does not help."
                )
        if stalled:
            await self._consumer.aclose()  # the next `receive` connects
