"""A subscription: messages received, handled lane by lane, and acked when their effect is committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from retrysafe.claims.cancellation import is_failure
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.messaging.subscription.working import LOOK, Run
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.records import Duration
from retrysafe.protocol.redelivery_policy import MessageOutcome
from retrysafe.stop_signal import StopSignal


class RetentionCheck:
    """Compares the window of an inbox with its broker's, once it is known.

    A consumer knows what it was told at once, and what it reads from its broker when it has first received.
    """

    def __init__(self, consumer: Consumer, handler: Handler[..., Any]) -> None:
        self._consumer, self._handler = consumer, handler
        self._done = False
        if consumer.redelivery_window is not None:
            self.check()

    def check(self) -> None:
        """Raise `ConfigurationError` when the broker may hand out a message again that the inbox has forgotten.

        Where nobody can tell, it emits an event. Further calls do nothing.
        """
        if self._done:
            return
        boundary, redelivery_window = self._handler.setting.entry, self._consumer.redelivery_window
        if redelivery_window is None:
            self._handler.emit("retention_unknown", window=boundary.window)
        elif boundary.window < redelivery_window:
            raise ConfigurationError(
                f"window= of boundary {boundary.name!r} is {boundary.window / 3600:g} h, and the broker may hand a "
                f"message out again for {redelivery_window / 3600:g} h: it would be handled twice. Make the window "
                "longer, or let the broker keep messages for a shorter time."
            )
        self._done = True


class Subscription:
    """Receives messages from a broker, lets a handler handle them, and acks them: on an event loop, or in a thread.

    Messages of one topic and key are handled one after the other, in the order in which the broker hands them out; up
    to ``lanes`` of different keys at once. One that fails is tried again after a pause; its own lane waits for it, and
    no other. Messages without a key have no lane: they are given back to the broker instead. One that may have killed
    a consumer is tried with no other in progress; the others wait a few seconds at most for that.

    The ack follows the commit. If the consumer dies between the two, the broker delivers the message again, and the
    inbox recognises it. The broker delivers unsettled messages again when the subscription ends.

    Arguments:
        consumer: where messages come from; the subscription hangs up for it when it ends.
        handler: what `Inbox.handler` or `Inbox.batch_handler` made.
        lanes: how many messages, or batches, are handled at once; by default 16, and 2 for batches. Plain functions run
            in the threads of the loop's default executor, whose number (CPUs + 4, if none was set) bounds them too.
        in_flight: how many received messages are in memory at most; a lane that fails for long may fill that.
        redrive: how often it looks for dead letters that are to be handled again.

    Raises `ConfigurationError` when the boundary's window is shorter than the broker redelivers: a message could be
    handled twice. A consumer that reads for how long that is from its broker tells it when it has first received.
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
        self._consumer = consumer
        self._handler = handler
        self._workers = lanes if lanes is not None else (16 if handler.portion == 1 else 2)
        if self._workers < 1 or in_flight < 1:
            raise ConfigurationError("lanes= and in_flight= are numbers from 1.")
        self._in_flight = in_flight
        self._redrive = seconds_of(redrive, "redrive")
        self._bell = StopSignal()
        self._task: asyncio.Task[None] | None = None
        self._retention = RetentionCheck(consumer, handler)

    # ------------------------------------------------------------ running

    async def arun_forever(self) -> None:
        """Handle messages until `stop` is called; a broker or database that fails is tried again.

        Raises `ConfigurationError` when the handler cannot be run as its boundary is set up: no message ever could; and
        when the consumer is set up wrongly, or its broker redelivers for longer than the boundary's window.
        """
        run = Run(self._consumer, self._handler, self._in_flight, self._bell, forever=True)
        try:
            await run.work(self._workers, self._receive(run), self._redrives(run))
        finally:
            await self._consumer.aclose()

    def run_forever(self) -> None:
        """`arun_forever` for sync code, on an event loop of its own in this thread."""
        asyncio.run(self.arun_forever())

    async def arun_once(self, wait: float = 0.0) -> Counter[MessageOutcome]:
        """Handle messages until none has come for ``wait`` seconds, and count their outcomes.

        Messages that have to come again go back to the broker. Raises errors of the broker's client and the store.
        """
        run = Run(self._consumer, self._handler, self._in_flight, StopSignal(), forever=False)
        await run.work(self._workers, self._drain(run, wait))
        return run.tally

    def run_once(self, wait: float = 0.0) -> Counter[MessageOutcome]:
        """`arun_once` for sync code, on an event loop of its own; closes the connections at the end."""

        async def once() -> Counter[MessageOutcome]:
            try:
                return await self.arun_once(wait)
            finally:
                await self._consumer.aclose()

        return asyncio.run(once())

    def stop(self) -> None:
        """End after the messages in progress have been acknowledged; threads and signal handlers may call it too."""
        self._bell.ring()

    async def __aenter__(self) -> Subscription:
        self._bell = StopSignal(asyncio.get_running_loop())
        self._task = asyncio.create_task(self.arun_forever(), name=f"retrysafe-{self._handler.consumer}")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    # ------------------------------------------------------------ receiving

    async def _receive(self, run: Run) -> None:
        polls = Polls()
        while not self._bell.rung:
            room = await run.room()
            try:
                if room:
                    run.add(await self._received(room, LOOK))
                polls, _ = polls.found()
            except BaseException as error:
                if not is_failure(error) or isinstance(error, ConfigurationError):
                    raise
                run.failed(error)  # whatever the broker's client raises, it is tried again
                polls, rest = polls.failed(random.random())
                await self._bell.await_for(rest)

    async def _drain(self, run: Run, wait: float) -> None:
        while True:
            room = await run.room()
            deliveries = await self._received(room, wait) if room else ()
            run.add(deliveries)
            if room and not deliveries:
                return

    async def _received(self, room: int, wait: float) -> Sequence[Delivery]:
        deliveries = await self._consumer.receive(room, wait)
        self._retention.check()  # before any of them is handled
        return deliveries

    async def _redrives(self, run: Run) -> None:
        while not self._bell.rung:
            try:
                await self._handler.ahandle_marked()
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - a database that fails, in whatever way, is asked again
                run.failed(error)
            await asyncio.sleep(self._redrive)
