"""A seeded simulation of the protocol: the shipping programs over a store, under every fault there is.

    report = simulate(seed)
    assert report.ok, str(report)

Everything follows from the seed: who comes when, which message is lost, delayed or applied twice, who
crashes, pauses beyond the lease or is cancelled, when the store's clock jumps and when a sweep runs.
Every write, effect and answer is judged against the promises (`retrysafe.testing.judging.Check`).
Then the faults end, and every retry must get its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple, cast

from retrysafe.core.transitions import Event
from retrysafe.errors import StoreUnavailable
from retrysafe.executors.memory import MemoryClient
from retrysafe.ports import Ask, Capabilities, Store
from retrysafe.programs.drivers import run
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.acting import Actor, Acts, Cancelled, Parts, Stage, late_worker, operator, worker
from retrysafe.testing.histories import History, Kind, Operation
from retrysafe.testing.judging import Check, Judge, Message, Violation
from retrysafe.types import Clocks, Effects, Held, Micros, Record, Refusal, Stored, Want

_EPOCH = 1_000_000


class Fault(StrEnum):
    """What can go wrong with one ask."""

    UNSENT = "request never sent"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    DELAYED = "request delayed until after its sender gave up"
    DUPLICATED = "request applied twice"
    CRASHED_BEFORE = "sender crashed before the request"
    CRASHED_AFTER = "sender crashed after the request"
    PAUSED_BEFORE = "sender paused, perhaps beyond its lease, before the request"
    PAUSED_AFTER = "sender paused, perhaps beyond its lease, after the request"
    CANCELLED = "caller cancelled"
    CLOCK_JUMPED = "the store's clock jumped"
    SWEPT = "a sweep ran in between"


class Plan(NamedTuple):
    """The size of a schedule and its faults.

    ``skew`` bounds how far the store's clock may be off either way. Tokens are promised to increase
    over a sweep as long as the clock is off by less than a quarter of the key memory. ``intruder`` is
    how often a worker comes with another payload, ``hasty`` how often the operator settles an effect
    that he sees although its attempt may still be alive.
    """

    workers: int = 3
    keys: int = 1
    effects: tuple[Effects, ...] = ("keyed", "external")
    faults: tuple[Fault, ...] = tuple(Fault)
    chance: float = 0.3
    clocks: Clocks = Clocks(lease=1000, window=2000, memory=2500)
    skew: Micros = 600
    horizon: Micros = 7000
    intruder: float = 0.1
    hasty: float = 0.0


Line = tuple[Micros, str | Message, Fault | str | Record | None]


class Report(NamedTuple):
    """What one schedule did: its events, faults and sights, and the promises it broke."""

    seed: int
    violations: tuple[Violation, ...]
    faults: Counter[Fault]
    seen: Counter[str]
    log: Sequence[Line]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *map(_line, self.log), *map(str, self.violations)])


def _line(line: Line) -> str:
    when, who, what = line
    if isinstance(who, str):
        return f"{when - _EPOCH:>7} {who:<4} {what}"
    name = "" if who.named is None else who.named.attempt
    if who.kind == "take":
        name = f"(saw {name})"
    event = who.kind if who.event in (None, Event.CLAIM) else who.event.value
    if not isinstance(what, Record):
        return f"{when - _EPOCH:>7} {name:<4} {event}: no change"
    now = f"{what.state.value} by {what.attempt}, token {what.token - _EPOCH}"
    return f"{when - _EPOCH:>7} {name:<4} {event}: {now}"


PLAN = Plan()
PARTS = Parts()


def simulate(
    seed: int,
    *,
    store: Store | None = None,
    plan: Plan = PLAN,
    parts: Parts = PARTS,
    histories: list[Operation] | None = None,
) -> Report:
    """Run one schedule. ``store`` speaks to the memory executor; ``parts`` are the programs.

    What was asked of the store and answered is added to ``histories``.
    """
    simulation = _Simulation(seed, store or MemoryStore(), plan, parts)
    report = simulation.run()
    if histories is not None:
        histories += simulation.history.operations()
    return report


class Survey(NamedTuple):
    """What many schedules did together; ``failures`` holds the reports of the first failing seeds."""

    seeds: int
    faulty: int
    faults: Counter[Fault]
    seen: Counter[str]
    failures: tuple[Report, ...]


def survey(
    seeds: Iterable[int],
    *,
    store: Store | None = None,
    plan: Plan = PLAN,
    parts: Parts = PARTS,
    stop_after: int = 3,
) -> Survey:
    """Run many schedules, until ``stop_after`` of them have failed."""
    count = faulty = 0
    faults: Counter[Fault] = Counter()
    seen: Counter[str] = Counter()
    failures: list[Report] = []
    for seed in seeds:
        report = simulate(seed, store=store, plan=plan, parts=parts)
        count += 1
        faulty += bool(report.faults)
        for totals, counted in ((faults, report.faults), (seen, report.seen)):
            for name, number in counted.items():
                totals[name] += number  # type: ignore[index]
        if not report.ok:
            failures.append(report)
            if len(failures) >= stop_after:
                break
    return Survey(count, faulty, faults, seen, tuple(failures))


class _Watched:
    """A store whose requests say what they are."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    def admit(self, want: Want) -> list[Ask[Refusal | None]]:
        return self._store.admit(want)

    def claim(self, want: Want) -> Ask[Record | Refusal | None]:
        return _named("claim", want.key, want, Event.CLAIM, self._store.claim(want), (want,))

    def take(self, want: Want, seen: Record) -> Ask[Record | None]:
        return _named("take", want.key, seen, Event.CLAIM, self._store.take(want, seen), (want, seen))

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        return _named("settle", held.key, held, event, self._store.settle(held, event, result), (held, event, result))

    def resolve(self, seen: Record, event: Event, result: Stored | None, clocks: Clocks) -> Ask[bool]:
        return _named(
            "resolve",
            seen.key,
            seen,
            event,
            self._store.resolve(seen, event, result, clocks),
            (seen, event, result, clocks),
        )

    def renew(self, held: Sequence[Held]) -> list[Ask[set[bytes]]]:
        (one,) = held
        return [_named("renew", one.key, one, Event.RENEW, request, (one,)) for request in self._store.renew(held)]

    def read(self, key: bytes) -> Ask[Record | None]:
        return _named("read", key, None, None, self._store.read(key), (key,))

    def sweep(self, limit: int) -> list[Ask[int]]:
        return [_named("sweep", b"", None, Event.SWEEP, request, (limit,)) for request in self._store.sweep(limit)]


