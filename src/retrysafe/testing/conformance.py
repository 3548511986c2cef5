"""The conformance suite of stores: what every store and executor must do, as cases over one harness.

Write a `Harness` for your store, and run every case of `CASES` with it: no case is optional. What a store cannot
promise beyond them is declared in its capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from retrysafe.core.decisions import Decision
from retrysafe.core.transitions import Event
from retrysafe.ports import Steps, Store
from retrysafe.programs.claiming import NotWon, Outcome, Won, claim
from retrysafe.programs.leasing import renew, sweep
from retrysafe.programs.settling import read, resolve, settle
from retrysafe.types import Clocks, Effects, Held, OnExpired, Record, Standing, State, Stored, Want

LEASE, WINDOW, MEMORY = 30.0, 3600.0, 7200.0
"""The clocks of the suite, in seconds."""


class Harness(Protocol):
    """A store, its executor, and a way to let time pass for it."""

    @property
    def store(self) -> Store:
        """The store under test."""
        ...

    def do(self, program: Steps[Any]) -> Any:
        """Drive a program on the executor under test."""
        ...

    def race(self, programs: Sequence[Steps[Any]]) -> list[Any]:
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

    def want(
        self,
        payload: bytes = b"payload",
        *,
        effects: Effects = "keyed",
        on_expired: OnExpired = "new",
        lease: float = LEASE,
    ) -> Want:
        self.attempts += 1
        attempt = f"{self.key.hex()[:16]}-{self.attempts}"
        clocks = Clocks(round(lease * 1e6), round(WINDOW * 1e6), round(MEMORY * 1e6))
        return Want(self.key, "suite", "tenant", "operation", payload, attempt, effects, clocks, on_expired)

    def claim(self, want: Want | None = None) -> Outcome:
        outcome: Outcome = self.harness.do(claim(self.harness.store, want or self.want()))
        return outcome

    def won(self, want: Want | None = None) -> Held:
        outcome = self.claim(want)
        assert isinstance(outcome, Won), outcome
        return outcome.held

    def refused(self, want: Want | None = None) -> NotWon:
        outcome = self.claim(want)
        assert isinstance(outcome, NotWon), outcome
        return outcome

    def settle(self, held: Held, event: Event, result: Stored | None = None) -> bool:
        settled: bool = self.harness.do(settle(self.harness.store, held, event, result))
        return settled

    def renew(self, held: Held) -> bool:
        kept: set[bytes] = self.harness.do(renew(self.harness.store, [held]))
        return held.key in kept

    def read(self) -> Record | None:
        record: Record | None = self.harness.do(read(self.harness.store, self.key))
        return record

    def record(self) -> Record:
        record = self.read()
        assert record is not None
        return record

    def elapse(self, seconds: float) -> None:
        self.harness.elapse(self.key, seconds)


RESULT = Stored(b"\x00\xffresult", "application/octet-stream", 7)
Case = Callable[[Bench], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its name."""
    CASES[function.__name__] = function
    return function


@case
def first_claim_wins_and_is_written_whole(bench: Bench) -> None:
    want = bench.want()
    held = bench.won(want)
    record = bench.record()
    assert (record.boundary, record.scope, record.operation) == ("suite", "tenant", "operation")
    assert (record.fingerprint, record.attempt, record.effects) == (want.fingerprint, want.attempt, "keyed")
    assert (record.state, record.standing, record.attempts) == (State.RUNNING, Standing.RUNNING, 1)
    assert record.token == held.token > 10**15
    assert LEASE - 5 < record.lease_left <= LEASE
    assert record.result is None


@case
def duplicate_of_a_running_attempt_is_busy(bench: Bench) -> None:
    bench.won()
    outcome = bench.refused()
    assert outcome.decision is Decision.BUSY
    assert outcome.record is not None
    assert 0 < outcome.record.lease_left <= LEASE


@case
def same_attempt_recognises_its_own_claim(bench: Bench) -> None:
    want = bench.want()
    assert bench.won(want) == bench.won(want)


@case
def completed_result_is_replayed_byte_for_byte(bench: Bench) -> None:
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, RESULT)
    outcome = bench.refused()
    assert outcome.decision is Decision.REPLAY
    assert outcome.record is not None
    assert outcome.record.result == RESULT


