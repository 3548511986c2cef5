"""One bucket at a time: what is due is published, wave by wave, and what became of it written down. Twins.

A bucket is held by a transaction that stays open while its messages are published, or, for slow brokers and for SQLite,
by a lease with a fencing token. Either way a message leaves at least once: what was published and could not be written
down is published again, under its id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from retrysafe.boundary import Boundary
from retrysafe.claim import Claim
from retrysafe.core.outcomes import Answered
from retrysafe.core.relaying import Death, Rules, Verdict, crashed, judge, nothing_yet, waves
from retrysafe.core.walking import Most, Walks
from retrysafe.errors import InProgress, LeaseLost
from retrysafe.messaging.dispatch import Dispatch
from retrysafe.messaging.low_water import LowWater
from retrysafe.ports import AsyncClient, Client, OutboxStore, Steps, TransactionalStore
from retrysafe.programs.drivers import arestarting, arun, ask, restarting, run
from retrysafe.programs.relaying import begin_fenced, conclude, conclude_fenced, due, take
from retrysafe.types import Published, Queued

R = TypeVar("R")


class Setting(NamedTuple):
    """What all buckets of a relay have in common."""

    store: TransactionalStore
    outbox: OutboxStore
    leases: Boundary | None
    """Where buckets are leased; None: they are held by transactions."""
    rules: Rules
    batch: Most
    keep: bool
    low: LowWater
    walks: Walks
    patience: float
    """Seconds that one call of the publisher may take."""
    dispatch: Dispatch

    @property
    def silence(self) -> float:
        """Seconds for which nothing may be asked in a transaction: longer than the publisher is waited for."""
        return self.patience + GRACE

    def took(self, queue: Sequence[Queued]) -> None:
        """These were read, and are to leave."""
        self.low.took(queue)
        self.walks.took(queue)


GRACE = 15.0
"""Seconds between the end of a relay's patience and that of its server's."""


class Flow:
    """What of a queue is under way together, and which lanes have stopped."""

    def __init__(self, queue: Sequence[Queued], rules: Rules) -> None:
        self._queue, self._rules = queue, rules
        self._stopped: set[int] = set()

    def __iter__(self) -> Iterator[list[Queued]]:
        for wave in waves(self._queue):
            going = [queued for queued in wave if queued.lane not in self._stopped]
            if going:
                yield going

    def judge(self, wave: Sequence[Queued], published: Sequence[Published]) -> Verdict:
        """What follows; a lane whose message waits stops here, and every lane when the broker is away."""
        verdict = judge(wave, published, self._rules, [random.random() for _ in wave])
        for halted in wave if verdict.away else [*(delay.queued for delay in verdict.delayed), *verdict.stalled]:
            self._stopped.add(halted.lane)
            verdict.withdrawn.extend(one for one in self._queue if one.lane == halted.lane and one.id > halted.id)
        return verdict


def sifted(due: Sequence[Queued], rules: Rules) -> tuple[list[Queued], Verdict]:
    """What of it is tried now, and what is given up because relays die of it.

    After an attempt that came to no end, messages are tried one at a time, until it is known which one it was.
    """
    killers = [queued for queued in due if crashed(queued, rules)]
    verdict = nothing_yet()
    verdict.dead.extend(Death(queued, KILLS) for queued in killers)
    left = [queued for queued in due if queued not in killers]
    suspected = any(queued.started > queued.finished for queued in left)
    return left[:1] if suspected else left, verdict


KILLS = "Every attempt to publish it ended with the end of its relay."


class Sum:
    """What became of the messages of a run."""

    def __init__(self) -> None:
        self.left = self.delayed = self.dead = 0
        self.away = ""
        """What was said of a broker that takes nothing from anybody."""
        self.verdicts: list[Verdict] = []
        """What is written down and not told yet."""

    def include(self, other: Sum) -> None:
        """Add what became of others."""
        self.left, self.delayed, self.dead = (
            self.left + other.left,
            self.delayed + other.delayed,
            self.dead + other.dead,
        )

    def add(self, verdict: Verdict) -> None:
        """Count a wave."""
        self.verdicts.append(verdict)
        self.away = self.away or "".join(verdict.away[:1])
        self.left += len(verdict.gone)
        self.delayed += len(verdict.delayed) + len(verdict.stalled)
        self.dead += len(verdict.dead)


# ---------------------------------------------------------------- held by a transaction


def _take(setting: Setting, number: int) -> Steps[list[Queued] | None]:
    walk = setting.walks.of(number)
    reading = setting.low.mark, walk, setting.silence, setting.dispatch.shut()
    return take(setting.store, setting.outbox, number, setting.batch, *reading)


def drain(setting: Setting, client: Client, number: int) -> Sum:
    """Publish a batch of a bucket; return what became of it: nothing, where another relay holds the bucket."""
    if setting.leases is not None:
        return _drain_leased(setting, setting.leases, client, number)
    total = Sum()
    with client.transaction() as opened:
        queue = run(_take(setting, number), opened.execute)
        if queue:
            setting.took(queue)
            flow = Flow(queue, setting.rules)
            for wave in flow:
                verdict = flow.judge(wave, setting.dispatch.publish(wave))
                run(conclude(setting.outbox, verdict, keep=setting.keep), opened.execute)
                total.add(verdict)
            run(ask(setting.store.commit()), opened.execute)
    return total


async def adrain(setting: Setting, client: AsyncClient, number: int) -> Sum:
    """The same for async code."""
    if setting.leases is not None:
        return await _adrain_leased(setting, setting.leases, client, number)
    total = Sum()
    async with client.transaction() as opened:
        queue = await arun(_take(setting, number), opened.execute)
        if queue:
            setting.took(queue)
            flow = Flow(queue, setting.rules)
            for wave in flow:
                verdict = flow.judge(wave, await setting.dispatch.apublish(wave))
                await arun(conclude(setting.outbox, verdict, keep=setting.keep), opened.execute)
                total.add(verdict)
            await arun(ask(setting.store.commit()), opened.execute)
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
            queue = _fenced(client, partial(begin_fenced, setting.store, setting.outbox, claim._required_hold(), queue))
        flow = Flow(queue, setting.rules)
        for wave in flow:
            claim.ensure_held()
            _conclude(setting, client, claim, flow.judge(wave, setting.dispatch.publish(wave)), total)
    return total


def _conclude(setting: Setting, client: Client, claim: Claim, verdict: Verdict, total: Sum) -> None:
    held = claim._required_hold()
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
                held = claim._required_hold()
                queue = await _afenced(client, partial(begin_fenced, setting.store, setting.outbox, held, queue))
            flow = Flow(queue, setting.rules)
            for wave in flow:
                claim.ensure_held()
                await _aconclude(setting, client, claim, flow.judge(wave, await setting.dispatch.apublish(wave)), total)
    return total


async def _aconclude(setting: Setting, client: AsyncClient, claim: Claim, verdict: Verdict, total: Sum) -> None:
    held = claim._required_hold()
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
