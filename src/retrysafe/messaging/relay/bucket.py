"""Draining one bucket: publish its due messages wave by wave, and record the outcomes; for sync and async code.

A bucket is held by a transaction that stays open while its messages are published, or, for slow brokers and for SQLite,
by a lease with a fencing token. Either way a message is published at least once: if the outcome cannot be recorded,
it is published again, under its id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import NamedTuple, TypeVar

from retrysafe.backends.driver import arun, arun_transaction, run, run_transaction
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.heartbeat import for_loop, for_thread
from retrysafe.errors import LeaseLost, RetrysafeError, StoreUnavailable
from retrysafe.messaging.relay.dispatch import Dispatch
from retrysafe.messaging.relay.leases import LOST, BucketLease, BucketLeases
from retrysafe.messaging.relay.low_water import LowWater
from retrysafe.messaging.relay.procedures import as_noted, conclude, due, each, take
from retrysafe.protocol.client import AsyncClient, AsyncExecutor, Client, Executor
from retrysafe.protocol.message_stores import OutboxStore
from retrysafe.protocol.messages import PublishResult, Queued
from retrysafe.protocol.outbox_walk import Most, Walks
from retrysafe.protocol.procedures import Won, claim_again, judge_claim
from retrysafe.protocol.publish_policy import Death, Delay, PublishOutcome, Rules, is_killer, judge, nothing_yet, waves
from retrysafe.protocol.records import ClaimRequest, Ownership, Record
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import TransactionalStore
from retrysafe.protocol.transitions import Transition

R = TypeVar("R")


class Setting(NamedTuple):
    """The settings and state that all buckets of a relay share."""

    store: TransactionalStore
    outbox: OutboxStore
    leases: BucketLeases | None
    """The leases of buckets; None: they are held by transactions."""
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

    def record(self, queue: Sequence[Queued]) -> None:
        """These were read, and are to leave."""
        self.low.record(queue)
        self.walks.record(queue)


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
        return number not in self._over or is_suspected(queue)

    def outlive(self, number: int) -> None:
        """The relay has come to the end of a batch of the bucket."""
        self._over.add(number)


GRACE = 15.0
"""Seconds between the end of a relay's patience and that of its server's."""


class Flow:
    """The part of a queue that is under way together, and the lanes that have stopped."""

    def __init__(self, queue: Sequence[Queued], rules: Rules) -> None:
        self._queue, self._rules = queue, rules
        self._stopped: set[int] = set()
        self._left = iter(waves(queue))
        self.wave = next(self._left, [])
        """The messages to publish now; none at the end."""

    def judge(self, published: Sequence[PublishResult]) -> PublishOutcome:
        """Decide how to go on, and step to the next wave.

        A lane whose message waits stops here, and every lane when the broker is away.
        """
        wave = self.wave
        verdict = judge(wave, published, self._rules, random.random)
        for halted in wave if verdict.away else [*(delay.queued for delay in verdict.delayed), *verdict.stalled]:
            self._stopped.add(halted.lane)
            verdict.withdrawn.extend(one for one in self._queue if one.lane == halted.lane and one.id > halted.id)
        self.wave = next(self._left, [])
        while self._stopped and self.wave:
            going = [queued for queued in self.wave if queued.lane not in self._stopped]
            if going:
                self.wave = going
                break
            self.wave = next(self._left, [])
        return verdict


def separate_suspects(due: Sequence[Queued], rules: Rules) -> tuple[list[Queued], PublishOutcome]:
    """Split messages into those to try now and those to give up because relays died while publishing them.

    After an attempt that came to no end, messages are tried one at a time, until it is known which one it was.
    """
    verdict = nothing_yet()
    if not is_suspected(due):
        return list(due), verdict
    killers = [queued for queued in due if is_killer(queued, rules)]
    verdict.dead.extend(Death(queued, KILLS) for queued in killers)
    left = [queued for queued in due if queued not in killers]
    return left[:1] if is_suspected(left) else left, verdict


def is_suspected(queue: Sequence[Queued]) -> bool:
    """Tell whether an attempt at one of these has come to no end."""
    return bool([queued for queued in queue if queued.started > queued.finished])


KILLS = "Every attempt to publish it ended with the end of its relay."

OUTLIVED = (Exception, KeyboardInterrupt, asyncio.CancelledError)
"""Exceptions that end a batch without counting as an attempt of its messages."""


class Totals:
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
        return len(self._waiting)

    def include(self, other: Totals) -> None:
        """Add what became of others, and what became later of ours."""
        self.left, self.dead = self.left + other.left, self.dead + other.dead
        self._waiting -= other._over
        self._waiting |= other._waiting

    def add(self, verdict: PublishOutcome) -> None:
        self.verdicts.append(verdict)
        self.away = self.away or "".join(verdict.away[:1])
        self.left += len(verdict.gone)
        self.dead += len(verdict.dead)
        self._over |= {one.id for one in (*verdict.gone, *map(_message, verdict.dead))}
        self._waiting |= {one.id for one in (*verdict.stalled, *map(_message, verdict.delayed))}


def _message(end: Death | Delay) -> Queued:
    return end.queued


# ---------------------------------------------------------------- held by a transaction


Taking = Callable[[], Program[list[Queued] | None]]
"""Begins a transaction, holds what is to be held, and returns what is to leave."""


def _take(setting: Setting, number: int) -> Program[list[Queued] | None]:
    walk = setting.walks.of(number)
    reading = setting.low.mark, walk, setting.silence, setting.dispatch.topics_shut()
    return take(setting.store, setting.outbox, number, setting.batch, *reading)


def drain(setting: Setting, client: Client, number: int) -> Totals:
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
                run(ask(setting.outbox.outlive(noted)), client)
        raise


def _drain_held(setting: Setting, client: Client, execute: Executor, number: int, noted: list[Queued]) -> Totals:
    total = Totals()
    found = run(_take(setting, number), execute)
    if not found:
        return total
    setting.record(found)
    queue, killers = separate_suspects(found, setting.rules)
    if killers.dead:
        run(conclude(setting.outbox, killers, keep=setting.keep), execute)
        total.add(killers)
    if setting.probation.notes(number, queue):
        noted += as_noted(queue)
        with suppress(StoreUnavailable):  # a pool that has no other connection; the transaction tells of a server
            run_transaction(lambda: run(each(setting.outbox.note_begin(queue)), client))
    flow = Flow(noted or queue, setting.rules)
    while flow.wave:
        verdict = flow.judge(setting.dispatch.publish(flow.wave))
        run(conclude(setting.outbox, verdict, keep=setting.keep, noted=bool(noted)), execute)
        total.add(verdict)
    run(ask(setting.store.commit()), execute)
    setting.probation.outlive(number)
    return total


async def adrain(setting: Setting, client: AsyncClient, number: int) -> Totals:
    """`drain` for async code."""
    if setting.leases is not None:
        return await _adrain_leased(setting, setting.leases, client, number)
    return await adrain_taken(setting, client, number, lambda: _take(setting, number))


LOGGED = -1
"""Stands for a number where a batch has messages of several buckets, as they are read from a log."""


async def adrain_taken(setting: Setting, client: AsyncClient, number: int, taking: Taking) -> Totals:
    """Publish what ``taking`` returns, in the transaction that it begins; return what became of it."""
    noted: list[Queued] = []
    try:
        async with AsyncExitStack() as turn:
            if setting.turn is not None and setting.probation.notes(number):
                await turn.enter_async_context(setting.turn)
            async with client.transaction() as opened:
                found = await arun(taking(), opened.execute)
                return await _adrain_held(setting, client, opened.execute, number, found or [], noted, turn)
    except OUTLIVED:
        if noted:
            with suppress(RetrysafeError):
                await run_to_completion(arun(ask(setting.outbox.outlive(noted)), client))
        raise


async def _adrain_held(
    setting: Setting,
    client: AsyncClient,
    execute: AsyncExecutor,
    number: int,
    found: list[Queued],
    noted: list[Queued],
    turn: AsyncExitStack,
) -> Totals:
    total = Totals()
    if not found:
        return total
    setting.record(found)
    queue, killers = separate_suspects(found, setting.rules)
    if killers.dead:
        await arun(conclude(setting.outbox, killers, keep=setting.keep), execute)
        total.add(killers)
    if setting.probation.notes(number, queue):
        noted += as_noted(queue)
        with suppress(StoreUnavailable):
            await arun_transaction(lambda: arun(each(setting.outbox.note_begin(queue)), client))
    await turn.aclose()
    flow = Flow(noted or queue, setting.rules)
    while flow.wave:
        verdict = flow.judge(await setting.dispatch.apublish(flow.wave))
        await arun(conclude(setting.outbox, verdict, keep=setting.keep, noted=bool(noted)), execute)
        total.add(verdict)
    await arun(ask(setting.store.commit()), execute)
    setting.probation.outlive(number)
    return total


# ---------------------------------------------------------------- held by a lease


class Taken(NamedTuple):
    """A batch of a leased bucket: what was read, what of it is published, with its attempts noted, and what is not."""

    ownership: Ownership
    found: list[Queued]
    queue: list[Queued]
    killers: PublishOutcome


def _take_leased(setting: Setting, request: ClaimRequest, number: int) -> Program[Taken | None]:
    """Lease a bucket, read what is due, and note that attempts begin, in one transaction.

    None where another relay has the bucket, and where nothing is due: then nothing was leased.
    """
    yield setting.store.begin()
    yield from setting.outbox.prepare(setting.silence)
    won = judge_claim(request, (yield setting.store.claim(request)))
    if isinstance(won, Record):
        won = yield from claim_again(setting.store, request, won)
    found = (yield from _due(setting, number)) if isinstance(won, Won) else []
    if not isinstance(won, Won) or not found:
        yield setting.store.rollback()
        return None
    queue, killers = separate_suspects(found, setting.rules)
    if killers.dead:
        yield from conclude(setting.outbox, killers, keep=setting.keep)
    if queue:
        yield from setting.outbox.note_begin(queue)
    else:
        yield setting.store.settle(won.ownership, Transition.RELEASE, None)
    yield setting.store.commit()
    return Taken(won.ownership, found, as_noted(queue), killers)


def _due(setting: Setting, number: int) -> Program[list[Queued]]:
    walk, shut = setting.walks.of(number), setting.dispatch.topics_shut()
    return due(setting.outbox, number, setting.batch, setting.low.mark, walk, shut)


def _conclude(setting: Setting, ownership: Ownership, verdict: PublishOutcome, *, last: bool) -> Program[bool]:
    """Write down, in a transaction, what became of a wave; ``last``: and release the bucket. False if we lost it.

    Without the fence, a relay that was stalled would write what it has read long ago over what others have since: the
    pause of a lane, the place where it is parked, its attempts.
    """
    yield setting.store.begin()
    if not (yield _fence(setting, ownership, last=last)):
        yield setting.store.rollback()
        return False
    yield from conclude(setting.outbox, verdict, keep=setting.keep, noted=True)
    yield setting.store.commit()
    return True


def _give_back(setting: Setting, ownership: Ownership, noted: Sequence[Queued]) -> Program[bool]:
    """Release the bucket early, and write down that the attempts which began at these killed no relay."""
    yield setting.store.begin()
    if not (yield _fence(setting, ownership, last=True)):
        yield setting.store.rollback()
        return False
    if noted:
        yield setting.outbox.outlive(noted)
    yield setting.store.commit()
    return True


def _fence(setting: Setting, ownership: Ownership, *, last: bool) -> Ask[bool]:
    """Hold the record of the lease to the end of the transaction; ``last``: and end the lease with it."""
    return setting.store.settle(ownership, Transition.RELEASE, None) if last else setting.outbox.fence(ownership)


def _drain_leased(setting: Setting, leases: BucketLeases, client: Client, number: int) -> Totals:
    total, lease = Totals(), BucketLease(leases, number, for_thread)
    try:
        taken = _transact(client, partial(_take_leased, setting, lease.request, number))
    except BaseException as error:
        lease.give_back_later(error)
        raise
    if taken is None:
        return total
    _record(setting, taken, total)
    if taken.queue:
        lease.begin(taken.ownership)
        try:
            _publish_leased(setting, client, lease, taken.queue, total)
        except BaseException as error:
            try:
                _transact(client, partial(_give_back, setting, taken.ownership, _survivors(taken, error)))
            except RetrysafeError:
                lease.give_back_later()
            raise
        finally:
            lease.end()
    return total


def _record(setting: Setting, taken: Taken, total: Totals) -> None:
    setting.record(taken.found)
    if taken.killers.dead:
        total.add(taken.killers)


def _survivors(taken: Taken, error: BaseException) -> Sequence[Queued]:
    return taken.queue if isinstance(error, OUTLIVED) else ()


def _publish_leased(
    setting: Setting, client: Client, lease: BucketLease, queue: Sequence[Queued], total: Totals
) -> None:
    flow = Flow(queue, setting.rules)
    while flow.wave:
        lease.ensure_held()
        verdict = flow.judge(setting.dispatch.publish(flow.wave))
        if not _transact(client, partial(_conclude, setting, lease.ownership, verdict, last=not flow.wave)):
            raise LeaseLost(LOST)
        total.add(verdict)


def _transact(client: Client, steps: Callable[[], Program[R]]) -> R:
    def transact() -> R:
        with client.transaction() as opened:
            return run(steps(), opened.execute)

    return run_transaction(transact)


async def _adrain_leased(setting: Setting, leases: BucketLeases, client: AsyncClient, number: int) -> Totals:
    total, lease = Totals(), BucketLease(leases, number, for_loop)
    try:
        taken = await _atransact(client, partial(_take_leased, setting, lease.request, number))
    except BaseException as error:
        lease.give_back_later(error)
        raise
    if taken is None:
        return total
    _record(setting, taken, total)
    if taken.queue:
        lease.begin(taken.ownership)
        lease.term.watch_task()
        try:
            await _apublish_leased(setting, client, lease, taken.queue, total)
        except BaseException as error:
            lost = lease.term.end_work(error)
            steps = partial(_give_back, setting, taken.ownership, _survivors(taken, error))
            try:
                await run_to_completion(_atransact(client, steps))
            except RetrysafeError:
                lease.give_back_later()
            if lost:
                raise LeaseLost(LOST) from error
            raise
        else:
            lease.term.end_work(None)
        finally:
            lease.end()
    return total


async def _apublish_leased(
    setting: Setting, client: AsyncClient, lease: BucketLease, queue: Sequence[Queued], total: Totals
) -> None:
    flow = Flow(queue, setting.rules)
    while flow.wave:
        lease.ensure_held()
        verdict = flow.judge(await setting.dispatch.apublish(flow.wave))
        if not await _atransact(client, partial(_conclude, setting, lease.ownership, verdict, last=not flow.wave)):
            raise LeaseLost(LOST)
        total.add(verdict)


async def _atransact(client: AsyncClient, steps: Callable[[], Program[R]]) -> R:
    async def transact() -> R:
        async with client.transaction() as opened:
            return await arun(steps(), opened.execute)

    return await arun_transaction(transact)
