"""Two stores in lockstep: a real one, and the memory store, which is the transition table executed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from retrysafe.protocol.records import ClaimRequest, Clocks, Effects, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.bench import Harness
from retrysafe.testing.harness import memory

CLOCKS = Clocks(lease=30_000_000, window=3_600_000_000, memory=7_200_000_000)
RESULT = StoredResult(b"\x00result\xff", "application/octet-stream", 3)
OWNER_EVENTS = (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE)
SEEN_EVENTS = (
    Transition.SUSPECT,
    Transition.RESOLVE_COMPLETED,
    Transition.RESOLVE_FAILED,
    Transition.RESOLVE_RELEASED,
    Transition.EXPIRE,
)


def result_of(event: Transition) -> StoredResult | None:
    """Return the stored result of an event, for the tests: releases and doubts store nothing."""
    return (
        RESULT
        if event in (Transition.COMPLETE, Transition.FAIL, Transition.RESOLVE_COMPLETED, Transition.RESOLVE_FAILED)
        else None
    )


class Shape(NamedTuple):
    """The part that must be equal in both worlds: everything of a record but the instants themselves."""

    standing: str
    attempt: str
    attempts: int
    identity: tuple[str, ...]
    fingerprint: bytes
    effects: str
    result: StoredResult | None
    window_length: int
    memory_length: int
    lease_length: int | None


def shape(record: Record | None) -> Shape | None:
    if record is None:
        return None
    running = record.state.value == "running"
    return Shape(
        record.effective_state.value,
        record.attempt,
        record.attempts,
        (record.boundary, record.scope, record.operation),
        record.fingerprint,
        record.effects,
        record.result,
        record.expires - record.updated,
        record.tombstone_until - record.updated,
        record.lease_until - record.updated if running else None,
    )


def _put(request: Ask[Any]) -> Program[Any]:
    return (yield from ask(request))


def _put_each(requests: Iterable[Ask[Any]]) -> Program[list[Any]]:
    answers: list[Any] = []
    for request in requests:
        answer = yield from ask(request)
        answers.append(answer)
    return answers


class World:
    """One store with one key, and what an attempt in it holds and has seen."""

    def __init__(self, harness: Harness, key: bytes) -> None:
        self.harness = harness
        self.key = key
        self.ownership: Ownership | None = None
        self.seen: Record | None = None

    @property
    def store(self) -> Store:
        return self.harness.store

    def read(self) -> Record | None:
        record: Record | None = self.harness.do(_put(self.store.read(self.key)))
        return record

    def look(self) -> Record | None:
        self.seen = self.read()
        return self.seen

    def claim(self, attempt: str, payload: bytes = b"p", effects: Effects = "keyed") -> Shape | None:
        return self._claim_of(self.harness.do(_put(self.store.claim(self._want(attempt, payload, effects)))), attempt)

    def take(self, attempt: str, payload: bytes = b"p", effects: Effects = "keyed") -> Shape | None:
        if self.seen is None:
            return None
        want = self._want(attempt, payload, effects)
        return self._claim_of(self.harness.do(_put(self.store.take(want, self.seen))), attempt)

    def settle(self, event: Transition, ownership: Ownership | None = None) -> bool:
        ownership = ownership or self.ownership
        if ownership is None:
            return False
        settled: bool = self.harness.do(_put(self.store.settle(ownership, event, result_of(event))))
        return settled

    def resolve(self, event: Transition, seen: Record | None = None) -> bool:
        seen = seen or self.seen
        if seen is None:
            return False
        settled: bool = self.harness.do(_put(self.store.resolve(seen, event, result_of(event), CLOCKS)))
        return settled

    def renew(self, ownership: Ownership | None = None) -> bool:
        ownership = ownership or self.ownership
        if ownership is None:
            return False
        answers = self.harness.do(_put_each(self.store.renew([ownership])))
        return any(self.key in answer for answer in answers)

    def sweep(self) -> None:
        self.harness.do(_put_each(self.store.sweep(100_000)))

    def elapse(self, seconds: float) -> None:
        self.harness.elapse(self.key, seconds)

    def _want(self, attempt: str, payload: bytes, effects: Effects) -> ClaimRequest:
        return ClaimRequest(self.key, "b", "s", "o", payload, attempt, effects, CLOCKS)

    def _claim_of(self, record: Record | None, attempt: str) -> Shape | None:
        if record is not None and record.attempt == attempt:
            self.ownership = Ownership(self.key, attempt, record.token, CLOCKS, False)
        return shape(record)


class Lockstep:
    """Does the same in both worlds, and compares answer and record after every step."""

    def __init__(self, harness: Harness) -> None:
        key = secrets.token_bytes(32)
        self.real = World(harness, key)
        self.model = World(memory(), key)
        self.last_token = 0
        self.last_version = 0

    def both(self, what: str, act: Callable[[World], Any]) -> Any:
        real, model = act(self.real), act(self.model)
        assert real == model, f"{what}: the store answers {real}, the table {model}"
        self.compare(what)
        return real

    def compare(self, what: str) -> None:
        found, expected = self.real.read(), self.model.read()
        if found is None and expected is not None and expected.effective_state.value == "forgotten":
            self.model.sweep()  # a store with native expiry has swept already
            return
        assert shape(found) == shape(expected), f"after {what}: {found} instead of {expected}"
        if found is not None:
            assert found.token >= self.last_token, f"after {what}: the token fell"
            assert found.version >= self.last_version, f"after {what}: the version fell"
            self.last_token, self.last_version = found.token, found.version

    def look(self) -> None:
        self.real.look()
        self.model.look()