@case
def withheld_and_empty_results_stay_apart(bench: Bench) -> None:
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, Stored(None, "", 0))
    assert bench.record().result == Stored(None, "", 0)
    other = Bench(bench.harness, bench.key[::-1])
    held = other.won()
    assert other.settle(held, Event.COMPLETE, Stored(b"", "text/plain", 1))
    assert other.record().result == Stored(b"", "text/plain", 1)


@case
def completing_twice_reads_back_as_done(bench: Bench) -> None:
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, RESULT)
    assert bench.settle(held, Event.COMPLETE, RESULT)
    assert bench.record().result == RESULT


@case
def stored_failure_is_replayed(bench: Bench) -> None:
    held = bench.won()
    assert bench.settle(held, Event.FAIL, RESULT)
    outcome = bench.refused()
    assert outcome.decision is Decision.REPLAY_FAILURE
    assert outcome.record is not None
    assert outcome.record.result == RESULT


@case
def other_payload_is_refused_while_running_done_and_released(bench: Bench) -> None:
    held = bench.won()
    assert bench.refused(bench.want(b"other")).decision is Decision.REUSED
    before = bench.record()
    assert bench.settle(held, Event.RELEASE)
    assert bench.refused(bench.want(b"other")).decision is Decision.REUSED
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, RESULT)
    assert bench.refused(bench.want(b"other")).decision is Decision.REUSED
    assert bench.record().fingerprint == before.fingerprint


@case
def empty_fingerprint_switches_the_check_off(bench: Bench) -> None:
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, RESULT)
    assert bench.refused(bench.want(b"")).decision is Decision.REPLAY


@case
def lapsed_keyed_attempt_is_taken_over_and_fenced(bench: Bench) -> None:
    first = bench.won()
    bench.elapse(LEASE + 1)
    assert bench.record().standing is Standing.LAPSED
    second = bench.won()
    assert second.token > first.token
    assert bench.record().attempts == 2
    assert not bench.settle(first, Event.COMPLETE, RESULT)
    assert not bench.settle(first, Event.FAIL, RESULT)
    assert not bench.settle(first, Event.RELEASE)
    assert not bench.settle(first, Event.DOUBT)
    assert not bench.renew(first)
    assert bench.settle(second, Event.COMPLETE, RESULT)
    assert not bench.settle(first, Event.COMPLETE, Stored(b"late", "x", 1))
    assert bench.record().result == RESULT


@case
def lapsed_attempt_that_nobody_replaced_may_still_complete(bench: Bench) -> None:
    held = bench.won()
    bench.elapse(LEASE + 1)
    assert bench.settle(held, Event.COMPLETE, RESULT)


@case
def release_keeps_the_row_and_tokens_only_rise(bench: Bench) -> None:
    first = bench.won()
    assert bench.settle(first, Event.RELEASE)
    assert bench.record().standing is Standing.RELEASED
    second = bench.won()
    assert second.token > first.token
    assert bench.record().attempts == 2
    assert not bench.settle(first, Event.COMPLETE, RESULT)
    assert bench.record().attempt == second.attempt


@case
def renewal_extends_a_live_lease_and_never_revives_a_lapsed_one(bench: Bench) -> None:
    held = bench.won()
    bench.elapse(LEASE - 10)
    assert bench.renew(held)
    bench.elapse(LEASE - 10)
    assert bench.record().standing is Standing.RUNNING
    bench.elapse(11)
    assert not bench.renew(held)
    assert bench.record().standing is Standing.LAPSED


@case
def renewal_of_many_keeps_the_live_ones(bench: Bench) -> None:
    benches = [Bench(bench.harness, bytes([number]) + bench.key[1:]) for number in range(3)]
    held = [one.won() for one in benches]
    assert benches[1].settle(held[1], Event.COMPLETE, RESULT)
    kept = bench.harness.do(renew(bench.harness.store, held))
    assert kept == {held[0].key, held[2].key}


@case
def lapsed_external_attempt_becomes_unknown(bench: Bench) -> None:
    first = bench.won(bench.want(effects="external"))
    bench.elapse(LEASE + 1)
    assert bench.refused(bench.want(effects="external")).decision is Decision.DOUBT
    assert bench.record().state is State.UNKNOWN
    bench.elapse(10 * MEMORY)
    assert bench.refused(bench.want(effects="external")).decision is Decision.DOUBT
    assert bench.settle(first, Event.COMPLETE, RESULT), "the same attempt may still settle it"


