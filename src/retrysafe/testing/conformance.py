"""The conformance suite of stores: what every store and executor must do, as cases over one harness.

Write a `Harness` for your store, and run every case of `CASES` with it: no case is optional. What a store cannot
promise beyond them is declared in its capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import (
    ClaimResult,
    NotWon,
    Won,
    claim,
    expire,
    forgotten,
    remove,
    renew,
    resolve,
    settle,
    sweep,
    tally,
)
from retrysafe.protocol.records import EffectiveState, Filter, State, StoredResult
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.transitions import Transition
from retrysafe.testing import quota_cases  # noqa: F401 - its cases are cases of the suite
from retrysafe.testing.bench import CASES, LEASE, MEMORY, RESULT, WINDOW, Bench, Case, Harness, case

__all__ = ["CASES", "Bench", "Case", "Harness", "case"]


@case
def first_claim_wins_and_is_written_whole(bench: Bench) -> None:
    want = bench.want()
    ownership = bench.win(want)
    record = bench.record()
    assert (record.boundary, record.scope, record.operation) == ("suite", "tenant", "operation")
    assert (record.fingerprint, record.attempt, record.effects) == (want.fingerprint, want.attempt, "keyed")
    assert (record.state, record.effective_state, record.attempts) == (State.RUNNING, EffectiveState.RUNNING, 1)
    assert record.token == ownership.token > 10**15
    assert LEASE - 5 < record.lease_left <= LEASE
    assert record.result is None


@case
def duplicate_of_a_running_attempt_is_busy(bench: Bench) -> None:
    bench.win()
    outcome = bench.lose()
    assert outcome.decision is Decision.BUSY
    assert outcome.record is not None
    assert 0 < outcome.record.lease_left <= LEASE


@case
def same_attempt_recognises_its_own_claim(bench: Bench) -> None:
    want = bench.want()
    assert bench.win(want) == bench.win(want)


@case
def a_completed_result_is_replayed_byte_for_byte(bench: Bench) -> None:
    bench.finish(Transition.COMPLETE, RESULT)
    outcome = bench.lose()
    assert outcome.decision is Decision.REPLAY
    assert outcome.record is not None
    assert outcome.record.result == RESULT


@case
def results_withheld_and_empty_stay_apart(bench: Bench) -> None:
    bench.finish(Transition.COMPLETE, StoredResult(None, "", 0))
    assert bench.record().result == StoredResult(None, "", 0)
    other = Bench(bench.harness, bench.key[::-1])
    other.finish(Transition.COMPLETE, StoredResult(b"", "text/plain", 1))
    assert other.record().result == StoredResult(b"", "text/plain", 1)


@case
def completing_twice_reads_back_as_done(bench: Bench) -> None:
    ownership = bench.finish(Transition.COMPLETE, RESULT)
    assert bench.settle(ownership, Transition.COMPLETE, RESULT)
    assert bench.record().result == RESULT


@case
def a_stored_failure_is_replayed(bench: Bench) -> None:
    bench.finish(Transition.FAIL, RESULT)
    outcome = bench.lose()
    assert outcome.decision is Decision.REPLAY_FAILURE
    assert outcome.record is not None
    assert outcome.record.result == RESULT


@case
def other_payload_is_refused_while_running_done_and_released(bench: Bench) -> None:
    ownership = bench.win()
    assert bench.lose(bench.want(b"other")).decision is Decision.REUSED
    before = bench.record()
    assert bench.settle(ownership, Transition.RELEASE)
    assert bench.lose(bench.want(b"other")).decision is Decision.REUSED
    bench.finish(Transition.COMPLETE, RESULT)
    assert bench.lose(bench.want(b"other")).decision is Decision.REUSED
    assert bench.record().fingerprint == before.fingerprint


@case
def empty_fingerprint_switches_the_check_off(bench: Bench) -> None:
    bench.finish(Transition.COMPLETE, RESULT)
    assert bench.lose(bench.want(b"")).decision is Decision.REPLAY


@case
def a_lapsed_keyed_attempt_is_taken_over_and_fenced(bench: Bench) -> None:
    first = bench.win()
    bench.elapse(LEASE + 1)
    assert bench.record().effective_state is EffectiveState.LAPSED
    second = bench.win()
    assert second.token > first.token
    assert bench.record().attempts == 2
    assert not bench.settle(first, Transition.COMPLETE, RESULT)
    assert not bench.settle(first, Transition.FAIL, RESULT)
    assert not bench.settle(first, Transition.RELEASE)
    assert not bench.settle(first, Transition.DOUBT)
    assert not bench.renew(first)
    assert bench.settle(second, Transition.COMPLETE, RESULT)
    assert not bench.settle(first, Transition.COMPLETE, StoredResult(b"late", "x", 1))
    assert bench.record().result == RESULT


@case
def a_lapsed_attempt_that_nobody_replaced_may_still_complete(bench: Bench) -> None:
    ownership = bench.win()
    bench.elapse(LEASE + 1)
    assert bench.settle(ownership, Transition.COMPLETE, RESULT)


@case
def release_keeps_the_row_and_tokens_only_rise(bench: Bench) -> None:
    first = bench.finish(Transition.RELEASE)
    assert bench.record().effective_state is EffectiveState.RELEASED
    second = bench.win()
    assert second.token > first.token
    assert bench.record().attempts == 2
    assert not bench.settle(first, Transition.COMPLETE, RESULT)
    assert bench.record().attempt == second.attempt


@case
def release_without_a_window_frees_the_key_for_any_payload(bench: Bench) -> None:
    """A redirected request comes again as another one, with the same key."""
    ownership = bench.win()
    bare = ownership._replace(clocks=ownership.clocks._replace(window=0))
    assert bench.settle(bare, Transition.RELEASE)
    again = bench.win(bench.want(b"other"))
    assert again.token > ownership.token
    bare = again._replace(clocks=again.clocks._replace(window=0, memory=0))
    assert bench.settle(bare, Transition.RELEASE)
    assert isinstance(bench.claim(bench.want(b"another", on_expired="refuse")), Won)


@case
def renewal_extends_a_live_lease_and_never_revives_a_lapsed_one(bench: Bench) -> None:
    ownership = bench.win()
    bench.elapse(LEASE - 10)
    assert bench.renew(ownership)
    bench.elapse(LEASE - 10)
    assert bench.record().effective_state is EffectiveState.RUNNING
    bench.elapse(11)
    assert not bench.renew(ownership)
    assert bench.record().effective_state is EffectiveState.LAPSED


@case
def renewal_of_many_keeps_the_live_ones(bench: Bench) -> None:
    benches = [Bench(bench.harness, bytes([number]) + bench.key[1:]) for number in range(3)]
    ownerships = [one.win() for one in benches]
    assert benches[1].settle(ownerships[1], Transition.COMPLETE, RESULT)
    kept = bench.harness.do(renew(bench.harness.store, ownerships))
    assert kept == {ownerships[0], ownerships[2]}


@case
def a_lapsed_external_attempt_becomes_unknown(bench: Bench) -> None:
    first = bench.win(bench.want(effects="external"))
    bench.elapse(LEASE + 1)
    assert bench.lose(bench.want(effects="external")).decision is Decision.DOUBT
    assert bench.record().state is State.UNKNOWN
    bench.elapse(10 * MEMORY)
    assert bench.lose(bench.want(effects="external")).decision is Decision.DOUBT
    assert bench.settle(first, Transition.COMPLETE, RESULT), "the same attempt may still settle it"


@case
def unknown_is_resolved_once_and_only_as_seen(bench: Bench) -> None:
    clocks = bench.want().clocks
    for event, expected in (
        (Transition.RESOLVE_COMPLETED, Decision.REPLAY),
        (Transition.RESOLVE_FAILED, Decision.REPLAY_FAILURE),
    ):
        one = Bench(bench.harness, bytes([len(event)]) + bench.key[1:])
        ownership = one.finish(Transition.DOUBT)
        seen = one.record()
        assert one.harness.do(resolve(one.harness.store, seen, event, RESULT, clocks))
        assert not one.harness.do(resolve(one.harness.store, seen, Transition.RESOLVE_RELEASED, None, clocks))
        assert one.lose().decision is expected
        assert not one.settle(ownership, Transition.RELEASE)


@case
def unknown_released_by_a_person_runs_again_with_a_higher_token(bench: Bench) -> None:
    first = bench.finish(Transition.DOUBT)
    clocks = bench.want().clocks
    assert bench.harness.do(resolve(bench.harness.store, bench.record(), Transition.RESOLVE_RELEASED, None, clocks))
    second = bench.win()
    assert second.token > first.token
    assert not bench.settle(first, Transition.COMPLETE, RESULT)


@case
def an_expired_key_is_new_work_with_a_higher_token(bench: Bench) -> None:
    first = bench.finish(Transition.COMPLETE, RESULT)
    bench.elapse(WINDOW + 1)
    second = bench.win(bench.want(b"another payload"))
    assert second.token > first.token
    assert bench.record().attempts == 1
    assert bench.record().result is None


@case
def an_expired_key_is_refused_while_remembered(bench: Bench) -> None:
    bench.finish(Transition.COMPLETE, RESULT, want=bench.want(on_expired="refuse"))
    bench.elapse(WINDOW + 1)
    assert bench.lose(bench.want(b"another", on_expired="refuse")).decision is Decision.EXPIRED
    bench.elapse(MEMORY - WINDOW)
    assert isinstance(bench.claim(bench.want(b"another", on_expired="refuse")), Won)


@case
def running_never_expires(bench: Bench) -> None:
    ownership = bench.win()
    bench.elapse(10 * MEMORY)
    assert bench.record().effective_state is EffectiveState.LAPSED
    assert bench.settle(ownership, Transition.COMPLETE, RESULT)


@case
def sweep_removes_only_what_is_forgotten(bench: Bench) -> None:
    store = bench.harness.store
    running = bench.sibling(1)
    running.win()
    bench.finish(Transition.COMPLETE, RESULT)
    bench.elapse(WINDOW + 1)
    bench.harness.do(sweep(store, 1000))
    assert bench.read() is not None, "an expired key is still remembered"
    bench.elapse(MEMORY - WINDOW)
    running.elapse(10 * MEMORY)
    bench.harness.do(sweep(store, 1000))
    left = bench.read()
    assert left is None or (not store.sweep(1) and left.effective_state is EffectiveState.FORGOTTEN)
    assert running.read() is not None
    assert isinstance(bench.claim(bench.want(b"another")), Won)


@case
def a_key_that_is_claimed_in_the_middle_of_a_sweep_is_kept(bench: Bench) -> None:
    """After what finds the forgotten records, and before what removes them."""
    store, won = bench.harness.store, list[ClaimResult]()

    def sweep_and_claim() -> Program[None]:
        requests: Iterable[Ask[Any]] = store.sweep(1000)
        for request in requests:
            yield from ask(request)
            if not won:
                won.append((yield from claim(store, bench.want())))

    bench.finish(Transition.COMPLETE, RESULT)
    bench.elapse(MEMORY + 1)
    bench.harness.do(sweep_and_claim())
    assert all(isinstance(one, Won) for one in won)
    assert not won or bench.record().effective_state is EffectiveState.RUNNING


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
        one.win()
        one.elapse(LEASE + 1)
        outcomes = bench.harness.race([claim(bench.harness.store, one.want()) for _ in range(8)])
        assert sum(isinstance(outcome, Won) for outcome in outcomes) == 1, outcomes


@case
def completion_races_with_takeover_to_one_end(bench: Bench) -> None:
    for number in range(5):
        one = Bench(bench.harness, bytes([number]) + bench.key[1:])
        ownership = one.win()
        one.elapse(LEASE + 1)
        store = bench.harness.store
        completed, outcome = bench.harness.race(
            [settle(store, ownership, Transition.COMPLETE, RESULT), claim(store, one.want())]
        )
        assert completed != isinstance(outcome, Won), (completed, outcome)


@case
def a_settled_key_is_expired_by_hand_once_and_only_as_seen(bench: Bench) -> None:
    store = bench.harness.store
    first = bench.win()
    assert not bench.harness.do(expire(store, bench.record())), "a running key is its attempt's"
    assert bench.settle(first, Transition.COMPLETE, RESULT)
    seen = bench.record()
    assert bench.harness.do(expire(store, seen))
    assert bench.record().effective_state is EffectiveState.EXPIRED
    assert not bench.harness.do(expire(store, seen))
    assert bench.lose(bench.want(on_expired="refuse")).decision is Decision.EXPIRED
    second = bench.win(bench.want(b"another payload"))
    assert second.token > first.token
    assert not bench.settle(first, Transition.COMPLETE, RESULT)


@case
def expiring_by_hand_can_end_the_memory_too(bench: Bench) -> None:
    bench.finish(Transition.FAIL, RESULT)
    assert bench.harness.do(expire(bench.harness.store, bench.record(), forget=True))
    left = bench.read()
    assert left is None or left.effective_state is EffectiveState.FORGOTTEN
    assert isinstance(bench.claim(bench.want(on_expired="refuse")), Won)


@case
def scan_finds_what_is_wanted_and_goes_on_where_it_stopped(bench: Bench) -> None:
    bench.boundary = "scan " + bench.key.hex()[:16]
    made = {number: bench.sibling(number) for number in range(7)}
    routed = made[6].want()._replace(operation="http", recorded="http: POST /orders/{id}")
    ownerships = {number: one.win(routed if number == 6 else None) for number, one in made.items()}
    for number, event in (
        (1, Transition.COMPLETE),
        (2, Transition.FAIL),
        (3, Transition.RELEASE),
        (4, Transition.DOUBT),
    ):
        assert made[number].settle(ownerships[number], event, RESULT if number < 3 else None)
    made[5].elapse(LEASE + 1)
    standings = {one.key: one.record().effective_state for one in made.values()}
    found = bench.find()
    assert {key: record.effective_state for key, record in found.items()} == standings
    assert {record.result for record in found.values()} == {None}, "a list does not carry results"
    assert found[made[1].key]._replace(result=RESULT, now=0) == made[1].record()._replace(now=0)
    assert set(bench.find(EffectiveState.UNKNOWN)) == {
        key for key, one in standings.items() if one is EffectiveState.UNKNOWN
    }
    assert set(bench.find(EffectiveState.UNKNOWN, EffectiveState.LAPSED)) == {
        key for key, standing in standings.items() if standing in (EffectiveState.UNKNOWN, EffectiveState.LAPSED)
    }
    assert set(_by_pages(bench, Filter(boundary=bench.boundary), 2)) == set(found)
    assert not _by_pages(bench, Filter(boundary=bench.boundary, operation="another"), 2)
    for operation in (routed.operation, routed.recorded):
        assert _by_pages(bench, Filter(boundary=bench.boundary, operation=operation), 2) == [made[6].key]
    assert not _by_pages(bench, Filter(boundary=bench.boundary, scope="another"), 2)


def _by_pages(bench: Bench, wanted: Filter, size: int) -> list[bytes]:
    """Every key that is wanted, each once, by pages of ``size``."""
    keys: list[bytes] = []
    cursor: str | None = None
    while True:
        page = bench.harness.do(ask(bench.harness.store.scan(wanted, cursor, size)))
        keys += [record.key for record in page.records]
        cursor = page.cursor
        if cursor is None:
            assert len(keys) == len(set(keys))
            return keys


@case
def tally_counts_by_standing(bench: Bench) -> None:
    bench.boundary = "tally " + bench.key.hex()[:16]
    made = [bench.sibling(number) for number in range(4)]
    ownerships = [one.win() for one in made]
    assert made[0].settle(ownerships[0], Transition.COMPLETE, RESULT)
    assert made[1].settle(ownerships[1], Transition.COMPLETE, RESULT)
    made[1].elapse(10)
    assert made[2].settle(ownerships[2], Transition.DOUBT)
    counted = [one for one in bench.harness.do(tally(bench.harness.store)) if one.boundary == bench.boundary]
    assert {one.state: one.records for one in counted} == {
        EffectiveState.COMPLETED: 2,
        EffectiveState.RUNNING: 1,
        EffectiveState.UNKNOWN: 1,
    }
    (completed,) = [one for one in counted if one.state is EffectiveState.COMPLETED]
    assert completed.oldest == min(made[0].record().updated, made[1].record().updated)
    assert completed.now >= completed.oldest


@case
def what_was_archived_is_removed_unless_its_key_was_used_again(bench: Bench) -> None:
    store = bench.harness.store
    if not store.forgotten(1):
        return  # forgotten records expire natively
    again = bench.sibling(1)
    for one in (bench, again):
        one.finish(Transition.COMPLETE, RESULT)
        one.elapse(MEMORY + 1)
    archived = [one for one in bench.harness.do(forgotten(store, 10_000)) if one.key in (bench.key, again.key)]
    assert {one.key: one.result for one in archived} == {bench.key: RESULT, again.key: RESULT}
    newcomer = again.win()
    assert bench.harness.do(remove(store, archived)) == 1
    assert bench.read() is None
    assert again.settle(newcomer, Transition.COMPLETE, RESULT)
    assert bench.harness.do(remove(store, archived)) == 0
