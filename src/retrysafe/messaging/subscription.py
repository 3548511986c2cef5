"""A subscription: messages received, handled lane by lane, and acked when their effect is committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from retrysafe.bell import Bell
from retrysafe.core.durations import seconds as seconds_of
from retrysafe.core.inboxing import Became, Handled
from retrysafe.core.polling import Polls
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.attempts import pause
from retrysafe.messaging.handler import Handler
from retrysafe.messaging.laning import Lanes, Portion
from retrysafe.messaging.redelivery import check_retention
from retrysafe.ports import Consumer
from retrysafe.types import Delivery, Duration

LOOK = 0.5
"""Seconds for which a subscription waits for messages before it looks whether it is to stop."""


class Subscription:
    """Receives messages from a broker, lets a handler handle them, and acks them: on an event loop, or in a thread.

    Messages of one topic and key are handled one after the other, in the order in which the broker hands them out; up
    to ``lanes`` of different keys at once. One that fails is tried again after a pause; its own lane waits for it, and
    no other. Messages without a key wait for nobody: they are given back to the broker instead.

    The ack follows the commit: a consumer that dies between the two is handed the message again, and the inbox knows
    it. Messages that nobody has settled are the broker's again when the subscription ends.

    Arguments:
        consumer: where messages come from; the subscription hangs up for it when it ends.
        handler: what `Inbox.handler` or `Inbox.batch_handler` made.
        lanes: how many messages, or batches, are handled at once; by default 16, and 2 for batches. Plain functions run
            in the threads of the loop's default executor, whose number (CPUs + 4, if none was set) bounds them too.
        in_flight: how many received messages are in memory at most; a lane that fails for long may fill that.
        redrive: how often it looks for dead letters that are to be handled again.

    Raises `ConfigurationError` when the boundary's window is shorter than the broker redelivers: a message could be
    handled twice.
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
        self._bell = Bell()
        self._task: asyncio.Task[None] | None = None
        check_retention(consumer, handler)

    # ------------------------------------------------------------ running

    async def arun_forever(self) -> None:
        """Handle messages until `stop` is called; a broker or database that fails is tried again.

        Raises `ConfigurationError` when the handler cannot be run as its boundary is set up: no message ever could.
        """
        run = _Run(self._consumer, self._handler, self._in_flight, self._bell, forever=True)
        try:
            await run.work(self._workers, self._receive(run), self._redrives(run))
        finally:
            await self._consumer.aclose()

    def run_forever(self) -> None:
        """The same in this thread, on an event loop of its own."""
        asyncio.run(self.arun_forever())

    async def arun_once(self, wait: float = 0.0) -> Counter[Became]:
        """Handle what there is, until nothing comes for ``wait`` seconds, and return what became of it.

        What has to come again is given back to the broker. Raises what the broker's client or the database raises.
        """
        run = _Run(self._consumer, self._handler, self._in_flight, Bell(), forever=False)
        await run.work(self._workers, self._drain(run, wait))
        return run.tally

    def run_once(self, wait: float = 0.0) -> Counter[Became]:
        """The same in this thread; hangs up at the end."""

        async def once() -> Counter[Became]:
            try:
                return await self.arun_once(wait)
            finally:
                await self._consumer.aclose()

        return asyncio.run(once())

    def stop(self) -> None:
        """Let it end when what is being handled has been acked; threads and signal handlers may call it too."""
        self._bell.ring()

    async def __aenter__(self) -> Subscription:
        self._bell = Bell(asyncio.get_running_loop())
        self._task = asyncio.create_task(self.arun_forever(), name=f"retrysafe-{self._handler.consumer}")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    # ------------------------------------------------------------ receiving

    async def _receive(self, run: _Run) -> None:
        polls = Polls()
        while not self._bell.rung:
            room = await run.room()
            try:
                if room:
                    run.add(await self._consumer.receive(room, LOOK))
                polls, _ = polls.found()
            except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, it is tried again
                run.failed(error)
                polls, rest = polls.failed(random.random())
                await self._bell.await_for(rest)

    async def _drain(self, run: _Run, wait: float) -> None:
        while True:
            room = await run.room()
            deliveries = await self._consumer.receive(room, wait) if room else ()
            run.add(deliveries)
            if room and not deliveries:
                return

    async def _redrives(self, run: _Run) -> None:
        while not self._bell.rung:
            try:
                await self._handler.ahandle_marked()
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - a database that fails, in whatever way, is asked again
                run.failed(error)
            await asyncio.sleep(self._redrive)


