"""Messages handled in batches: one transaction for many, and when it fails, split until the one at fault is alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

from retrysafe.claims.batch import BatchClaim
from retrysafe.claims.decorator import refuse_unfinished
from retrysafe.entrypoint import CODEC, in_thread
from retrysafe.errors import OutcomeUnknown, Postponed, RetrysafeError, RetryTransaction
from retrysafe.messaging.inbox.attempts import HANDLED, HandlerSettings, InboxAttempt, handler_of
from retrysafe.messaging.inbox.batch_plan import BatchPart, BatchPlan, Broken, plan
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.messaging.inbox.handler import Handler
from retrysafe.messaging.inbox.message import InboxMessage
from retrysafe.protocol.backoff import RESTART
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import lane
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome

P = ParamSpec("P")
R = TypeVar("R")
RESTARTS = 3
"""The number of times that a batch is run again because the database asks for it, before it is split."""


class _NotTogether(Exception):
    """A message of the batch needs a claim of its own."""

    def __init__(self, at: int) -> None:
        self.at = at


class _Batch(NamedTuple):
    places: list[int]
    attempts: list[InboxAttempt]


class BatchHandler(Handler[P, R]):
    """A handler whose messages are handled in one transaction, up to ``portion`` and ``portion_bytes``."""

    def __init__(self, setting: HandlerSettings, letters: Letters, most: int, most_bytes: int) -> None:
        super().__init__(setting, letters)
        self.portion = most
        self.portion_bytes = most_bytes

    def handle_many(self, deliveries: Sequence[Delivery], *, alone: bool = True) -> list[HandleResult]:
        """Handle deliveries in this order, in as few transactions as possible, and return what became of each.

        When a transaction fails, it is rolled back, and its messages are handled again without the one at fault, which
        is handled by itself; ``alone`` as for `Handler.handle`. Raises what that raises; what was committed before is
        then a duplicate.
        """
        steps = self._plan(deliveries)
        try:
            part = next(steps)
            while True:
                answer = self._single(deliveries, part, alone) if part.single else self._together(deliveries, part)
                part = steps.send(answer)
        except StopIteration as stop:
            return self._count(stop.value)

    async def ahandle_many(self, deliveries: Sequence[Delivery], *, alone: bool = True) -> list[HandleResult]:
        """`handle_many` on an event loop. A plain function runs in a thread, with its claims."""
        if not self.is_async:
            return await in_thread(lambda: self.handle_many(deliveries, alone=alone))
        steps = self._plan(deliveries)
        try:
            part = next(steps)
            while True:
                single = part.single
                answer = await (self._asingle(deliveries, part, alone) if single else self._atogether(deliveries, part))
                part = steps.send(answer)
        except StopIteration as stop:
            return self._count(stop.value)

    # ------------------------------------------------------------ one by one

    def _plan(self, deliveries: Sequence[Delivery]) -> BatchPlan:
        """Plan a batch; a redelivered message may have killed a consumer, and is handled by itself."""
        lanes = [lane(one.envelope.topic, one.envelope.key, one.envelope.id) for one in deliveries]
        alone = not self.setting.entry.supports_batch
        return plan(lanes, {place for place, one in enumerate(deliveries) if alone or one.redelivered})

    def _single(self, deliveries: Sequence[Delivery], part: BatchPart, alone: bool) -> list[HandleResult]:
        one = deliveries[part.places[0]]
        return [self.handle(one.envelope, redelivered=one.redelivered, alone=alone)]

    async def _asingle(self, deliveries: Sequence[Delivery], part: BatchPart, alone: bool) -> list[HandleResult]:
        one = deliveries[part.places[0]]
        return [await self.ahandle(one.envelope, redelivered=one.redelivered, alone=alone)]

    # ------------------------------------------------------------ together

    def _together(self, deliveries: Sequence[Delivery], part: BatchPart) -> list[HandleResult] | Broken:
        batch = self._batch(deliveries, part)
        restarts = 0
        while not isinstance(batch, Broken):
            progress = _Progress(batch)
            try:
                with self._claims(batch) as claims:
                    for group in progress.groups(self.setting, claims):
                        with handler_of(self.consumer):
                            refuse_unfinished(claims, self.setting.function.call(group))  # type: ignore[arg-type]
                    progress.at = None
                return self._results_of(batch, progress)
            except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
                again = progress.judge(error, restarts)
                if isinstance(again, Broken):
                    return again
                restarts += 1
                time.sleep(again)
        return batch

    async def _atogether(self, deliveries: Sequence[Delivery], part: BatchPart) -> list[HandleResult] | Broken:
        batch = self._batch(deliveries, part)
        restarts = 0
        while not isinstance(batch, Broken):
            progress = _Progress(batch)
            try:
                async with self._claims(batch) as claims:
                    for group in progress.groups(self.setting, claims):
                        with handler_of(self.consumer):
                            refuse_unfinished(claims, await self.setting.function.acall(group))  # type: ignore[arg-type]
                    progress.at = None
                return self._results_of(batch, progress)
            except (Exception, Postponed) as error:  # noqa: BLE001 - whatever a handler raises is its own
                again = progress.judge(error, restarts)
                if isinstance(again, Broken):
                    return again
                restarts += 1
                await asyncio.sleep(again)
        return batch

    def _results_of(self, batch: _Batch, progress: _Progress) -> list[HandleResult]:
        handled = progress.results()
        for attempt, one in zip(batch.attempts, handled, strict=True):
            self._tell_late(attempt, one.became)
        return handled

    def _batch(self, deliveries: Sequence[Delivery], part: BatchPart) -> _Batch | Broken:
        """The attempts at the messages, if all can be claimed together: each has an id of its own."""
        attempts = [InboxAttempt(self.setting, deliveries[place].envelope) for place in part.places]
        known: set[bytes] = set()
        for place, attempt in zip(part.places, attempts, strict=True):
            if attempt.identity.key is None or attempt.arrival.identity in known:
                return Broken(place)
            known.add(attempt.arrival.identity)
        return _Batch(part.places, attempts)

    def _claims(self, batch: _Batch) -> BatchClaim:
        wanted = [(attempt.identity.key or "", attempt.identity.fingerprint) for attempt in batch.attempts]
        claims = self.setting.entry.open_many(wanted, operation=self.consumer, codec=CODEC)
        claims.result = HANDLED
        return claims

    def _count(self, handled: list[HandleResult]) -> list[HandleResult]:
        fresh = sum(1 for one in handled if one.became is MessageOutcome.HANDLED)
        self.emit("batch_handled", messages=len(handled), handled=fresh)
        return handled


class _Progress:
    """The progress of a batch, and the meaning of its errors."""

    def __init__(self, batch: _Batch) -> None:
        self.at: int | None = None
        """The place of the message that is being handled, if one is by itself."""
        self.working = False
        self._batch = batch
        self._decisions: dict[bytes, Decision] = {}

    def groups(self, setting: HandlerSettings, claims: BatchClaim) -> Any:
        """Yield the arguments of the function's calls: each fresh message, or all of them."""
        self._decisions = claims.decisions
        for place, attempt in zip(*self._batch, strict=True):
            if self._of(attempt) not in (Decision.MINE, Decision.REPLAY):
                raise _NotTogether(place)
        fresh: list[InboxMessage[Any]] = []
        for place, attempt in zip(*self._batch, strict=True):
            if self._of(attempt) is Decision.MINE:
                self.at, self.working = place, True
                received = attempt.message_for(claims.tx)
                if setting.together:
                    fresh.append(received)
                else:
                    yield received
        if fresh:
            self.at = None
            yield fresh

    def results(self) -> list[HandleResult]:
        fresh = (self._of(attempt) is Decision.MINE for attempt in self._batch.attempts)
        return [HandleResult(MessageOutcome.HANDLED if one else MessageOutcome.DUPLICATE) for one in fresh]

    def judge(self, error: Exception | Postponed, restarts: int) -> Broken | float:
        """Find the message at fault, or the seconds until the whole batch is run again; raise any other error."""
        if isinstance(error, _NotTogether):
            return Broken(error.at)
        if isinstance(error, RetryTransaction):
            return RESTART.delay(restarts, random.random()) if restarts < RESTARTS else Broken(None)
        ours = isinstance(error, RetrysafeError) and not isinstance(error, OutcomeUnknown)
        if ours and not self.working:
            raise error
        return Broken(self.at)

    def _of(self, attempt: InboxAttempt) -> Decision:
        return self._decisions[attempt.arrival.record_key]
