"""The messages that a subscription has in memory, and the tasks that handle them lane by lane and ack them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from math import inf
from typing import Any, TypeAlias

from retrysafe.cancellation import is_failure, reraise_cancellation, run_to_completion
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.errors import QueueMissing
from retrysafe.messaging.inbox.attempts import pause
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.subscription.exclusive import Exclusive
from retrysafe.messaging.subscription.failing import FailingLanes
from retrysafe.messaging.subscription.lanes import Lanes, Portion
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.redelivery_policy import DONE, HandleResult, MessageOutcome
from retrysafe.stop_signal import StopSignal

LOOK = 0.5
"""Seconds for which a subscription waits for messages before it checks whether it was stopped."""
FULL_AFTER, FULL_EVERY = 10.0, 60.0
"""Seconds after which it is told that a partition is full of retries, and between two such events."""
LEAVING = 5.0
"""Seconds that a run's end waits for a broker that takes nothing back."""


_Work: TypeAlias = "Coroutine[Any, Any, None]"


class SubscriptionRun:
    """One run of a subscription: its messages in memory, and its tasks."""

    def __init__(
        self, consumer: Consumer, handler: Handler[..., Any], in_flight: int, bell: StopSignal, *, forever: bool
    ) -> None:
        self.tally: Counter[MessageOutcome] = Counter()
        self.in_progress = 0
        self.received: Counter[str] = Counter()
        """The number of messages of each partition that have arrived."""
        self.failing = {"receive"}
        """The repeated requests, "receive" and "store", that failed the last time; at first "receive"."""
        self.reported = False
        """True after a failure, until it is noticed that there was one."""
        self._consumer = consumer
        self._handler = handler
        self._bell = bell
        self._forever = forever
        self._lanes = Lanes(in_flight)
        self._failing = FailingLanes()
        self._make_room = getattr(consumer, "make_room", None)
        self._full_since: dict[str, float] = {}
        self._full_told: dict[str, float] = {}
        self._look_at = 0.0
        self._new: list[Portion] = []
        """The portions at work that were never tried."""
        self._retries = self._most_retries = 0
        """The places at work that retries have, and that they have at most while there are new messages."""
        self._begun: set[str] = set()
        """The partitions of new messages whose attempt has ended since the last look."""
        self._solitude = Exclusive()
        self._ready = asyncio.Semaphore(0)
        """Released for each lane that is ready; a batch takes several at once."""
        self._settled: list[Delivery] = []
        """The handled messages, until the broker has been told."""
        self._returning: dict[int, tuple[Delivery, float]] = {}
        """The messages to give back, and the seconds for which each waits, until the broker has it."""
        self._numbers = count()
        self._left: set[int] = set()
        """Hashes of the messages of a run that ends by itself which became dead letters, or have to come again."""
        self._dead_again = self._still_marked = 0
        self.left_marked = 0
        """The number of marked dead letters that another process is handling, or was when it died."""
        self._acking = asyncio.Event()
        self._room = asyncio.Event()
        self._finishing = self._handled_all = False

    @property
    def unhandled(self) -> int:
        """The number of messages that became dead letters or have to come again, of a run that ends by itself."""
        return len(self._left) + self._dead_again + self._still_marked + self.left_marked

    def count_redriven(self, found: list[HandleResult]) -> None:
        """Count dead letters that were handled again; one that has to come again is in what the next look finds."""
        self.tally.update(one.became for one in found)
        self._dead_again += sum(one.became not in DONE and one.again is None for one in found)
        self._still_marked = sum(one.again is not None for one in found)

    async def work(
        self, workers: int, receiving: _Work, *, handling: Iterable[_Work] = (), watching: Iterable[_Work] = ()
    ) -> None:
        """Receive and handle until receiving has ended; then finish the messages in progress, and ack them.

        What is ``handling`` messages beside it ends by itself at the bell, and is waited for; ``watching`` only looks,
        and is cancelled.
        """
        self._most_retries = max(1, workers - max(1, workers // 4))
        receives = asyncio.ensure_future(receiving)
        lanes = [asyncio.create_task(self._worker()) for _ in range(workers)]
        acking = asyncio.create_task(self._acker())
        beside = [asyncio.create_task(one) for one in handling]
        watches = [asyncio.create_task(one) for one in watching]
        try:
            await _first_failure(receives, (*lanes, acking, *beside, *watches))
            await self._wait_for_end(lanes, acking)
            await asyncio.gather(*beside)
        finally:
            tasks = (receives, *lanes, acking, *beside, *watches)
            for task in tasks:
                task.cancel()
            _, cancelled = await run_to_completion(self._end(tasks))
            if cancelled is not None:
                raise cancelled

    async def _end(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        """Leave when everything has ended: it may change what is left."""
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._forever:
            await self._leave()

    async def _leave(self) -> None:
        """Ack what is settled, and give the rest back: the consumer may live on, and would keep it."""
        self.refuse(self._lanes.rest())
        try:
            async with asyncio.timeout(LEAVING):
                given = [self._consumer.give_back(*one) for one in self._returning.values()]
                acked = [self._consumer.ack(self._settled)] if self._settled else []
                await asyncio.gather(*map(self._try, (*given, *acked)))  # none waits for what another takes
        except TimeoutError:
            self.report(TimeoutError(f"the broker took nothing back within {LEAVING:g} s: closing the consumer does"))

    async def _try(self, telling: Awaitable[None]) -> None:
        """Tell the broker; an error of one message keeps no other."""
        try:
            await telling
        except BaseException as error:
            if not is_failure(error):
                raise
            self.report(error)

    async def _wait_for_end(self, handling: list[asyncio.Task[None]], acking: asyncio.Task[None]) -> None:
        self._finishing = self._forever
        if not self._forever:
            while self._lanes.count and not self._bell.rung and not any(task.done() for task in handling):
                await self.room(full=self._lanes.count)
            self._finishing = True
        for _ in handling:
            self._ready.release()
        await asyncio.gather(*handling)
        self._handled_all = True
        self._acking.set()
        await acking

    # ------------------------------------------------------------ in memory

    def add(self, deliveries: Any) -> None:
        """Queue received deliveries in their lanes."""
        for delivery in deliveries:
            self.received[delivery.partition] += 1
            ready = self._lanes.add(delivery)
            if ready is not None:
                self._make_ready(ready)

    def partitions_in_memory(self) -> set[str]:
        """The partitions of the messages in memory."""
        return {delivery.partition for delivery in self._lanes}

    def refuse(self, deliveries: Iterable[Delivery]) -> None:
        """Handle none of these: they are given back at the end."""
        for delivery in deliveries:
            self._return(delivery, 0.0)

    async def room(self, full: int | None = None) -> int:
        """Return the number of further messages that may be received; wait up to half a second if none may."""
        if self._forever:
            self._look_whether_full()
        if self._lanes.load >= (self._lanes.most if full is None else full):
            self._room.clear()
            try:
                async with asyncio.timeout(LOOK):
                    await self._room.wait()
            except TimeoutError:
                return 0
        return max(0, self._lanes.most - self._lanes.load)

    def report(self, error: BaseException) -> None:
        """Emit an event: a request to the broker or the database failed, or the queue does not exist."""
        self.reported = True
        name = "queue_missing" if isinstance(error, QueueMissing) else "consumer_failed"
        self._handler.emit(name, error=f"{type(error).__name__}: {error}".partition("\n")[0])

    # ------------------------------------------------------------ handling

    async def _worker(self) -> None:
        while True:
            await self._ready.acquire()
            if self._finishing:
                return
            if self._bell.rung:
                continue
            ready = self._lanes.turn(new_only=self._retries >= self._most_retries)
            if not ready:
                continue
            retry = ready is self._lanes.again
            first, more = ready.popleft(), _popping(ready)
            portion = self._lanes.take(first, more, self._handler.portion, self._handler.portion_bytes)
            self.in_progress += len(portion.deliveries)
            self._retries += retry
            if not retry:
                self._new.append(portion)
            try:
                await self._conclude(portion, await self._handle(portion))
            finally:
                self.in_progress -= len(portion.deliveries)
                self._retries -= retry
                if not retry:
                    self._new.remove(portion)
                    self._begun.update([one.partition for one in portion.deliveries])

    def _make_ready(self, lane: int) -> None:
        self._lanes.make_ready(lane)
        self._ready.release()

    async def _handle(self, portion: Portion) -> list[HandleResult]:
        deliveries = portion.deliveries
        try:
            handled = await self._solitude.together(partial(self._handler.ahandle_many, deliveries, alone=False))
            self.failing.discard("store")
            for place, one in enumerate(handled):
                if one.became is MessageOutcome.SUSPECT:
                    suspect = partial(self._handler.ahandle, deliveries[place].envelope)
                    handled[place] = await self._solitude.alone(suspect)
                if self._forever and self._failing.gives_up(portion.lanes[place], handled[place]):
                    handled[place] = await self._handler.agive_up(deliveries[place].envelope, handled[place].error)
            return handled
        except Exception as error:  # not the fault of a message: a database that does not answer, a wrong schema
            if not self._forever:
                raise
            self.failing.add("store")
            self.report(error)
            if isinstance(error, ConfigurationError):
                raise
            return [HandleResult(MessageOutcome.BUSY, pause(1.0), str(error))] * len(deliveries)

    async def _conclude(self, portion: Portion, handled: list[HandleResult]) -> None:
        """Ack settled messages; let a lane wait whose first message has to be tried again."""
        self.tally.update(one.became for one in handled)
        if self._forever:
            self._note_failing(portion, handled)
        else:
            self._note(portion, handled)
        returned: list[int] = []
        for lane, concluded in self._lanes.conclude(portion, handled):
            self._settled += concluded.settled
            if concluded.again is None:
                self._next(lane)
            elif self._forever and (concluded.keeps_order or self._make_room is not None):
                self._wait(lane, concluded.again)
            else:
                returned += [self._return(delivery, concluded.again) for delivery in self._lanes.drop(lane)]
        self._acking.set()
        self._room.set()
        await asyncio.gather(*map(self._give_back, returned))  # at once: a lane is given back as a whole

    def _note_failing(self, portion: Portion, handled: list[HandleResult]) -> None:
        for delivery, lane, one in zip(portion.deliveries, portion.lanes, handled, strict=True):
            if delivery.envelope.key is not None and self._failing.note(lane, one):
                self._handler.emit("lane_failing", topic=delivery.envelope.topic, error=one.error)

    def _wait(self, lane: int, seconds: float) -> None:
        """Let a lane wait: what is in it leaves room for others, up to a bound that is told."""
        asyncio.get_running_loop().call_later(seconds, self._next, lane)
        if self._make_room is not None:
            self._make_room(self._lanes.retried)

    def _look_whether_full(self) -> None:
        """Tell of partitions that are full of retries: for so long no new message has begun, and none can be received.

        It does not matter whether the retries wait, are due or are being tried.
        """
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        begun = self._begun.union(one.partition for portion in self._new for one in portion.deliveries)
        self._begun.clear()
        full = {*self._make_room(self._lanes.retried)} if self._make_room is not None else set()
        if self._lanes.load >= self._lanes.most and not begun:
            full.update(+self._lanes.retried)
        full -= begun
        if full:
            full -= self._lanes.new_partitions()
        self._full_since = {one: self._full_since.get(one, now) for one in full}
        for one, since in self._full_since.items():
            if now >= max(since + FULL_AFTER, self._full_told.get(one, -inf) + FULL_EVERY):
                self._full_told[one] = now
                self._handler.emit("consumer_full", partition=one, messages=self._lanes.retried[one])

    @property
    def retried(self) -> Mapping[str, int]:
        """The number of messages of each partition in lanes whose first message is tried again."""
        return self._lanes.retried

    def _note(self, portion: Portion, handled: list[HandleResult]) -> None:
        for delivery, one in zip(portion.deliveries, handled, strict=True):
            (self._left.discard if one.became in DONE else self._left.add)(_hash(delivery))

    def _next(self, lane: int) -> None:
        if self._lanes.goes_on(lane):
            self._make_ready(lane)

    def _return(self, delivery: Delivery, delay: float) -> int:
        """Note that a message is to be given back; the number that it is noted under."""
        if not self._forever:
            self._left.add(_hash(delivery))
        number = next(self._numbers)
        self._returning[number] = delivery, delay
        return number

    async def _give_back(self, number: int) -> None:
        try:
            await reraise_cancellation(self._consumer.give_back(*self._returning[number]))
        except BaseException as error:
            if not is_failure(error):
                raise
            self.report(error)  # the broker delivers it again by itself
        del self._returning[number]

    async def _acker(self) -> None:
        """Ack settled messages, together with those that were settled during the ack before."""
        while True:
            await self._acking.wait()
            self._acking.clear()
            settled = [*self._settled]
            try:
                if settled:
                    await reraise_cancellation(self._consumer.ack(settled))
            except BaseException as error:
                if not is_failure(error):
                    raise
                self.report(error)  # delivered again, and recognised
            del self._settled[: len(settled)]
            if self._handled_all and not self._settled:
                return


def _popping(ready: deque[int]) -> Iterator[int]:
    while ready:
        yield ready.popleft()


def _hash(delivery: Delivery) -> int:
    """The hash of what a message is known by, whenever it is delivered."""
    of = delivery.envelope
    return hash((of.topic, of.source, of.id or (of.key, of.payload)))


async def _first_failure(receiving: asyncio.Future[None], others: Iterable[asyncio.Task[None]]) -> None:
    """Wait until receiving ends; an error of another task ends it too."""
    running = {*others}
    try:
        while not receiving.done():
            await asyncio.wait((receiving, *running), return_when=asyncio.FIRST_COMPLETED)
            for task in [one for one in running if one.done()]:
                running.discard(task)
                task.result()
        receiving.result()
    finally:
        receiving.cancel()