def _named(
    kind: str, key: bytes, named: Any, event: Event | None, request: Ask[Any], arguments: tuple[Any, ...]
) -> Ask[Any]:
    return Ask(Message(kind, key, named, event, request.request, arguments), request.parse)


class _Simulation:
    """One schedule: a heap of what happens when, and a network that fails."""

    def __init__(self, seed: int, store: Store, plan: Plan, parts: Parts) -> None:
        self._seed = seed
        self._plan = plan
        self._random = Random(seed)
        self._chance = self._random.random
        self._now: Micros = _EPOCH
        self._skew = 0
        self._serial = 0
        self.history = History(lambda: self._now * 1000)
        self._asked: dict[str, tuple[int, int]] = {}
        self._heap: list[tuple[Micros, int, Callable[..., None], tuple[Any, ...]]] = []
        self._log: list[Line] = []
        self._faults: Counter[Fault] = Counter()
        self._judge = Judge()
        self._client = MemoryClient(self._clock)
        self._stage = Stage(_Watched(store), parts, plan.clocks, self._random, self._judge)
        self._sweep: Callable[[], int] = lambda: run(parts.sweep(self._stage.store, 100), self._apply)

    def _clock(self) -> Micros:
        return self._now + self._skew

    # ------------------------------------------------------------ the course of it

    def run(self) -> Report:
        """Play the schedule: with faults up to the horizon, then without until everybody is answered."""
        plan, stage = self._plan, self._stage
        stage.hasty = plan.hasty
        names = [b"key%d" % number for number in range(plan.keys)]
        for key in names:
            stage.effects[key] = plan.effects[int(self._chance() * len(plan.effects))]
        for number in range(plan.workers):
            self._enter_worker("abcdefghijklmnop"[number], names[number % len(names)])
        self._enter("op", lambda actor: operator(stage, actor), counted=False)
        self._play_until(_EPOCH + plan.horizon)
        stage.calm = True
        for number, key in enumerate(names):
            self._enter(f"z{number}", lambda actor, key=key: late_worker(stage, actor, key))  # type: ignore[misc]
        self._play_until(self._now + plan.horizon + 60 * plan.clocks.lease)
        if stage.open:
            self._judge.broken(Check.STUCK, f"{stage.open} callers still wait for an answer")
        self._drain()
        return Report(self._seed, tuple(self._judge.violations), self._faults, self._judge.seen, self._log)

    def _enter_worker(self, name: str, key: bytes) -> None:
        payload = b"other" if self._chance() < self._plan.intruder else b"payload"
        calls = 1 if self._chance() < 0.5 else 2
        self._enter(name, lambda actor: worker(self._stage, actor, key, payload, calls))

    def _enter(self, name: str, begin: Callable[[Actor], Acts], counted: bool = True) -> None:
        actor = Actor(name, begin)
        self._stage.actors.append(actor)
        self._stage.open += counted
        self._resume_at(0, actor, None)

    def _play_until(self, end: Micros) -> None:
        heap, stage = self._heap, self._stage
        while heap and stage.open and heap[0][0] < end:
            self._now, _, happen, arguments = heappop(heap)
            happen(*arguments)

    def _drain(self) -> None:
        """Apply what is still on its way when everybody has gone home."""
        while self._heap:
            self._now, _, happen, arguments = heappop(self._heap)
            if happen == self._arrive_late:
                happen(*arguments)

    def _at(self, delay: Micros, happen: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heappush(self._heap, (self._now + delay, self._serial, happen, arguments))

    def _resume_at(self, delay: Micros, actor: Actor, answer: Any) -> None:
        self._at(delay, self._resume, actor, actor.lives, answer)

    def _resume(self, actor: Actor, life: int, answer: Any) -> None:
        if actor.lives != life:
            return
        self._heard(actor, answer)
        try:
            acts = actor.acts
            put = acts.throw(answer) if isinstance(answer, Exception) else acts.send(answer)
        except StopIteration:
            return
        if isinstance(put, int):
            self._resume_at(put, actor, None)
        else:
            self._asked_of(actor, put.request)
            self._send(actor, put)

    # ------------------------------------------------------------ the history

    def _asked_of(self, actor: Actor, message: Message) -> None:
        if message.kind != "effect":
            self._asked[actor.name] = (actor.lives, self._begin(actor.name, message))

    def _begin(self, who: str, message: Message) -> int:
        return self.history.begin(who, cast(Kind, message.kind), message.key, message.arguments)

    def _heard(self, actor: Actor, answer: Any) -> None:
        life, number = self._asked.pop(actor.name, (0, 0))
        if life != actor.lives:
            return
        if not isinstance(answer, Exception):
            self.history.end(number, answer)
        elif isinstance(answer, StoreUnavailable) and answer.unsent:
            self.history.unsent(number)

    # ------------------------------------------------------------ the network

    def _send(self, actor: Actor, ask: Ask[Any]) -> None:
        plan = self._plan
        if self._stage.calm or not plan.faults or self._chance() >= plan.chance:
            self._answer(actor, ask, self._soon())
            return
        fault = plan.faults[int(self._chance() * len(plan.faults))]
        if ask.request.kind == "effect" and fault is Fault.DUPLICATED:
            fault = Fault.REPLY_LOST  # who sends an effect that nobody can recognise sends it once
        self._faults[fault] += 1
        self._note(actor.name, fault)
        _FAULTS[fault](self, actor, ask)

    def _soon(self) -> Micros:
        return int(self._chance() * 100) + 1

    def _answer(self, actor: Actor, ask: Ask[Any], delay: Micros) -> None:
        """Apply a request now; its reply arrives after ``delay``."""
        try:
            answer = ask.parse(self._apply(ask.request))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the sender's to handle
            answer = error
        self._resume_at(delay, actor, answer)

    def _apply(self, message: Message) -> Any:
        """Apply one request to the store or the outside world, judged."""
        if message.kind == "effect":
            accepted = self._judge.effect(message.named, self._stage.effects[message.key], message.request)
            self._note(message.named.attempt, "effect happened" if accepted else "effect refused")
            return accepted
        if message.kind == "sweep":
            return self._apply_sweep(message)
        records = self._client.records
        before = records.get(message.key)
        answer = self._client(message.request)
        after = records.get(message.key)
        if after is not before:
            self._judge.wrote(message, before, after, self._clock())
        self._log.append((self._now, message, after if after is not before else None))
        return answer

    def _apply_sweep(self, message: Message) -> Any:
        before, number = dict(self._client.records), self._begin("", message)
        answer = self._client(message.request)
        self.history.end(number, answer)
        for key, record in before.items():
            if key not in self._client.records:
                self._judge.wrote(message, record, None, self._clock())
        self._note("", f"sweep removed {answer}")
        return answer

    def _note(self, who: str, what: Fault | str) -> None:
        self._log.append((self._now, who, what))

    # ------------------------------------------------------------ the faults

    def _no_answer(self, actor: Actor) -> None:
        self._resume_at(self._soon(), actor, StoreUnavailable("simulated"))

    def _not_send(self, actor: Actor, ask: Ask[Any]) -> None:
        self._resume_at(self._soon(), actor, StoreUnavailable("simulated", unsent=True))

    def _lose_request(self, actor: Actor, ask: Ask[Any]) -> None:
        self._no_answer(actor)

    def _lose_reply(self, actor: Actor, ask: Ask[Any]) -> None:
        self._apply(ask.request)
        self._no_answer(actor)

    def _delay(self, actor: Actor, ask: Ask[Any]) -> None:
        self._later(ask.request)
        self._no_answer(actor)

    def _duplicate(self, actor: Actor, ask: Ask[Any]) -> None:
        self._begin("", ask.request)
        self._later(ask.request)
        self._answer(actor, ask, self._soon())

    def _later(self, message: Message) -> None:
        if message.kind == "effect":
            attempt = message.named.attempt
            self._stage.on_their_way[attempt] = self._stage.on_their_way.get(attempt, 0) + 1
        self._at(int(self._chance() * 3 * self._plan.clocks.lease), self._arrive_late, message)

    def _arrive_late(self, message: Message) -> None:
        if message.kind == "effect":
            self._stage.on_their_way[message.named.attempt] -= 1
        self._note("", "late arrival:")
        self._apply(message)

    def _crash_before(self, actor: Actor, ask: Ask[Any]) -> None:
        actor.crash()
        self._resume_at(self._long(), actor, None)

    def _crash_after(self, actor: Actor, ask: Ask[Any]) -> None:
        self._apply(ask.request)
        self._crash_before(actor, ask)

    def _long(self) -> Micros:
        return int((0.2 + self._chance() * 2) * self._plan.clocks.lease)

    def _pause_before(self, actor: Actor, ask: Ask[Any]) -> None:
        self._at(self._long(), self._answer, actor, ask, 1)

    def _pause_after(self, actor: Actor, ask: Ask[Any]) -> None:
        self._answer(actor, ask, self._long())

    def _cancel(self, actor: Actor, ask: Ask[Any]) -> None:
        """Claims and settlements are brought to their end; the handler is interrupted."""
        if ask.request.kind == "effect":
            self._apply(ask.request)
            self._resume_at(self._soon(), actor, Cancelled())
        else:
            actor.cancelled = True
            self._answer(actor, ask, self._soon())

    def _jump(self, actor: Actor, ask: Ask[Any]) -> None:
        self._skew = int((self._chance() * 2 - 1) * self._plan.skew)
        self._answer(actor, ask, self._soon())

    def _sweep_between(self, actor: Actor, ask: Ask[Any]) -> None:
        self._sweep()
        self._answer(actor, ask, self._soon())


_FAULTS: dict[Fault, Callable[[_Simulation, Actor, Ask[Any]], None]] = {
    Fault.UNSENT: _Simulation._not_send,
    Fault.REQUEST_LOST: _Simulation._lose_request,
    Fault.REPLY_LOST: _Simulation._lose_reply,
    Fault.DELAYED: _Simulation._delay,
    Fault.DUPLICATED: _Simulation._duplicate,
    Fault.CRASHED_BEFORE: _Simulation._crash_before,
    Fault.CRASHED_AFTER: _Simulation._crash_after,
    Fault.PAUSED_BEFORE: _Simulation._pause_before,
    Fault.PAUSED_AFTER: _Simulation._pause_after,
    Fault.CANCELLED: _Simulation._cancel,
    Fault.CLOCK_JUMPED: _Simulation._jump,
    Fault.SWEPT: _Simulation._sweep_between,
}