class _Run:
    """One run of a subscription: what is in memory, and the tasks that work it off."""

    def __init__(
        self, consumer: Consumer, handler: Handler[..., Any], in_flight: int, bell: Bell, *, forever: bool
    ) -> None:
        self.tally: Counter[Became] = Counter()
        self._consumer = consumer
        self._handler = handler
        self._bell = bell
        self._forever = forever
        self._lanes = Lanes(in_flight)
        self._ready: asyncio.Queue[int | None] = asyncio.Queue()
        self._settled: list[Delivery] = []
        self._acking = asyncio.Event()
        self._room = asyncio.Event()
        self._ending = self._handled_all = False

    async def work(self, workers: int, receiving: Any, redriving: Any = None) -> None:
        """Receive and handle until the receiving has ended; then let what is being handled end, and ack it."""
        handling = [asyncio.create_task(self._worker()) for _ in range(workers)]
        acking = asyncio.create_task(self._acker())
        beside = [] if redriving is None else [asyncio.create_task(redriving)]
        try:
            await _first_failure(asyncio.ensure_future(receiving), (*handling, acking, *beside))
            await self._wait_for_end(handling, acking)
        finally:
            for task in (*handling, acking, *beside):
                task.cancel()
            await asyncio.gather(*handling, acking, *beside, return_exceptions=True)

    async def _wait_for_end(self, handling: list[asyncio.Task[None]], acking: asyncio.Task[None]) -> None:
        self._ending = self._forever
        if not self._forever:
            while self._lanes.count and not any(task.done() for task in handling):
                await self.room(full=self._lanes.count)
            self._ending = True
        for _ in handling:
            self._ready.put_nowait(None)
        await asyncio.gather(*handling)
        self._handled_all = True
        self._acking.set()
        await acking

    # ------------------------------------------------------------ in memory

    def add(self, deliveries: Any) -> None:
        """Queue what was received in its lanes."""
        for delivery in deliveries:
            ready = self._lanes.add(delivery)
            if ready is not None:
                self._ready.put_nowait(ready)

    async def room(self, full: int | None = None) -> int:
        """For how many more there is room; waits a while if there is none."""
        if self._lanes.count >= (self._lanes.most if full is None else full):
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), LOOK)
            except TimeoutError:
                return 0
        return max(0, self._lanes.most - self._lanes.count)

    def failed(self, error: Exception) -> None:
        """Tell that the broker or the database could not be asked."""
        self._handler.notice("consumer_failed", error=f"{type(error).__name__}: {error}".partition("\n")[0])

    # ------------------------------------------------------------ handling

    async def _worker(self) -> None:
        while (lane := await self._ready.get()) is not None:
            if self._ending or self._bell.rung:
                continue
            portion = self._lanes.take(lane, self._more(), self._handler.portion)
            handled = await self._handled(portion)
            await self._conclude(portion, handled)

    def _more(self) -> Any:
        """Other lanes that are ready, for a batch."""
        while not self._ready.empty():
            lane = self._ready.get_nowait()
            if lane is None:
                self._ready.put_nowait(None)
                return
            yield lane

    async def _handled(self, portion: Portion) -> list[Handled]:
        try:
            return await self._handler.ahandle_many(portion.deliveries)
        except Exception as error:  # what is no message's fault: a database that does not answer, a wrong schema
            if not self._forever:
                raise
            self.failed(error)
            if isinstance(error, ConfigurationError):
                raise
            return [Handled(Became.BUSY, pause(1.0), str(error))] * len(portion.deliveries)

    async def _conclude(self, portion: Portion, handled: list[Handled]) -> None:
        """Ack what is settled; let a lane wait whose message has to come again."""
        self.tally.update(one.became for one in handled)
        for lane, concluded in self._lanes.conclude(portion, handled):
            self._settled += concluded.settled
            if concluded.again is None:
                self._next(lane)
            elif self._forever and concluded.keeps_order:
                asyncio.get_running_loop().call_later(concluded.again, self._next, lane)
            else:
                for delivery in self._lanes.drop(lane):
                    await self._give_back(delivery, concluded.again)
        self._acking.set()
        self._room.set()

    def _next(self, lane: int) -> None:
        if self._lanes.goes_on(lane):
            self._ready.put_nowait(lane)

    async def _give_back(self, delivery: Delivery, delay: float) -> None:
        try:
            await self._consumer.give_back(delivery, delay)
        except Exception as error:  # noqa: BLE001 - what cannot be given back comes back by itself
            self.failed(error)

    async def _acker(self) -> None:
        """Ack what is settled, together with what was settled meanwhile."""
        while True:
            await self._acking.wait()
            self._acking.clear()
            settled, self._settled = self._settled, []
            try:
                if settled:
                    await self._consumer.ack(settled)
            except Exception as error:  # noqa: BLE001 - what cannot be acked is delivered again, and known
                self.failed(error)
            if self._handled_all and not self._settled:
                return


async def _first_failure(receiving: asyncio.Future[None], others: tuple[asyncio.Task[None], ...]) -> None:
    """Wait for the receiving to end; an error of a worker's ends it too."""
    try:
        while not receiving.done():
            await asyncio.wait((receiving, *others), return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                if task.done():
                    task.result()
        receiving.result()
    finally:
        receiving.cancel()
