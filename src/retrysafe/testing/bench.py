"""The base of the conformance suite's cases: a harness, a bench, and the list of cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from retrysafe.protocol.procedures import ClaimResult, NotWon, Won, claim, find, read, renew, settle
from retrysafe.protocol.quotas import Quota
from retrysafe.protocol.records import (
    ClaimRequest,
    Clocks,
    EffectiveState,
    Effects,
    Filter,
    OnExpired,
    Ownership,
    Record,
    StoredResult,
)
from retrysafe.protocol.requests import Program
from retrysafe.protocol.store import OperableStore
from retrysafe.protocol.transitions import Transition

LEASE, WINDOW, MEMORY = 30.0, 3600.0, 7200.0
"""The clocks of the suite, in seconds."""


class Harness(Protocol):
    """A store, its executor, and a way to let time pass for it."""

    @property
    def store(self) -> OperableStore:
        """The store under test."""
        ...

    def do(self, program: Program[Any]) -> Any:
        """Drive a program on the executor under test."""
        ...

    def race(self, programs: Sequence[Program[Any]]) -> list[Any]:
        """Drive programs at once, each on a connection of its own; return their outcomes in order."""
        ...

    def elapse(self, key: bytes, seconds: float) -> None:
        """Let time pass for the record of ``key``: by a fake clock, or by moving its instants back."""
        ...


@dataclass
class Bench:
    """Short hands for the cases: a key of their own, wants, and the usual steps."""

    harness: Harness
    key: bytes
    attempts: int = field(default=0)
    boundary: str = "suite"

    def want(
        self,
        payload: bytes = b"payload",
        *,
        effects: Effects = "keyed",
        on_expired: OnExpired = "new",
        lease: float = LEASE,
        quota: Quota | None = None,
    ) -> ClaimRequest:
        self.attempts += 1
        attempt = f"{self.key.hex()[:16]}-{self.attempts}"
        clocks = Clocks(round(lease * 1e6), round(WINDOW * 1e6), round(MEMORY * 1e6))
        return ClaimRequest(
            key=self.key,
            boundary=self.boundary,
            scope="tenant",
            operation="operation",
            fingerprint=payload,
            attempt=attempt,
            effects=effects,
            clocks=clocks,
            on_expired=on_expired,
            quota=None if quota is None else quota.allowance(self.boundary, "tenant"),
        )

    def claim(self, want: ClaimRequest | None = None) -> ClaimResult:
        outcome: ClaimResult = self.harness.do(claim(self.harness.store, want or self.want()))
        return outcome

    def win(self, want: ClaimRequest | None = None) -> Ownership:
        outcome = self.claim(want)
        assert isinstance(outcome, Won), outcome
        return outcome.ownership

    def lose(self, want: ClaimRequest | None = None) -> NotWon:
        outcome = self.claim(want)
        assert isinstance(outcome, NotWon), outcome
        return outcome

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None = None) -> bool:
        settled: bool = self.harness.do(settle(self.harness.store, ownership, event, result))
        return settled

    def finish(
        self, event: Transition, result: StoredResult | None = None, want: ClaimRequest | None = None
    ) -> Ownership:
        """Win the key, and settle it."""
        ownership = self.win(want)
        assert self.settle(ownership, event, result)
        return ownership

    def renew(self, ownership: Ownership) -> bool:
        kept: set[Ownership] = self.harness.do(renew(self.harness.store, [ownership]))
        return ownership in kept

    def read(self) -> Record | None:
        record: Record | None = self.harness.do(read(self.harness.store, self.key))
        return record

    def record(self) -> Record:
        record = self.read()
        assert record is not None
        return record

    def elapse(self, seconds: float) -> None:
        self.harness.elapse(self.key, seconds)

    def sibling(self, number: int) -> Bench:
        """Another key of the same case, whatever this one begins with."""
        return Bench(self.harness, bytes([self.key[0] ^ (number + 1)]) + self.key[1:], boundary=self.boundary)

    def find(self, *states: EffectiveState) -> dict[bytes, Record]:
        """The records of this bench's boundary, by key."""
        wanted = Filter(boundary=self.boundary, states=frozenset(states))
        records: list[Record] = self.harness.do(find(self.harness.store, wanted, 1000))
        return {record.key: record for record in records}


RESULT = StoredResult(b"\x00\xffresult", "application/octet-stream", 7)
Case = Callable[[Bench], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its name."""
    CASES[function.__name__] = function
    return function
