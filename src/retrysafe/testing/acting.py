"""The actors of a simulation: workers that guard an effect, and the operator who settles what is in doubt.

They drive the shipping programs the way `retrysafe.claim` does: every ask and every pause is yielded
to the simulation, which decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any, NamedTuple

from retrysafe.core import keys, outcomes
from retrysafe.core.decisions import Decision
from retrysafe.core.outcomes import Ending, Ground, Verdict
from retrysafe.core.transitions import Event
from retrysafe.errors import StoreUnavailable
from retrysafe.ports import Ask, Steps, Store
from retrysafe.programs.claiming import Outcome, Won, claim
from retrysafe.programs.leasing import renew
from retrysafe.programs.settling import read, resolve, settle
from retrysafe.programs.sweeping import sweep
from retrysafe.testing.judging import Judge, Message, result_of
from retrysafe.types import Clocks, Effects, Held, Record, Standing, Stored, Want

Acts = Generator[Ask[Any] | int, Any, None]
"""An actor: it yields asks and pauses (in microseconds)."""


class Cancelled(Exception):
    """The caller of a worker has gone away."""


class Refused(Exception):
    """A fenced resource has seen a higher token."""


class Failed(Exception):
    """The handler failed before it had any effect."""


class Parts(NamedTuple):
    """What is put to the proof; a test replaces one part by a broken one to see it caught."""

    claim: Callable[[Store, Want], Steps[Outcome]] = claim
    settle: Callable[[Store, Held, Event, Stored | None], Steps[bool]] = settle
    resolve: Callable[[Store, Record, Event, Stored | None, Clocks], Steps[bool]] = resolve
    renew: Callable[[Store, list[Held]], Steps[set[Held]]] = renew
    sweep: Callable[[Store, int], Steps[int]] = sweep
    read: Callable[[Store, bytes], Steps[Record | None]] = read
    verdict: Callable[[Ending, Ground], Verdict] = outcomes.verdict
    key_for: Callable[[Held], str] = lambda held: keys.derive(None, held.key, "bank")


class Actor:
    """One actor and its life: what a crash ends and a restart begins again."""

    def __init__(self, name: str, begin: Callable[[Actor], Acts]) -> None:
        self.name = name
        self.begin = begin
        self.acts = begin(self)
        self.lives = 1
        self.attempts = 0
        self.attempt = ""
        self.cancelled = False

    def begin_attempt(self) -> str:
        """Start another attempt, with an id of its own."""
        self.attempts += 1
        self.attempt = f"{self.name}{self.attempts}"
        return self.attempt

    def end_attempt(self) -> None:
        """The attempt is over, or its caller no longer cares."""
        self.attempt = ""
        self.cancelled = False

    def crash(self) -> None:
        """Lose everything but the name."""
        self.acts.close()
        self.end_attempt()
        self.lives += 1
        self.acts = self.begin(self)


class Stage:
    """What actors know and share."""

    def __init__(self, store: Store, parts: Parts, clocks: Clocks, random: Random, judge: Judge) -> None:
        self.store = store
        self.parts = parts
        self.clocks = clocks
        self.chance = random.random
        self.judge = judge
        self.hasty = 0.0
        self.calm = False
        self.open = 0
        self.effects: dict[bytes, Effects] = {}
        self.actors: list[Actor] = []
        self.on_their_way: dict[str, int] = {}

    def pause(self, leases: float) -> int:
        """A random pause of up to so many leases."""
        return int(self.chance() * leases * self.clocks.lease) + 1

    def is_over(self, attempt: str) -> bool:
        """Whether an attempt can have no effect any more: what an operator makes sure of before a release."""
        return not self.on_their_way.get(attempt) and all(actor.attempt != attempt for actor in self.actors)

    def want(self, key: bytes, payload: bytes, attempt: str) -> Want:
        """What an attempt asks for."""
        return Want(key, "simulated", "", "pay", payload, attempt, self.effects[key], self.clocks)


# ---------------------------------------------------------------- workers


def worker(stage: Stage, actor: Actor, key: bytes, payload: bytes, calls: int) -> Acts:
    """Call the guarded operation until it is answered, and then again as a client that lost the answer."""
    yield stage.pause(4)
    for _ in range(calls):
        while not (yield from call(stage, actor, key, payload)):
            yield stage.pause(1.5)
        yield stage.pause(3)
    stage.open -= 1


def late_worker(stage: Stage, actor: Actor, key: bytes) -> Acts:
    """The last retry, when faults have ended: comes with the payload that the key has by then."""
    while True:
        yield stage.pause(1.5)
        record = yield from stage.parts.read(stage.store, key)
        if (yield from call(stage, actor, key, record.fingerprint if record else b"payload")):
            record = yield from stage.parts.read(stage.store, key)
            if record is None or record.state.value in ("completed", "failed"):
                break
    stage.open -= 1


def call(stage: Stage, actor: Actor, key: bytes, payload: bytes) -> Generator[Ask[Any] | int, Any, bool]:
    """One call of the guarded operation: True when the caller got an answer."""
    want = stage.want(key, payload, actor.begin_attempt())
    try:
        outcome = yield from stage.parts.claim(stage.store, want)
        if isinstance(outcome, Won):
            return (yield from _hold(stage, actor, outcome.held))
    except StoreUnavailable:
        return False
    finally:
        actor.end_attempt()
    decision, record, _ = outcome
    if decision in (Decision.REPLAY, Decision.REPLAY_FAILURE):
        assert record is not None
        stage.judge.seen["replayed"] += 1
        stage.judge.answered(record.attempt, record.token, record.result)
        return True
    stage.judge.seen[decision.name.lower()] += 1
    return decision is Decision.REUSED


def _hold(stage: Stage, actor: Actor, held: Held) -> Generator[Ask[Any] | int, Any, bool]:
    """Do the work of a won claim, and record how it ended."""
    result = result_of(held.attempt, held.token)
    if actor.cancelled:
        ending = Ending.NOT_EXECUTED
    else:
        ending = yield from _work(stage, held)
    ground = Ground.KEYED if stage.effects[held.key] == "keyed" else Ground.EXTERNAL
    word = stage.parts.verdict(ending, ground)
    assert word.event is not None
    try:
        recorded = yield from stage.parts.settle(stage.store, held, word.event, _stored(word.event, result))
    except StoreUnavailable:
        stage.judge.seen["unrecorded"] += 1
        return ending is Ending.RETURNED  # the value is returned, and the lease lapses
    if not recorded:
        stage.judge.seen["lease lost"] += 1
        return False
    if word.event in (Event.COMPLETE, Event.FAIL):
        stage.judge.answered(held.attempt, held.token, result)
        return True
    return False


def _stored(event: Event, result: Stored) -> Stored | None:
    return None if event is Event.RELEASE else result


def _work(stage: Stage, held: Held) -> Generator[Ask[Any] | int, Any, Ending]:
    """The handler: perhaps long work with heartbeats, then the effect; returns how it ended."""
    effect_began = False
    try:
        yield from _long_work(stage, held)
        mood = 1.0 if stage.calm else stage.chance()
        if mood < 0.06:
            raise Failed
        if mood < 0.12:
            return Ending.PERMANENT
        effect_began = True
        yield Ask(Message("effect", held.key, held, None, stage.parts.key_for(held)), _accepted)
        return Ending.COMMITTED if mood < 0.16 else Ending.RETURNED
    except Failed:
        return Ending.NOT_EXECUTED if stage.chance() < 0.5 else Ending.TRANSIENT
    except (Cancelled, Refused, StoreUnavailable):
        return Ending.TRANSIENT if effect_began else Ending.NOT_EXECUTED


def _accepted(answer: bool) -> None:
    if not answer:
        raise Refused


def _long_work(stage: Stage, held: Held) -> Generator[Ask[Any] | int, Any, None]:
    while stage.chance() < 0.3:
        yield stage.pause(0.7)
        try:
            kept = yield from stage.parts.renew(stage.store, [held])
        except StoreUnavailable:
            continue
        if held not in kept:
            stage.judge.seen["lease lost in time"] += 1
            raise Failed


# ---------------------------------------------------------------- the operator


def operator(stage: Stage, actor: Actor) -> Acts:
    """Look for outcomes in doubt now and then, and settle them by what really happened."""
    while stage.open:
        yield stage.pause(3)
        for key in stage.effects:
            try:
                record = yield from stage.parts.read(stage.store, key)
                if record is not None and record.standing is Standing.UNKNOWN:
                    yield from _settle_doubt(stage, record)
            except StoreUnavailable:
                continue


def _settle_doubt(stage: Stage, record: Record) -> Generator[Ask[Any] | int, Any, None]:
    """Settle by the truth, when the attempt is over; a hasty operator settles an effect that he sees before."""
    happened = stage.judge.happened(record)
    if not stage.is_over(record.attempt) and not (happened and stage.chance() < stage.hasty):
        return
    event, result = Event.RESOLVE_RELEASED, None
    if happened:
        event, result = Event.RESOLVE_COMPLETED, _word("completed", record)
    elif stage.chance() < 0.3:
        event, result = Event.RESOLVE_FAILED, _word("failed", record)
    yield from stage.parts.resolve(stage.store, record, event, result, stage.clocks)


def _word(outcome: str, record: Record) -> Stored:
    return Stored(f"{outcome} says the operator of {record.attempt}".encode(), "text/plain", 1)