@case
def unknown_is_resolved_once_and_only_as_seen(bench: Bench) -> None:
    clocks = bench.want().clocks
    for event, expected in (
        (Event.RESOLVE_COMPLETED, Decision.REPLAY),
        (Event.RESOLVE_FAILED, Decision.REPLAY_FAILURE),
    ):
        one = Bench(bench.harness, bytes([len(event)]) + bench.key[1:])
        held = one.won()
        assert one.settle(held, Event.DOUBT)
        seen = one.record()
        assert one.harness.do(resolve(one.harness.store, seen, event, RESULT, clocks))
        assert not one.harness.do(resolve(one.harness.store, seen, Event.RESOLVE_RELEASED, None, clocks))
        assert one.refused().decision is expected
        assert not one.settle(held, Event.RELEASE)


@case
def unknown_released_by_a_person_runs_again_with_a_higher_token(bench: Bench) -> None:
    first = bench.won()
    assert bench.settle(first, Event.DOUBT)
    clocks = bench.want().clocks
    assert bench.harness.do(resolve(bench.harness.store, bench.record(), Event.RESOLVE_RELEASED, None, clocks))
    second = bench.won()
    assert second.token > first.token
    assert not bench.settle(first, Event.COMPLETE, RESULT)


@case
def expired_key_is_new_work_with_a_higher_token(bench: Bench) -> None:
    first = bench.won()
    assert bench.settle(first, Event.COMPLETE, RESULT)
    bench.elapse(WINDOW + 1)
    second = bench.won(bench.want(b"another payload"))
    assert second.token > first.token
    assert bench.record().attempts == 1
    assert bench.record().result is None


@case
def expired_key_is_refused_while_remembered(bench: Bench) -> None:
    held = bench.won(bench.want(on_expired="refuse"))
    assert bench.settle(held, Event.COMPLETE, RESULT)
    bench.elapse(WINDOW + 1)
    assert bench.refused(bench.want(b"another", on_expired="refuse")).decision is Decision.EXPIRED
    bench.elapse(MEMORY - WINDOW)
    assert isinstance(bench.claim(bench.want(b"another", on_expired="refuse")), Won)


@case
def running_never_expires(bench: Bench) -> None:
    held = bench.won()
    bench.elapse(10 * MEMORY)
    assert bench.record().standing is Standing.LAPSED
    assert bench.settle(held, Event.COMPLETE, RESULT)


@case
def sweep_removes_only_what_is_forgotten(bench: Bench) -> None:
    store = bench.harness.store
    running = Bench(bench.harness, b"\x01" + bench.key[1:])
    running.won()
    held = bench.won()
    assert bench.settle(held, Event.COMPLETE, RESULT)
    bench.elapse(WINDOW + 1)
    bench.harness.do(sweep(store, 1000))
    assert bench.read() is not None, "an expired key is still remembered"
    bench.elapse(MEMORY - WINDOW)
    running.elapse(10 * MEMORY)
    bench.harness.do(sweep(store, 1000))
    left = bench.read()
    assert left is None or (not store.sweep(1) and left.standing is Standing.FORGOTTEN)
    assert running.read() is not None
    assert isinstance(bench.claim(bench.want(b"another")), Won)


@case
def one_of_many_simultaneous_claims_wins(bench: Bench) -> None:
    for number in range(5):
        one = Bench(bench.harness, bytes([number]) + bench.key[1:])
        outcomes = bench.harness.race([claim(bench.harness.store, one.want()) for _ in range(8)])
        assert sum(isinstance(outcome, Won) for outcome in outcomes) == 1, outcomes
        assert {outcome.decision for outcome in outcomes if isinstance(outcome, NotWon)} == {Decision.BUSY}


@case
def one_of_many_simultaneous_takeovers_wins(bench: Bench) -> None:
    for number in range(5):
        one = Bench(bench.harness, bytes([number]) + bench.key[1:])
        one.won()
        one.elapse(LEASE + 1)
        outcomes = bench.harness.race([claim(bench.harness.store, one.want()) for _ in range(8)])
        assert sum(isinstance(outcome, Won) for outcome in outcomes) == 1, outcomes


@case
def completion_races_with_takeover_to_one_end(bench: Bench) -> None:
    for number in range(5):
        one = Bench(bench.harness, bytes([number]) + bench.key[1:])
        held = one.won()
        one.elapse(LEASE + 1)
        store = bench.harness.store
        completed, outcome = bench.harness.race([settle(store, held, Event.COMPLETE, RESULT), claim(store, one.want())])
        assert completed != isinstance(outcome, Won), (completed, outcome)
