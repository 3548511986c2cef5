"""Legal histories, made by the memory store itself: actors that ask it for anything, at random moments.

Every step is carried out at one instant between its beginning and its end, so each history that is made here can be
explained, whatever was lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from retrysafe.protocol.records import ClaimRequest, Clocks, Effects, Ownership, Record, StoredResult
from retrysafe.protocol.transitions import RULES, Guard, Transition
from tests.laboratory.histories import History, Kind, Operation
from tests.laboratory.specification import step_of

KEY = b"key"
OWNER = tuple(event for event, rule in RULES.items() if rule.guard is Guard.OWNER and event is not Transition.RENEW)
SEEN = tuple(event for event, rule in RULES.items() if rule.guard is Guard.SEEN and event is not Transition.CLAIM)


class Shape(NamedTuple):
    """The form of the histories. Instants are microseconds on the store's clock, which starts at ``epoch``."""

    operations: int = 40
    actors: int = 4
    clocks: Clocks = Clocks(lease=60, window=500, memory=600)
    span: int = 20
    """The longest duration of a step, and of its actor's rest."""
    lost: float = 0.1
    late: float = 0.5
    """Of those that are lost: how many are carried out all the same, perhaps much later."""
    elapses: float = 0.02
    sweeps: float = 0.05
    epoch: int = 1_000_000


class Made(NamedTuple):
    """A history, and how many of its steps nobody heard the answer of."""

    operations: list[Operation]
    lost: int


class _World:
    def __init__(self, chance: Random, shape: Shape) -> None:
        self.chance, self.shape = chance, shape
        self.now = shape.epoch
        self.history = History(lambda: self.now * 1000)
        self.records: dict[bytes, Record] = {}
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.left = shape.operations
        self.lost = 0
        self.attempts = 0
        self.held: list[Ownership] = []
        self.seen: list[Record] = []
        self.effects: Effects = chance.choice(("keyed", "external"))

    def at(self, delay: int, happen: Callable[[], None]) -> None:
        self.serial += 1
        heappush(self.heap, (self.now + delay, self.serial, happen))

    def some(self, most: int) -> int:
        return int(self.chance.random() * (most + 1))

    def run(self) -> Made:
        for number in range(self.shape.actors):
            self.at(self.some(self.shape.span), lambda number=number: self.act(f"actor {number}"))  # type: ignore[misc]
        while self.heap:
            self.now, _, happen = heappop(self.heap)
            happen()
        return Made(self.history.operations(), self.lost)

    def act(self, actor: str) -> None:
        if self.left == 0:
            return
        self.left -= 1
        kind, arguments = self.choose()
        key = b"" if kind == "sweep" else KEY
        number = self.history.begin(actor, kind, key, arguments)
        step = step_of(Operation(actor, kind, key, arguments, 0, 0, None, None))
        take, answer = self.some(self.shape.span), self.some(self.shape.span)
        if self.chance.random() < self.shape.lost:
            self.lost += 1
            if self.chance.random() < self.shape.late:
                self.at(take * self.some(10), lambda: step(self.records, self.now) and None)
        else:
            self.at(take, lambda: self.carry_out(number, kind, arguments, step, answer))
        self.at(take + answer + self.some(self.shape.span), lambda: self.act(actor))

    def carry_out(self, number: int, kind: Kind, arguments: tuple[Any, ...], step: Any, after: int) -> None:
        answer = step(self.records, self.now)
        self.at(after, lambda: self.hear(number, kind, arguments, answer))

    def hear(self, number: int, kind: Kind, arguments: tuple[Any, ...], answer: Any) -> None:
        self.history.end(number, answer)
        if isinstance(answer, Record):
            self.seen.append(answer)
            if kind in ("claim", "take") and answer.attempt == arguments[0].attempt:
                self.held.append(Ownership(KEY, answer.attempt, answer.token, self.shape.clocks, False))

    def recent(self, kept: list[Any]) -> Any:
        """One of those, most often the last."""
        return kept[-1] if self.chance.random() < 0.7 else self.chance.choice(kept)

    def choose(self) -> tuple[Kind, tuple[Any, ...]]:
        kinds: list[Kind] = ["claim", "claim", "read"]
        kinds += ["settle", "settle", "renew"] if self.held else []
        kinds += ["take", "take", "resolve"] if self.seen else []
        if self.chance.random() < self.shape.sweeps:
            return "sweep", (1,)
        if self.chance.random() < self.shape.elapses:
            return "elapse", (KEY, self.shape.clocks.lease + 1)
        kind = self.chance.choice(kinds)
        if kind == "claim":
            return kind, (self.want(),)
        if kind == "take":
            return kind, (self.want(), self.recent(self.seen))
        if kind == "settle":
            held: Ownership = self.recent(self.held)
            return kind, (held, self.chance.choice(OWNER), self.result(held.attempt))
        if kind == "renew":
            return kind, (self.recent(self.held),)
        if kind == "resolve":
            seen: Record = self.recent(self.seen)
            event = self.chance.choice(SEEN)
            clocks = Clocks(0, 0, self.shape.clocks.memory) if event is Transition.EXPIRE else self.shape.clocks
            return kind, (seen, event, self.result("operator"), clocks)
        return kind, (KEY,)

    def want(self) -> ClaimRequest:
        if self.attempts and self.chance.random() < 0.2:  # the same attempt once more
            number = self.some(self.attempts - 1)
        else:
            number, self.attempts = self.attempts, self.attempts + 1
        return ClaimRequest(KEY, "b", "", "o", b"p", f"a{number}", self.effects, self.shape.clocks)

    def result(self, who: str) -> StoredResult | None:
        return StoredResult(f"{who} {self.some(2)}".encode(), "text/plain", 1) if self.chance.random() < 0.7 else None


def generate(chance: Random, shape: Shape = Shape()) -> Made:  # noqa: B008 - a value
    """Make one legal history."""
    return _World(chance, shape).run()
