"""The network of a simulation: a heap of what happens when, and every fault that a message can meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple, Protocol

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask
from tests.laboratory.simulation.acting import Actor, Cancelled, Stage
from tests.laboratory.simulation.messages import Message
from tests.laboratory.simulation.plan import LIES, Fault, Plan
from tests.laboratory.simulation.recording import Recording
from tests.laboratory.simulation.world import Time, World


class Injected(NamedTuple):
    """One fault: which request of which actor it met, when, and its amount: how long, how late, how far off."""

    actor: str
    ask: int
    fault: Fault
    amount: Micros = 0
    at: Micros = 0

    @property
    def code(self) -> str:
        """The fault on a command line."""
        return f"{self.actor}.{self.ask}={self.fault.name}" + (f":{self.amount}" if self.amount else "")

    def __str__(self) -> str:
        amount = f" ({self.amount})" if self.amount else ""
        return f"{self.at:>7} {self.actor:<4} request {self.ask}: {self.fault.value}{amount}"


def parse_faults(text: str) -> tuple[Injected, ...]:
    """Faults by their codes, between spaces."""
    found = []
    for word in text.split():
        try:
            place, what = word.split("=")
            actor, ask = place.rsplit(".", 1)
            name, _, amount = what.partition(":")
            found.append(Injected(actor, int(ask), Fault[name], int(amount or 0)))
        except (ValueError, KeyError):
            raise ConfigurationError(f"--faults: {word!r} is not like a.3=REPLY_LOST or b.7=DELAYED:1200.") from None
    return tuple(found)


class Chooser(Protocol):
    """Chooses the fault of a message, if any, and its amount."""

    def __call__(self, actor: Actor, message: Message, /) -> tuple[Fault, Micros] | None: ...


class Drawn:
    """Faults by chance."""

    def __init__(self, plan: Plan, random: Random) -> None:
        self._plan = plan
        self._chance = random.random
        self._often = plan.chance if plan.faults else 0.0

    def __call__(self, actor: Actor, message: Message) -> tuple[Fault, Micros] | None:
        chance = self._chance
        if chance() >= self._often:
            return None
        plan = self._plan
        fault = _suited(plan.faults[int(chance() * len(plan.faults))], message.kind)
        if fault is None:
            return None
        lease, measure = plan.clocks.lease, chance()
        if fault in _LATE:
            return fault, int(measure * 3 * lease)
        if fault in _LONG:
            return fault, int((0.2 + measure * 2) * lease)
        return fault, int((measure * 2 - 1) * plan.skew) if fault is Fault.CLOCK_JUMPED else 0


class Given:
    """Faults from a list, and no others."""

    def __init__(self, faults: Iterable[Injected]) -> None:
        self._faults = {(one.actor, one.ask): (one.fault, one.amount) for one in faults}

    def __call__(self, actor: Actor, message: Message) -> tuple[Fault, Micros] | None:
        return self._faults.get((actor.name, actor.asks))


_LATE = frozenset({Fault.DELAYED, Fault.DUPLICATED})
_LONG = frozenset({Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER, Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER})
_OF_A_CACHE = frozenset({"look", "keep", "drop"})


def _suited(fault: Fault, kind: str) -> Fault | None:
    """The fault that a message of that kind can meet."""
    if kind == "effect" and fault is Fault.DUPLICATED:
        return Fault.REPLY_LOST  # an effect that cannot be recognised is sent once
    if kind == "schema" and fault in _LATE:
        return Fault.REQUEST_LOST  # a connection keeps the order of its statements
    return None if fault in LIES and kind not in _OF_A_CACHE else fault


class Network:
    """Carries messages from actors to the world and back, and lets time pass."""

    def __init__(
        self,
        stage: Stage,
        world: World,
        time: Time,
        choose: Chooser,
        sweep: Callable[[], int],
        recording: Recording | None = None,
    ) -> None:
        self._time = time
        self._recording = recording
        self.injected: list[Injected] = []
        self.counts: Counter[Fault] = Counter()
        self._stage = stage
        self._world = world
        self._choose = choose
        self._sweep = sweep
        self._lease = stage.clocks.lease
        self._serial = 0
        self._heap: list[tuple[Micros, int, Callable[..., None], tuple[Any, ...]]] = []
        self._began = time.now

    # ------------------------------------------------------------ time

    def enter(self, actor: Actor) -> None:
        """Let an actor begin."""
        stage = self._stage
        stage.actors.append(actor)
        stage.open += actor.counted
        self._resume_at(0, actor, None)

    def play_until(self, end: Micros) -> None:
        """Let things happen until an instant, or until nobody waits for an answer any more."""
        heap, stage, time = self._heap, self._stage, self._time
        while heap and stage.open and heap[0][0] < end:
            time.now, _, happen, arguments = heappop(heap)
            happen(*arguments)

    def drain(self) -> None:
        """Apply what is still on its way when everybody has gone home."""
        while self._heap:
            self._time.now, _, happen, arguments = heappop(self._heap)
            if happen == self._arrive_late:
                happen(*arguments)

    def _at(self, delay: Micros, happen: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heappush(self._heap, (self._time.now + delay, self._serial, happen, arguments))

    def _soon(self, actor: Actor) -> Micros:
        return int(actor.chance() * self._lease) // 10 + 1

    def _resume_at(self, delay: Micros, actor: Actor, answer: Any) -> None:
        self._at(delay, self._resume, actor, actor.lives, answer)

    def _resume(self, actor: Actor, life: int, answer: Any) -> None:
        if actor.lives != life:
            return
        if self._recording is not None:
            self._recording.heard(actor, answer)
        try:
            acts = actor.acts
            put = acts.throw(answer) if isinstance(answer, Exception) else acts.send(answer)
        except StopIteration:
            actor.done = True
            return
        if isinstance(put, int):
            self._resume_at(put, actor, None)
        else:
            self._send(actor, put)

    # ------------------------------------------------------------ messages

    def _send(self, actor: Actor, ask: Ask[Any]) -> None:
        actor.asks += 1
        if self._recording is not None:
            self._recording.sent(actor, ask.request)
        met = None if self._stage.calm else self._choose(actor, ask.request)
        if met is None:
            self._answer(actor, ask, self._soon(actor))
            return
        fault, amount = met
        self.injected.append(Injected(actor.name, actor.asks, fault, amount, self._time.now - self._began))
        self.counts[fault] += 1
        self._world.note(actor.name, fault)
        _FAULTS[fault](self, actor, ask, amount)

    def _answer(self, actor: Actor, ask: Ask[Any], delay: Micros) -> None:
        """Apply a request now; its reply arrives after ``delay``."""
        try:
            answer = ask.parse(self._world.apply(ask.request))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the sender's to handle
            answer = error
        self._resume_at(delay, actor, answer)

    def _apply_unheard(self, message: Message, *, late: bool = False) -> None:
        """Apply a request whose answer nobody hears."""
        try:
            self._world.apply(message, late=late)
        except StoreUnavailable:
            self._world.note("", "it was refused")

    # ------------------------------------------------------------ the faults

    def _no_answer(self, actor: Actor, *, unsent: bool = False) -> None:
        self._resume_at(self._soon(actor), actor, StoreUnavailable("simulated", unsent=unsent))

    def _not_send(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._no_answer(actor, unsent=True)

    def _lose_request(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._no_answer(actor)

    def _lose_reply(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._apply_unheard(ask.request)
        self._no_answer(actor)

    def _delay(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._later(ask.request, amount)
        self._no_answer(actor)

    def _duplicate(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        if self._recording is not None:
            self._recording.doubled(ask.request)
        self._later(ask.request, amount)
        self._answer(actor, ask, self._soon(actor))

    def _later(self, message: Message, delay: Micros) -> None:
        if message.kind == "effect":
            attempt = message.named.attempt
            self._stage.on_their_way[attempt] = self._stage.on_their_way.get(attempt, 0) + 1
        self._at(delay, self._arrive_late, message)

    def _arrive_late(self, message: Message) -> None:
        if message.kind == "effect":
            self._stage.on_their_way[message.named.attempt] -= 1
        self._world.note("", "late arrival:")
        self._apply_unheard(message, late=True)

    def _crash_before(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self.restart(actor, amount)

    def _crash_after(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._apply_unheard(ask.request)
        self.restart(actor, amount)

    def restart(self, actor: Actor, down: Micros) -> None:
        """End an actor's life, and begin the next; where two versions are live, it may be of the other one."""
        if not actor.done:
            actor.crash()
            self._resume_at(down, actor, None)
        if actor.deployed:
            old, chance = actor.version == 1, actor.chance()
            actor.version = 2 if self._stage.rolled_out or chance < (0.5 if old else 0.7) else 1

    def _pause_before(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._at(amount, self._go_on, actor, actor.lives, ask)

    def _go_on(self, actor: Actor, life: int, ask: Ask[Any]) -> None:
        if actor.lives == life:
            self._answer(actor, ask, 1)

    def _pause_after(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._answer(actor, ask, amount)

    def _cancel(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        """Claims and settlements are brought to their end; the handler and the probe are interrupted."""
        if ask.request.kind in ("effect", "probe"):
            self._apply_unheard(ask.request)
            self._resume_at(self._soon(actor), actor, Cancelled())
        else:
            actor.cancelled = True
            self._answer(actor, ask, self._soon(actor))

    def _jump(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._time.skew = amount
        self._answer(actor, ask, self._soon(actor))

    def _sweep_between(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._sweep()
        self._answer(actor, ask, self._soon(actor))

    def _evict(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._world.cache.evict(ask.request.key)
        self._answer(actor, ask, self._soon(actor))

    def _go_back(self, actor: Actor, ask: Ask[Any], amount: Micros) -> None:
        self._world.cache.go_back(ask.request.key)
        self._answer(actor, ask, self._soon(actor))


_FAULTS: dict[Fault, Callable[[Network, Actor, Ask[Any], Micros], None]] = {
    Fault.UNSENT: Network._not_send,
    Fault.REQUEST_LOST: Network._lose_request,
    Fault.REPLY_LOST: Network._lose_reply,
    Fault.DELAYED: Network._delay,
    Fault.DUPLICATED: Network._duplicate,
    Fault.CRASHED_BEFORE: Network._crash_before,
    Fault.CRASHED_AFTER: Network._crash_after,
    Fault.PAUSED_BEFORE: Network._pause_before,
    Fault.PAUSED_AFTER: Network._pause_after,
    Fault.CANCELLED: Network._cancel,
    Fault.CLOCK_JUMPED: Network._jump,
    Fault.SWEPT: Network._sweep_between,
    Fault.EVICTED: Network._evict,
    Fault.STALE: Network._go_back,
}
