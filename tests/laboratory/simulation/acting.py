"""Actors, what they share, and the shipping programs that they drive.

Every ask and every pause of an actor is yielded to the simulation, which decides what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from retrysafe.claims import codec
from retrysafe.claims import outcome as endings
from retrysafe.claims.outcome import HandlerSignals
from retrysafe.protocol import caching, keys, migrating, outcomes, procedures, quotas
from retrysafe.protocol.outcomes import Ending, ModeKind, Settlement
from retrysafe.protocol.procedures import (
    Change,
    ClaimResult,
    NotWon,
    claim,
    forgotten,
    read,
    remove,
    renew,
    resolve,
    settle,
    sweep,
)
from retrysafe.protocol.records import Allowance, ClaimRequest, Clocks, Effects, Micros, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask, Program
from retrysafe.protocol.store import Cache, Store
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation.chance import stream
from tests.laboratory.simulation.judging import Judge
from tests.laboratory.simulation.messages import Message
from tests.laboratory.simulation.plan import Plan
from tests.laboratory.simulation.servers import Migrated

R = TypeVar("R")
Acts = Generator[Ask[Any] | int, Any, None]
"""An actor: it yields asks and pauses (in microseconds)."""
Act = Generator[Ask[Any] | int, Any, R]
"""A part of what an actor does, and what comes of it."""

_TERMS: Any = SimpleNamespace(codec=codec.JSONCodec(), largest_result=None)
_CODEC = codec.JSONCodec()


class Cancelled(Exception):
    """The caller of a worker has gone away."""


def decode(stored: StoredResult, version: int) -> Any:
    """Decode by the codec of a version: the shipping one, or that of the next version, which reads both."""
    if version > 1:
        stored = stored._replace(codec_version=codec.VERSION)
    return _CODEC.decode(stored, None)


def answer_of(said: HandlerSignals, result: Any) -> tuple[Transition, StoredResult | None] | None:
    """Return the transition and result that a probe's answer leads to."""
    return endings.verdict_of_probe(said, _TERMS, result, None)


class Parts(NamedTuple):
    """The parts under proof; a test replaces one part by a broken one to see it caught."""

    claim: Callable[[Store, ClaimRequest], Program[ClaimResult]] = claim
    settle: Callable[[Store, Ownership, Transition, StoredResult | None], Program[bool]] = settle
    resolve: Callable[[Store, Record, Transition, StoredResult | None, Clocks], Program[bool]] = resolve
    renew: Callable[[Store, list[Ownership]], Program[set[Ownership]]] = renew
    sweep: Callable[[Store, int], Program[int]] = sweep
    forgotten: Callable[[Any, int], Program[list[Record]]] = forgotten
    remove: Callable[[Any, list[Record]], Program[int]] = remove
    read: Callable[[Store, bytes], Program[Record | None]] = read
    settle_doubt: Callable[..., Program[Change]] = procedures.settle_doubt
    expire: Callable[[Store, Record], Program[Change]] = procedures.expire_seen
    look: Callable[[Cache, ClaimRequest], Program[tuple[NotWon | None, Micros]]] = caching.look
    keep: Callable[[Cache, ClaimResult, Micros, Micros], Program[None]] = caching.keep
    drop: Callable[[Cache, Record, Micros], Program[None]] = caching.drop
    drop_again: Callable[[Cache, Record, Micros], Program[None]] = caching.drop
    migrate: Callable[..., Program[Any]] = migrating.migrate
    require: Callable[[Any, int, str], Program[None]] = migrating.require
    settlement_of: Callable[[Ending, ModeKind], Settlement] = outcomes.settlement_of
    answer_of: Callable[[HandlerSignals, Any], tuple[Transition, StoredResult | None] | None] = answer_of
    decode: Callable[[StoredResult, int], Any] = decode
    key_for: Callable[[Ownership], str] = lambda ownership: keys.derive(None, ownership.key, "bank")


class Actor:
    """One actor and its life: what a crash ends and a restart begins again. It has chance of its own."""

    def __init__(self, name: str, seed: int, begin: Callable[[Actor], Acts], *, counted: bool) -> None:
        self.name = name
        self.chance = stream(seed)
        self.begin = begin
        self.counted = counted
        """True if the schedule waits for its end."""
        self.deployed = False
        """True if it is a process of the application, which is deployed in versions."""
        self.acts = begin(self)
        self.lives = 1
        self.done = False
        self.asks = 0
        self.attempts = 0
        self.attempt = ""
        self.cancelled = False
        self.version = 1
        self.checked_life = 0
        self.probes = False

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
    """The common state of actors."""

    def __init__(self, plan: Plan, parts: Parts, judge: Judge, stores: dict[int, Any], cache: Cache) -> None:
        self.plan = plan
        self.parts = parts
        self.clocks = plan.clocks
        self.judge = judge
        self.stores = stores
        """The store in the hands of each version of the code."""
        self.store = stores[0]
        """The store in the hands of those who tend it."""
        self.cache = cache
        self.schema = Migrated()
        self.calm = False
        """True if faults have ended."""
        self.time: Any
        self.hang_up: Callable[[str], None] = lambda who: None
        self.restart: Callable[[Actor], None]
        self.open = 0
        self.rolled_out = False
        self.fingerprints_differ = False
        self.effects: dict[bytes, Effects] = {}
        self.actors: list[Actor] = []
        self.on_their_way: dict[str, int] = {}
        self.quota: Allowance | None = None
        if plan.outstanding or plan.rate:
            holder = quotas.holder("simulated", "")
            self.quota = Allowance(holder, plan.rate or None, plan.clocks.window, plan.outstanding or None)

    def pause(self, actor: Actor, leases: float) -> int:
        """A random pause of up to so many leases."""
        return int(actor.chance() * leases * self.clocks.lease) + 1

    def is_over(self, attempt: str) -> bool:
        """Tell whether an attempt can have no effect any more: an operator makes sure of that before a release."""
        return not self.on_their_way.get(attempt) and all(actor.attempt != attempt for actor in self.actors)

    def want(self, actor: Actor, key: bytes, fingerprint: bytes) -> ClaimRequest:
        """Return the claim of an actor's new attempt."""
        effects, attempt = self.effects[key], actor.begin_attempt()
        return ClaimRequest(key, "simulated", "", "pay", fingerprint, attempt, effects, self.clocks, "new", self.quota)

    def fingerprint(self, version: int, payload: bytes) -> bytes:
        """Return the fingerprint of a payload by a version of the code."""
        return b"v2 " + payload if self.fingerprints_differ and version > 1 else payload


def on_connection(program: Program[R], who: str) -> Program[R]:
    """Drive a program whose requests go to the schema, all on one connection."""
    try:
        put = next(program)
        while True:
            try:
                answer = yield Ask(Message("schema", b"", who, None, put.request), put.parse)
            except Exception as error:  # noqa: BLE001 - the program decides
                put = program.throw(error)
            else:
                put = program.send(answer)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome
