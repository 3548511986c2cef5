"""Draining one bucket: publish its due messages wave by wave, and record the outcomes; for sync and async code.

A bucket is held by a transaction that stays open while its messages are published, or, for slow brokers and for SQLite,
by a lease with a fencing token. Either way a message is published at least once: if the outcome cannot be recorded,
it is published again, under its id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import NamedTuple, TypeVar

from retrysafe.backends.driver import arestarting, arun, restarting, run
from retrysafe.boundary import Boundary
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.claim import Claim
from retrysafe.errors import InProgress, LeaseLost, RetrysafeError, StoreUnavailable
from retrysafe.messaging.relay.dispatch import Dispatch
from retrysafe.messaging.relay.low_water import LowWater
from retrysafe.messaging.relay.procedures import (
    as_noted,
    begin_fenced,
    conclude,
    conclude_fenced,
    due,
    each,
    outlive_fenced,
    take,
)
from retrysafe.protocol.client import AsyncClient, AsyncExecutor, Client, Executor
from retrysafe.protocol.message_stores import OutboxStore
from retrysafe.protocol.messages import PublishResult, Queued
from retrysafe.protocol.outbox_walk import Most, Walks
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.publish_policy import Death, PublishOutcome, Rules, crashed, judge, nothing_yet, waves
from retrysafe.protocol.requests import Steps, ask
from retrysafe.protocol.store import TransactionalStore

R = TypeVar("R")


class Setting(NamedTuple):
    """The settings and state that all buckets of a relay share."""

    store: TransactionalStore
    outbox: OutboxStore
    leases: Boundary | None
    """The boundary that leases buckets; None: they are held by transactions."""
    rules: Rules
    batch: Most
    keep: bool
    low: LowWater
    walks: Walks
    patience: float
    """Seconds that one call of the publisher may take."""
    dispatch: Dispatch
    probation: Probation
    turn: asyncio.Lock | None = None
    """Held while a bucket uses two connections at once: a pool may have no more than one for each bucket."""

    @property
    def silence(self) -> float:
        """Seconds for which nothing may be asked in a transaction: longer than the publisher is waited for."""
        return self.patience + GRACE

    def took(self, queue: Sequence[Queued]) -> None:
        """These were read, and are to leave."""
        self.low.took(queue)
        self.walks.took(queue)


class Probation:
    """Of which buckets a relay notes the attempts that it makes in a transaction, beside that transaction.

    A process that dies of a message takes the transaction with it: the note is all that is left of the attempt. It
    costs a statement, so it is made for the first batch of each bucket alone, and for what is suspected. Whatever kills
    a relay later is in the first batch of the process that follows, or in a later one, for which the first has left.
    """

    def __init__(self) -> None:
        self._over: set[int] = set()

    def notes(self, number: int, queue: Sequence[Queued] = ()) -> bool:
        """Tell whether the attempts at these messages of a bucket are noted."""
        return number not in self._over or suspected(queue)

    def outlived(self, number: int) -> None:
        """The relay has come to the end of a batch of the bucket."""
        self._over.add(number)


GRACE = 15.0
"""Seconds between the end of a relay's patience and that of its server's."""


class Flow:
    """The part of a queue that is under way together, and the lanes that have stopped."""

    def __init__(self, queue: Sequence[Queued], rules: Rules) -> None:
        self._queue, self._rules = queue, rules
        self._stopped: set[int] = set()

    def __iter__(self) -> Iterator[list[Queued]]:
        for wave in waves(self._queue):
            going = [queued for queued in wave if queued.lane not in self._stopped]
            if going:
                yield going

    def judge(self, wave: Sequence[Queued], published: Sequence[PublishResult]) -> PublishOutcome:
        """Decide how to go on; a lane whose message waits stops here, and every lane when the broker is away."""
        verdict = judge(wave, published, self._rules, [random.random() for _ in wave])
        for halted in wave if verdict.away else [*(delay.queued for delay in verdict.delayed), *verdict.stalled]:
            self._stopped.add(halted.lane)
            verdict.withdrawn.extend(one for one in self._queue if one.lane == halted.lane and one.id > halted.id)
        return verdict


def sifted(due: Sequence[Queued], rules: Rules) -> tuple[list[Queued], PublishOutcome]:
    """Split messages into those to try now and those to give up because relays died while publishing them.

    After an attempt that came to no end, messages are tried one at a time, until it is known which one it was.
    """
    killers = [queued for queued in due if crashed(queued, rules)]
    verdict = nothing_yet()
    verdict.dead.extend(Death(queued, KILLS) for queued in killers)
    left = [queued for queued in due if queued not in killers]
    return left[:1] if suspected(left) else left, verdict


def suspected(queue: Sequence[Queued]) -> bool:
    """Tell whether an attempt at one of these has come to no end."""
    return any(queued.started > queued.finished for queued in queue)


KILLS = "Every attempt to publish it ended with the end of its relay."

OUTLIVED = (Exception, KeyboardInterrupt)
"""Exceptions that end a batch without counting as an attempt of its messages, beside a cancellation."""


class Sum:
    """The messages of a run by outcome."""

    def __init__(self) -> None:
        self.left = self.dead = 0
        self.away = ""
        """The error of a broker that accepts no messages at all."""
        self.verdicts: list[PublishOutcome] = []
        """Outcomes that are recorded and not reported yet."""
        self._waiting: set[int] = set()
        """The numbers of messages that wait for another attempt."""
        self._over: set[int] = set()
        """The numbers of those that left, or were given up."""

    @property
    def delayed(self) -> int:
        """The number of messages that wait for another attempt."""
        return len(self._waiting)

    def include(self, other: Sum) -> None:
        """Add what became of others, and what became later of ours."""
        self.left, self.dead = self.left + other.left, self.dead + other.dead
        self._waiting -= other._over
        self._waiting |= other._waiting

    def add(self, verdict: PublishOutcome) -> None:
        """Count a wave."""
        self.verdicts.append(verdict)
        self.away = self.away or "".join(verdict.away[:1])
        self.left += len(verdict.gone)
        self.dead += len(verdict.dead)
        self._over.update(one.id for one in verdict.gone)
        self._over.update(death.queued.id for death in verdict.dead)
        self._waiting.update(delay.queued.id for delay in verdict.delayed)
        self._waiting.update(one.id for one in verdict.stalled)


# ---------------------------------------------------------------- held by a transaction


Taking = Callable[[], Steps[list[Queued] | None]]
"""Begins a transaction, holds what is to be held, and returns what is to leave."""


def _take(setting: Setting, number: int) -> Steps[list[Queued] | None]:
    walk = setting.walks.of(number)
    reading = setting.low.mark, walk, setting.silence, setting.dispatch.shut()
    return take(setting.store, setting.outbox, number, setting.batch, *reading)


def drain(setting: Setting, client: Client, number: int) -> Sum:
    """Publish a batch of a bucket; return what became of it: nothing, where another relay holds the bucket."""
    if setting.leases is not None:
        return _drain_leased(setting, setting.leases, client, number)
    noted: list[Queued] = []
    try:
        with client.transaction() as opened:
            return _drain_held(setting, client, opened.execute, number, noted)
    except OUTLIVED:
        if noted:
            with suppress(RetrysafeError):
                run(ask(setting.outbox.lived(noted)), client)
        raise


def _drain_held(setting: Setting, client: Client, execute: Executor, number: int, noted: list[Queued]) -> Sum:
    total = Sum()
    found = run(_take(setting, number), execute)
    if not found:
        return total
    setting.took(found)
    queue, killers = sifted(found, setting.rules)
    if killers.dead:
        run(conclude(setting.outbox, killers, keep=setting.keep), execute)
        total.add(killers)
    if setting.probation.notes(number, queue):
        noted += as_noted(queue)
        with suppress(StoreUnavailable):  # a pool that has no other connection; the transaction tells of a server
            restarting(lambda: run(each(setting.outbox.begun(queue)), client))
    flow = Flow(noted or queue, setting.rules)
    for wave in flow:
        verdict = flow.judge(wave, setting.dispatch.publish(wave))
        run(conclude(setting.outbox, verdict, keep=setting.keep, noted=bool(noted)), execute)
        total.add(verdict)
    run(ask(setting.store.commit()), execute)
    setting.probation.outlived(number)
    return total


async def adrain(setting: Setting, client: AsyncClient, number: int) -> Sum:
    """`drain` for async code."""
    if setting.leases is not None:
        return await _adrain_leased(setting, setting.leases, client, number)
    return await adrain_taken(setting, client, number, lambda: _take(setting, number))


LOGGED = -1
"""Stands for a number where a batch has messages of several buckets, as they are read from a log."""


async def adrain_taken(setting: Setting, client: AsyncClient, number: int, taking: Taking) -> Sum:
    """Publish what ``taking`` returns, in the transaction that it begins; return what became of it."""
    from asyncio import CancelledError

    noted: list[Queued] = []
    try:
        async with AsyncExitStack() as turn:
            if setting.turn is not None and setting.probation.notes(number):
                await turn.enter_async_context(setting.turn)
            async with client.transaction() as opened:
                found = await arun(taking(), opened.execute)
                return await _adrain_held(setting, client, opened.execute, number, found or [], noted, turn)
    except (*OUTLIVED, CancelledError):
        if noted:
            with suppress(RetrysafeError):
                await run_to_completion(arun(ask(setting.outbox.lived(noted)), client))
        raise


async def _adrain_held(
    setting: Setting,
    client: AsyncClient,
    execute: AsyncExecutor,
    number: int,
    found: list[Queued],
    noted: list[Queued],
    turn: AsyncExitStack,
) -> Sum:
    total = Sum()
    if not found:
        return total
    setting.took(found)
    queue, killers = sifted(found, setting.rules)
    if killers.dead:
        await arun(conclude(setting.outbox, killers, keep=setting.keep), execute)
        total.add(killers)
    if setting.probation.notes(number, queue):
        noted += as_noted(queue)
        with suppress(StoreUnavailable):
            await arestarting(lambda: arun(each(setting.outbox.begun(queue)), client))
    await turn.aclose()
    flow = Flow(noted or queue, setting.rules)
    for wave in flow:
        verdict = flow.judge(wave, await setting.dispatch.apublish(wave))
        await arun(conclude(setting.outbox, verdict, keep=setting.keep, noted=bool(noted)), execute)
        total.add(verdict)
    await arun(ask(setting.store.commit()), execute)
    setting.probation.outlived(number)
    return total


# ---------------------------------------------------------------- held by a lease


def _due(setting: Setting, number: int) -> Steps[list[Queued]]:
    return due(
        setting.outbox, number, setting.batch, setting.low.mark, setting.walks.of(number), setting.dispatch.shut()
    )


def _drain_leased(setting: Setting, leases: Boundary, client: Client, number: int) -> Sum:
    total = Sum()
    with suppress(InProgress), leases.claim(f"bucket {number}") as claim:
        claim.answered(Answered.UNEXECUTED, None)  # the bucket is free again, however this ends
        found = run(_due(setting, number), client)
        setting.took(found)
        queue, killers = sifted(found, setting.rules)
        if killers.dead:
            _conclude(setting, client, claim, killers, total)
        if queue:
            _publish_leased(setting, client, claim, queue, total)
    return total


def _publish_leased(setting: Setting, client: Client, claim: Claim, queue: Sequence[Queued], total: Sum) -> None:
    noted = _fenced(client, partial(begin_fenced, setting.store, setting.outbox, claim.ownership, queue))
    flow = Flow(noted, setting.rules)
    try:
        for wave in flow:
            claim.ensure_held()
            _conclude(setting, client, claim, flow.judge(wave, setting.dispatch.publish(wave)), total)
    except OUTLIVED:
        with suppress(RetrysafeError):
            _fenced(client, partial(outlive_fenced, setting.store, setting.outbox, claim.ownership, noted))
        raise


def _conclude(setting: Setting, client: Client, claim: Claim, verdict: PublishOutcome, total: Sum) -> None:
    held = claim.ownership
    steps = partial(conclude_fenced, setting.store, setting.outbox, held, verdict, keep=setting.keep)
    _fenced(client, steps)
    total.add(verdict)


def _fenced(client: Client, steps: Callable[[], Steps[R | None]]) -> R:
    def transact() -> R | None:
        with client.transaction() as opened:
            return run(steps(), opened.execute)

    ours = restarting(transact)
    if not ours:
        raise LeaseLost("Another relay holds the bucket. What was published is published again, under its ids.")
    return ours


async def _adrain_leased(setting: Setting, leases: Boundary, client: AsyncClient, number: int) -> Sum:
    total = Sum()
    with suppress(InProgress):
        async with leases.claim(f"bucket {number}") as claim:
            claim.answered(Answered.UNEXECUTED, None)
            found = await arun(_due(setting, number), client)
            setting.took(found)
            queue, killers = sifted(found, setting.rules)
            if killers.dead:
                await _aconclude(setting, client, claim, killers, total)
            if queue:
                await _apublish_leased(setting, client, claim, queue, total)
    return total


async def _apublish_leased(
    setting: Setting, client: AsyncClient, claim: Claim, queue: Sequence[Queued], total: Sum
) -> None:
    from asyncio import CancelledError

    noted = await _afenced(client, partial(begin_fenced, setting.store, setting.outbox, claim.ownership, queue))
    flow = Flow(noted, setting.rules)
    try:
        for wave in flow:
            claim.ensure_held()
            await _aconclude(setting, client, claim, flow.judge(wave, await setting.dispatch.apublish(wave)), total)
    except (*OUTLIVED, CancelledError):
        with suppress(RetrysafeError):
            steps = partial(outlive_fenced, setting.store, setting.outbox, claim.ownership, noted)
            await run_to_completion(_afenced(client, steps))
        raise


async def _aconclude(setting: Setting, client: AsyncClient, claim: Claim, verdict: PublishOutcome, total: Sum) -> None:
    held = claim.ownership
    steps = partial(conclude_fenced, setting.store, setting.outbox, held, verdict, keep=setting.keep)
    await _afenced(client, steps)
    total.add(verdict)


async def _afenced(client: AsyncClient, steps: Callable[[], Steps[R | None]]) -> R:
    async def transact() -> R | None:
        async with client.transaction() as opened:
            return await arun(steps(), opened.execute)

    ours = await arestarting(transact)
    if not ours:
        raise LeaseLost("Another relay holds the bucket. What was published is published again, under its ids.")
    return ours
