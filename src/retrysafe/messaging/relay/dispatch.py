"""Handing messages to a publisher by destination, so that an unavailable destination does not delay the others.

A destination is the queue, stream or endpoint that a message goes to (`retrysafe.messaging.brokers.base.Routed`), else
its topic. Each has a circuit breaker. What it did not take, and what is withheld while its breaker is open, spends no
attempt and is not overtaken by later messages of its key.

An unknown outcome does not show whether the message or the destination caused it. So the messages of a call with an
unknown outcome are suspects: each is published alone from then on. It spends an attempt if that has an unknown outcome
again although the destination has taken another message since its last failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from retrysafe.messaging.relay.destination_breaker import Breaker
from retrysafe.messaging.relay.publish_calls import PublishCalls, PublishRefusal
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus, Queued
from retrysafe.protocol.publish_policy import clip_pause

if TYPE_CHECKING:
    from retrysafe.stop_signal import StopSignal

PROBING = 0.1
"""Seconds for which they wait for a probe, which may hang as the message before it did."""
SHORTEST = 0.05
PATIENCE = 2.0
"""Seconds for which the other messages of a bucket wait for one destination's answers."""
SUSPECTS = 8
"""The number of suspects of a wave that are published, one after the other, before the bucket goes on."""
MOST_SHUT = 500
"""The largest number of topics that a look at a bucket leaves out; messages read of others are withheld."""
_REMEMBERED = 10_000
_TAKEN = frozenset({PublishStatus.ACKED, PublishStatus.DUPLICATE})
_ANSWERS = _TAKEN | {PublishStatus.RETRYABLE, PublishStatus.REJECTED}
_UNDER_WAY = "the destination has not answered yet"

_Name: TypeAlias = "tuple[int, str, str]"


class PublishCall(NamedTuple):
    to: Destination
    wave: list[Queued]


