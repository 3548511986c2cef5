"""Following the log: publish what it says is new, and let the server forget what has left.

A message has left when the broker has confirmed it and the table has it no more, or when the table knows that it waits:
then a round of the relay publishes it, like one of any other relay. So every message that has not left is in the table,
whatever becomes of the slot: what was committed before a slot was made, or is in a log that was lost, rounds find
there. Positions in the log and numbers of messages are never compared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.cdc.batches import LoggedMessage
from retrysafe.messaging.cdc.slot import LogUnavailable, Slot, SlotInUse, SlotLag
from retrysafe.messaging.cdc.stream import LogGone, Stream, beside, open_stream
from retrysafe.messaging.relay.daemon_calls import Stopped, await_answer, in_daemon
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.protocol.outbox_walk import Most
from retrysafe.stop_signal import StopSignal

EVERY = 1.0
"""Seconds between two rounds over the table, for what the log does not say: that a message has waited long enough."""
TURN = 1.0
"""Seconds after which a relay looks whether the one that reads the log has gone."""
AGAIN = 5.0
"""Seconds after which a log that could not be read is tried again."""

LOOK = 10.0
"""Seconds between two looks at how much of the log is kept for the slot."""
SILENT = 30.0
"""Seconds after which it is told that such a look has no answer."""

_ANOTHERS = SlotLag(0, 0)
"""The lag that is reported once when another relay reads the log: else our last value would stand beside its."""

Publish = Callable[[Sequence[LoggedMessage]], Awaitable[bool]]
"""Publishes messages, and writes down what became of them; False: the table does not show them yet."""
Emit = Callable[..., None]


class Log:
    """The log as one relay reads it: the slot, and when to try again."""

    def __init__(self, slot: Slot, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._slot, self._emit, self._clock = slot, emit, clock
        self._next = 0.0
        self._has_told = False

    async def check(self, stop: StopSignal) -> None:
        """See `Slot.check`. Returns as well when ``stop`` is rung before the server has answered."""
        with suppress(Stopped):
            await await_answer(self._slot.check, stop)

    def is_due(self) -> bool:
        """Tell whether it is time to read the log; else the table is asked."""
        return self._clock() >= self._next

    async def follow(
        self, publish: Publish, work_round: Callable[[], Awaitable[bool]], stop: StopSignal, most: Most
    ) -> None:
        """Publish what the log says, and every second what a round over the table finds, until ``stop`` is rung.

        Makes the slot if it is missing or lost. Returns early while another relay reads from it, and when the log
        cannot be read, which is reported: the table is to be asked until `is_due`.
        """
        try:
            made = await await_answer(self._create, stop, work_round)
            if made:
                self._emit("slot_created", slot=self._slot.name, reason=made)
            stream = await await_answer(partial(open_stream, self._slot), stop, work_round)
            try:
                async with stream.beating(), beside(self._measure(), "retrysafe-cdc-lag"):
                    await _follow(stream, publish, work_round, stop, most)
            finally:
                await asyncio.to_thread(stream.close)
        except Stopped:
            return
        except SlotInUse:
            self._next = self._clock() + TURN
            if self._has_told:
                self._tell(_ANOTHERS)
        except LogUnavailable as error:
            self._next = self._clock() + AGAIN
            self._emit("log_unavailable", slot=self._slot.name, error=str(error))
            if isinstance(error, LogGone):
                with suppress(Stopped):
                    await await_answer(self._slot.discard, stop)

    async def _measure(self) -> None:
        """Report at intervals how far the log is behind, also while messages are being published."""
        while True:
            with suppress(LogUnavailable):  # which the stream meets too, and reports
                self._tell(await self._lag())
            await asyncio.sleep(LOOK)

    async def _lag(self) -> SlotLag:
        looking = asyncio.ensure_future(in_daemon(self._slot.lag))
        try:
            if not (await asyncio.wait([looking], timeout=SILENT))[0]:
                self._emit("lag_uncounted", error=f"slot {self._slot.name}: no answer within {SILENT:g} s")
            return await looking
        finally:
            looking.cancel()

    def _tell(self, lag: SlotLag) -> None:
        self._has_told = lag != _ANOTHERS
        self._emit("log_lag", slot=self._slot.name, behind=lag.behind, kept=lag.kept)

    def _create(self) -> str:
        try:
            return self._slot.create()
        except ConfigurationError as error:  # of a server that has become another one since the relay began
            raise LogUnavailable(f"The log cannot be read: {error}") from error


async def _follow(
    stream: Stream, publish: Publish, work_round: Callable[[], Awaitable[bool]], stop: StopSignal, most: Most
) -> None:
    next_round, found = 0.0, True
    while not stop.rung:
        batch = stream.read(most)
        if batch.messages and not await _publish(batch.messages, publish, work_round, stop):
            return
        stream.confirm(batch.end)
        if time.monotonic() >= next_round or (found and not batch.messages):
            found = await work_round()
            next_round = time.monotonic() + EVERY
        elif not batch.messages:
            await stream.wait(stop, next_round - time.monotonic())


async def _publish(
    messages: Sequence[LoggedMessage], publish: Publish, work_round: Callable[[], Awaitable[bool]], stop: StopSignal
) -> bool:
    """Publish as soon as the table shows the messages: a commit is in the log a moment before it can be seen.

    With a synchronous replica that moment lasts until that has it; what does not wait for it is found by rounds. False
    when the relay is stopped meanwhile.
    """
    polls, next_round = Polls(), time.monotonic() + EVERY
    while not await publish(messages):
        if time.monotonic() >= next_round:
            await work_round()
            next_round = time.monotonic() + EVERY
        polls, rest = polls.empty(random.random())
        await stop.await_for(rest)
        if stop.rung:
            return False
    return True