class Destination:
    """The state of one destination: its circuit breaker, its overdue calls, and its last error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: set[str] = set()
        self.breaker = Breaker()
        self.proven = False
        """True if it has taken a message since it last failed, or since one was blamed for a failure."""
        self.overdue = 0
        """Calls under way that are not waited for any more."""
        self.error = ""

    def admits(self, now: float) -> bool:
        return not self.overdue and self.breaker.admits(now)

    def is_shut(self, now: float) -> bool:
        return bool(self.overdue) or self.breaker.is_shut(now)


class Dispatch:
    """The publishing of one relay, and the state of its destinations."""

    def __init__(
        self,
        publisher: Any,
        emit: Callable[..., None],
        *,
        timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._calls = PublishCalls(publisher, timeout)
        self.refused = ""
        """The refusal of a message before it was known whether the publisher works."""
        self._emit, self._clock, self._patience, self._timeout = emit, clock, patience, timeout
        self._route: Callable[[Envelope], str] | None = getattr(publisher, "destination", None)
        self._by_topic = bool(getattr(publisher, "by_topic", True))
        self._destinations: dict[str, Destination] = {}
        self._suspects: set[_Name] = set()
        self._under_way: set[_Name] = set()
        self._answers: dict[_Name, PublishResult] = {}
        self._tasks: set[asyncio.Task[dict[_Name, PublishResult]]] = set()
        self._ended = False
        """True if a call that was left under way has ended."""
        self._withheld_for: list[Queued] = []
        """Messages of such calls that no relay may publish yet."""

    # ------------------------------------------------------------ for the relay

    def topics_shut(self) -> tuple[str, ...]:
        """The topics of which nothing is to be read now."""
        if not self._by_topic or not self._destinations:
            return ()
        now = self._clock()
        topics = {topic for one in self._destinations.values() if one.is_shut(now) for topic in one.topics}
        return tuple(sorted(topics)[:MOST_SHUT])

    def destination(self, envelope: Envelope) -> str:
        if self._route is None:
            return envelope.topic
        try:
            return self._route(envelope)
        except Exception:  # noqa: BLE001 - of the user's function: publishing says what is wrong
            return envelope.topic

    @property
    def works(self) -> bool:
        """True if the publisher has done something in this run, instead of refusing it."""
        return self._calls.works

    def reset(self) -> None:
        """Begin a run: destinations are tried afresh, and what an event loop was closed over is under way no more."""
        self._destinations.clear()
        self._calls.works = False
        self._tasks, self._under_way, self._withheld_for, self._ended = set(), set(), [], False

    async def settle(self, stop: StopSignal) -> bool:
        """Wait until a call that was left under way has ended; False when none has since the last time.

        Returns as well when ``stop`` is rung.
        """
        while self._tasks and not self._ended and not stop.rung:
            stopped = asyncio.ensure_future(stop.await_for(self._timeout))
            try:
                await asyncio.wait({*self._tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
        ended, self._ended = self._ended, False
        return ended

    def take_ended(self) -> list[Queued]:
        """The messages of calls that were left under way and have ended since the last time: they may leave again."""
        ended, self._withheld_for = self._withheld_for, []
        return ended

    async def aclose(self) -> None:
        """Give up what is under way: it is published again, under its ids."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ publishing

    def publish(self, wave: Sequence[Queued]) -> list[PublishResult]:
        """Publish what may be, and say of each message of the wave how it was taken."""
        calls, suspects, known = self._plan(wave)
        together = [queued for call in calls for queued in call.wave]
        if together:
            said = iter(self._calls.publish(together))
            for call in calls:
                answers = [next(said) for _ in call.wave]
                known |= self._judge(call, answers, alone=len(together) == 1)
        for call in suspects:
            if self._goes_on(call):
                known |= self._judge(call, self._calls.publish(call.wave), alone=True)
        return self._complete(wave, known)

    async def apublish(self, wave: Sequence[Queued]) -> list[PublishResult]:
        """`publish` for async code. A destination that does not answer in time keeps the others waiting no longer."""
        calls, suspects, known = self._plan(wave)
        if self._route is None:
            together = [queued for call in calls for queued in call.wave]
            said = iter(await self._calls.apublish(together) if together else ())
            for call in calls:
                answers = [next(said) for _ in call.wave]
                known |= self._judge(call, answers, alone=len(together) == 1)
        else:
            known |= await self._apart(calls)
        for call in suspects:
            if self._goes_on(call):
                known |= await self._apart([call])
        return self._complete(wave, known)

    async def _apart(self, calls: Sequence[PublishCall]) -> dict[_Name, PublishResult]:
        """Publish to each destination in a call of its own, and wait for the answers as long as patience lasts."""
        if not calls:
            return {}
        tasks = {asyncio.create_task(self._call(call)): call for call in calls}
        proven = any(not call.to.breaker.failures for call in calls)
        try:
            await asyncio.wait(tasks, timeout=self._patience if proven else PROBING)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        known: dict[_Name, PublishResult] = {}
        for task, call in tasks.items():
            known |= task.result() if task.done() else self._leave(task, call)
        return known

    async def _call(self, call: PublishCall) -> dict[_Name, PublishResult]:
        return self._judge(call, await self._calls.apublish(call.wave), alone=len(call.wave) == 1)

    def _leave(self, task: asyncio.Task[dict[_Name, PublishResult]], call: PublishCall) -> dict[_Name, PublishResult]:
        """Leave a call under way; its answers are found when its messages come up again.

        Until it has ended, or been given up, no relay publishes them, nor what follows in their lanes: what this call
        still publishes would come after that.
        """
        names = {_name(queued) for queued in call.wave}
        tasks, under_way = self._tasks, self._under_way
        under_way |= names
        tasks.add(task)
        call.to.overdue += 1
        self._fail(call.to, _UNDER_WAY, 0.0)
        rest = self._timeout + PATIENCE
        until = self._clock() + rest

        def end(task: asyncio.Task[dict[_Name, PublishResult]]) -> None:
            tasks.discard(task)
            under_way.difference_update(names)
            call.to.overdue -= 1
            if tasks is not self._tasks:  # of an earlier run
                return
            self._ended = True
            if self._clock() < until:  # else other relays may have published them
                self._withheld_for += call.wave
            if not task.cancelled():
                if len(self._answers) > _REMEMBERED:  # never asked for again: other relays have published them
                    self._answers.clear()
                self._answers |= task.result()

        task.add_done_callback(end)
        return dict.fromkeys(names, PublishResult(PublishStatus.POSTPONED, _UNDER_WAY, rest))

    # ------------------------------------------------------------ what is tried

    def _plan(self, wave: Sequence[Queued]) -> tuple[list[PublishCall], list[PublishCall], dict[_Name, PublishResult]]:
        """Split a wave into messages to publish, suspects, and messages whose destination is down."""
        now = self._clock()
        calls: dict[str, PublishCall] = {}
        suspects: list[PublishCall] = []
        known: dict[_Name, PublishResult] = {}
        for queued in wave:
            name, to = _name(queued), self._destination(queued.envelope)
            suspected = name in self._suspects
            if name in self._answers:
                known[name] = self._answers.pop(name)
            elif name in self._under_way or (suspected and len(suspects) >= SUSPECTS) or not to.admits(now):
                known[name] = self._withhold(to)
            elif suspected:
                suspects.append(PublishCall(to, [queued]))
            else:
                calls.setdefault(to.name, PublishCall(to, [])).wave.append(queued)
        return list(calls.values()), suspects, known

    def _goes_on(self, call: PublishCall) -> bool:
        """Tell whether a suspect is still to be published, after what the calls before it have shown."""
        return not (call.to.overdue or (call.to.breaker.is_shut(self._clock()) and not call.to.breaker.probing))

    def _destination(self, envelope: Envelope) -> Destination:
        name = envelope.topic if self._route is None else self.destination(envelope)
        to = self._destinations.get(name)
        if to is None:
            if len(self._destinations) >= _REMEMBERED:
                self._destinations = {n: one for n, one in self._destinations.items() if one.is_shut(self._clock())}
            to = self._destinations[name] = Destination(name)
        if self._by_topic:
            to.topics.add(envelope.topic)
        return to

    # ------------------------------------------------------------ what follows

    def _judge(self, call: PublishCall, said: Sequence[PublishResult], *, alone: bool) -> dict[_Name, PublishResult]:
        """Return the results of the messages of a call, and update the state of their destination.

        ``alone``: whether nothing else was published with the message.
        """
        statuses = {one.status for one in said}
        if statuses <= _TAKEN:
            return self._take_all(call, said)
        unknown = [one.error for one in said if one.status is PublishStatus.UNKNOWN]
        taken = not statuses.isdisjoint(_TAKEN)
        blamed = len(unknown) == 1 and (taken or (alone and call.to.proven))
        stalled = self._learn(call.to, said, unknown, blamed=blamed, taken=taken)
        known = {
            _name(queued): self._final(call.to, queued, one, blamed=blamed)
            for queued, one in zip(call.wave, said, strict=True)
        }
        if stalled:  # the reason of them all is written down with one, which stays due
            first = next((name for name, one in known.items() if one.status is PublishStatus.STALLED), None)
            if first is not None:
                known[first] = known[first]._replace(status=PublishStatus.POSTPONED)
        return known

    def _take_all(self, call: PublishCall, said: Sequence[PublishResult]) -> dict[_Name, PublishResult]:
        """`_judge` of a call of which all was taken."""
        call.to.proven = True
        if call.to.breaker.note_answer():
            self._emit("destination_recovered", destination=call.to.name)
        known = {_name(queued): one for queued, one in zip(call.wave, said, strict=True)}
        if self._suspects:
            self._suspects.difference_update(known)
        return known

    def _learn(
        self, to: Destination, said: Sequence[PublishResult], unknown: Sequence[str], *, blamed: bool, taken: bool
    ) -> bool:
        """Update the state of a destination by the results of a call; True if it takes nothing for now."""
        stalled = [one for one in said if one.status is PublishStatus.STALLED]
        to.proven = (to.proven or taken) and not unknown
        if stalled:
            self._fail(to, stalled[0].error, max(clip_pause(one.pause) for one in stalled))
        elif any(one.status in _ANSWERS for one in said):
            if to.breaker.note_answer():
                self._emit("destination_recovered", destination=to.name)
        elif unknown and not blamed:
            self._fail(to, unknown[0], 0.0)
        else:
            to.breaker.note_nothing()
        return bool(stalled)

    def _fail(self, to: Destination, error: str, pause: float) -> None:
        to.proven = False
        to.error = error
        rest = to.breaker.note_failure(self._clock(), random.random(), pause)
        self._emit("destination_stalled", destination=to.name, error=error, pause=round(rest, 3))

    def _final(self, to: Destination, queued: Queued, said: PublishResult, *, blamed: bool) -> PublishResult:
        name = _name(queued)
        if said.status is PublishStatus.UNKNOWN:
            if blamed:
                return said._replace(status=PublishStatus.RETRYABLE)
            if len(self._suspects) >= _REMEMBERED:
                self._suspects.clear()
            self._suspects.add(name)
            return said
        if said.status in _ANSWERS:
            self._suspects.discard(name)
        return self._withhold(to, said.error) if said.status is PublishStatus.STALLED else said

    def _withhold(self, to: Destination, error: str = "") -> PublishResult:
        """A message whose destination takes nothing: not read before it does again, or not before the next probe."""
        error = error or to.error or _UNDER_WAY
        if self._by_topic:
            return PublishResult(PublishStatus.STALLED, error)
        return PublishResult(PublishStatus.POSTPONED, error, max(SHORTEST, to.breaker.pause(self._clock())))

    def _complete(self, wave: Sequence[Queued], known: dict[_Name, PublishResult]) -> list[PublishResult]:
        said = [known.get(_name(queued)) or self._withhold(self._destination(queued.envelope)) for queued in wave]
        if self.works:
            return said
        self.refused = next((one.error for one in said if isinstance(one, PublishRefusal)), self.refused)
        stalled = PublishStatus.STALLED  # while the publisher may refuse everything
        return [PublishResult(stalled, one.error) if isinstance(one, PublishRefusal) else one for one in said]


def _name(queued: Queued) -> _Name:
    return queued.id, queued.envelope.source, queued.envelope.id
