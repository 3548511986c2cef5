"""Each program with every reply at every ask, the store's failure among them, under both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from retrysafe.backends.driver import arun, run
from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.claims.heartbeat import LeaseTerm, _Schedule, clock
from retrysafe.claims.observers import AttemptEvents, Observers
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.migrating import Migration, migrate, schema_version
from retrysafe.protocol.outcomes import Ending, ModeKind, Settlement, Transaction, settlement_of
from retrysafe.protocol.procedures import (
    ROUNDS,
    NotWon,
    Won,
    claim,
    conclude,
    find_frozen_snapshot,
    open_claim,
    read,
    renew,
    renewals,
    resolve,
    settle,
    sweep,
)
from retrysafe.protocol.records import ClaimRequest, Clocks, Effects, State
from retrysafe.protocol.requests import Ask, Query, Rows
from retrysafe.protocol.transitions import RULES, Transition
from tests.programs.script import (
    BROKEN,
    CLOCKS,
    DOWN,
    HELD,
    NOW,
    OTHER_RESULT,
    RESULT,
    STORE,
    UNSENT,
    Asked,
    Path,
    Replies,
    Script,
    StartProgram,
    every_path,
    record,
    want,
)
from tests.tables import each_row

MINE = record(attempt="me")
MINE_LAPSED = record(attempt="me", lease_until=NOW)
LAPSED = record(lease_until=NOW)
IN_DOUBT = record(effects="external", lease_until=NOW)
IN_ITS_WAY = (
    record(),
    record(State.COMPLETED),
    record(State.FAILED),
    record(State.UNKNOWN),
    record(State.RELEASED, fingerprint=b"another"),
    LAPSED,
    IN_DOUBT,
    record(State.RELEASED),
    record(State.COMPLETED, expires=NOW),
    record(State.COMPLETED, expires=NOW, tombstone_until=NOW),
)
FAILURES = (DOWN, UNSENT, BROKEN)
SEEN = record(State.UNKNOWN)
LOCK = Query("LOCK", {})
MIGRATIONS = [Migration(1, "one", ("A", "B")), Migration(2, "two", ("C",))]
EVENTS = (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE)


def replies(asked: Asked | Query, depth: int) -> Sequence[Any]:
    """Everything that may be told; deep in a program one of each sort is enough."""
    if isinstance(asked, Query):
        return (Rows([], 0), *FAILURES)
    failures = FAILURES if depth < 3 else ()
    match asked.kind:
        case "claim":
            found = IN_ITS_WAY if depth < 3 else (record(), LAPSED, IN_DOUBT)
            return (None, MINE, MINE_LAPSED, *found, *failures)
        case "take":
            return (None, record(attempt="me", token=8), *failures)
        case "settle" | "resolve":
            return (True, False, *failures)
        case "read":
            return (None, *(_settled(state, attempt) for state in State for attempt in ("me", "other")), *failures)
        case "renew":
            return (set(), {b"key"}, *failures)
        case "sweep":
            return (0, 3, *failures)
        case "isolation":
            return ("read committed", "repeatable read", "serializable", *failures)
        case "has schema" | "version":
            return (None, 0, 1, 2, *failures)
    return (None, *failures)


def _settled(state: State, attempt: str) -> Any:
    return record(state, attempt)._replace(result=RESULT)


PROGRAMS: dict[str, StartProgram] = {
    **{f"claim, {effects}": (lambda effects=effects: claim(STORE, want(effects))) for effects in ("keyed", "external")},  # type: ignore[misc]
    "claim, transactional": lambda: claim(STORE, want("transactional")),
    **{f"{event}": (lambda event=event: settle(STORE, HELD, event, RESULT)) for event in EVENTS},  # type: ignore[misc]
    "complete in a transaction": lambda: settle(STORE, HELD._replace(transactional=True), Transition.COMPLETE, RESULT),
    "resolve": lambda: resolve(STORE, SEEN, Transition.RESOLVE_COMPLETED, RESULT, CLOCKS),
    "read": lambda: read(STORE, b"key"),
    "renew": lambda: renew(STORE, [HELD, HELD._replace(key=b"second")]),
    "sweep": lambda: sweep(STORE, 10),
    "open a claim": lambda: open_claim(STORE, want("transactional")),
    "conclude with commit": lambda: _conclude(Settlement(Transition.COMPLETE)),
    "conclude with the savepoint": lambda: _conclude(Settlement(Transition.FAIL, Transaction.SAVEPOINT)),
    "conclude with rollback": lambda: _conclude(Settlement(None, Transaction.ROLLBACK)),
    "frozen snapshot": lambda: find_frozen_snapshot(STORE),
    "schema version": lambda: schema_version(STORE),
    "migrate": lambda: migrate(STORE, MIGRATIONS, LOCK),
}


def _conclude(word: Settlement) -> Any:
    return conclude(STORE, HELD._replace(transactional=True), word, RESULT)


def paths(name: str, replies: Replies = replies) -> list[Path]:
    """All paths of a program; fewer than two would mean that nothing was tried. The errors are those of the store."""
    found = list(every_path(PROGRAMS[name], replies))
    assert len(found) > 2
    assert [path.error for path in found if path.error not in (None, *FAILURES)] == []
    return found


# ---------------------------------------------------------------- all programs


@each_row("name", PROGRAMS)
def test_both_drivers_ask_and_end_alike_on_every_path(name: str) -> None:
    async def drive_all() -> None:
        for path in paths(name):
            sync, later = Script(path.told), Script(path.told)
            first = _outcome(lambda: run(PROGRAMS[name](), sync))  # noqa: B023 - called at once
            try:
                second: Any = await arun(PROGRAMS[name](), later.later)
            except Exception as error:  # noqa: BLE001 - compared below
                second = error
            assert first == second == (path.error or path.outcome)
            assert sync.asked == later.asked == list(path.asked)

    asyncio.run(drive_all())


def _outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - an outcome
        return error


@each_row("name", PROGRAMS)
def test_a_failure_at_an_ask_that_is_not_put_again_reaches_the_caller(name: str) -> None:
    """A defect and a request that was never sent end the program at once, whatever the ask."""
    failed = [path for path in paths(name) if any(reply in (UNSENT, BROKEN) for reply in path.told)]
    assert failed
    for path in failed:
        if path.told[-1] in (UNSENT, BROKEN):
            assert path.error is path.told[-1]
        else:
            pytest.fail(f"went on after {path.told}")


@each_row("name", PROGRAMS)
def test_the_store_being_down_is_never_taken_for_an_answer(name: str) -> None:
    """After a failure either the same request is put once more, or the caller is told."""
    asked_again = 0
    for path in paths(name):
        for number, reply in enumerate(path.told):
            if reply is not DOWN:
                continue
            if number + 1 < len(path.told):
                assert path.asked[number + 1] == path.asked[number]
                assert number == 0 or path.told[number - 1] is not DOWN
                asked_again += 1
            else:
                assert path.error is DOWN
    assert bool(asked_again) == (name in ASKS_AGAIN)


ASKS_AGAIN = {"claim, keyed", "claim, external", "complete", "fail", "doubt", "release", "read", "resolve"}


@each_row("name", PROGRAMS)
@each_row("stop", [KeyboardInterrupt(), asyncio.CancelledError()], ids=["interrupt", "cancellation"])
def test_other_exceptions_close_the_program_and_go_on(name: str, stop: BaseException) -> None:
    steps = PROGRAMS[name]()
    with pytest.raises(type(stop)):
        run(steps, Script([stop]))
    assert steps.gi_frame is None  # type: ignore[attr-defined]
    steps = PROGRAMS[name]()

    async def drive() -> None:
        with pytest.raises(type(stop)):
            await arun(steps, Script([stop]).later)

    asyncio.run(drive())
    assert steps.gi_frame is None  # type: ignore[attr-defined]


def test_an_answer_that_cannot_be_parsed_is_thrown_into_the_program() -> None:
    """Both drivers parse, and hand the program what parsing raised."""

    async def zero(request: str) -> int:
        return 0

    assert run(_survives(), lambda request: 0) == "told"
    assert asyncio.run(arun(_survives(), zero)) == "told"


def test_a_program_is_sent_the_parsed_answer() -> None:
    async def answer(request: str) -> str:
        return request * 2

    def program() -> Any:
        return (yield Ask("ab", len))

    assert run(program(), lambda request: request * 2) == asyncio.run(arun(program(), answer)) == 4


def _survives() -> Any:
    try:
        yield Ask("request", lambda answer: 1 // answer)
    except ZeroDivisionError:
        return "told"


# ---------------------------------------------------------------- claim


@each_row("effects", ["keyed", "external", "transactional"])
def test_a_claim_is_won_exactly_by_taking_or_recognising_it(effects: Effects) -> None:
    won = 0
    for path in paths(f"claim, {effects}"):
        last, reply = path.asked[-1], path.told[-1]
        if isinstance(path.outcome, Won):
            won += 1
            assert reply.attempt == "me"
            assert path.outcome.record is reply
            assert path.outcome.ownership == HELD._replace(token=reply.token, transactional=effects == "transactional")
            if last.kind == "take":
                assert path.outcome.seen is last.arguments[1]
        elif path.error is None:
            assert isinstance(path.outcome, NotWon)
            assert reply is None or isinstance(reply, bool) or reply.attempt == "other"
    assert won > 2


@each_row("effects", ["keyed", "external", "transactional"])
def test_every_refusal_is_what_the_record_says(effects: Effects) -> None:
    refusals = set()
    for path in paths(f"claim, {effects}"):
        if isinstance(path.outcome, NotWon) and path.outcome.record is not None:
            assert path.outcome.decision is decide(path.outcome.record, want(effects))
            assert path.outcome.record is path.told[-1]
            refusals.add(path.outcome.decision)
    assert refusals == {
        Decision.BUSY,
        Decision.REPLAY,
        Decision.REPLAY_FAILURE,
        Decision.DOUBT,
        Decision.REUSED,
    }


def test_a_claim_takes_only_what_may_be_taken_and_suspects_only_doubt() -> None:
    for path in paths("claim, keyed"):
        for number, asked in enumerate(path.asked):
            if asked.kind == "take":
                assert decide(asked.arguments[1], want()) is Decision.TAKE
                assert asked.arguments[1] in path.told[:number]
            if asked.kind == "resolve":
                assert decide(asked.arguments[0], want()) is Decision.SUSPECT
                assert asked.arguments[1] is Transition.SUSPECT


def test_a_lost_reply_to_a_claim_is_read_back_as_ones_own() -> None:
    outcome = run(claim(STORE, want()), Script([DOWN, MINE]))
    assert isinstance(outcome, Won)
    assert outcome.ownership.token == MINE.token


def test_a_lost_reply_to_a_takeover_is_read_back_as_ones_own() -> None:
    """The second take finds its own first one, which looks like a lost race until the record is read."""
    script = Script([LAPSED, DOWN, None, MINE])
    outcome = run(claim(STORE, want()), script)
    assert isinstance(outcome, Won)
    assert outcome.seen is LAPSED
    assert [asked.kind for asked in script.asked] == ["claim", "take", "take", "claim"]


def test_a_lost_race_for_a_takeover_ends_with_the_winners_result() -> None:
    """DBOS #812: losing a race is a replay, not an error."""
    done = record(State.COMPLETED)
    assert run(claim(STORE, want()), Script([LAPSED, None, done])) == NotWon(Decision.REPLAY, done)


def test_the_winner_that_rolled_back_leaves_a_key_for_the_loser() -> None:
    """Oban #1093: a loser that sees the winner release does not call it a conflict."""
    released = record(State.RELEASED, token=9)
    outcome = run(claim(STORE, want()), Script([record(State.RELEASED), None, released, MINE]))
    assert isinstance(outcome, Won)
    assert outcome.seen is released


def test_a_claim_that_loses_every_race_is_busy_in_the_end() -> None:
    script = Script([LAPSED, None] * ROUNDS)
    assert run(claim(STORE, want()), script) == NotWon(Decision.BUSY, None)
    assert len(script.asked) == 2 * ROUNDS


def test_a_dead_external_attempt_is_marked_unknown_and_reported() -> None:
    unknown = record(State.UNKNOWN)
    script = Script([IN_DOUBT, True, unknown])
    assert run(claim(STORE, want("external")), script) == NotWon(Decision.DOUBT, unknown)


# ---------------------------------------------------------------- settle, resolve, renew, sweep


@each_row("event", EVENTS)
def test_settled_means_accepted_or_found_there_under_the_own_attempt_and_token(event: Transition) -> None:
    accepted = 0
    for path in paths(str(event)):
        if path.error is not None:
            continue
        found = path.told[-1]
        assert found is not False, "nobody has looked whether it was settled before"
        if found is True:
            assert path.outcome is True
        else:
            mine = found is not None and (found.attempt, found.token) == ("me", 7)
            assert path.outcome is (mine and found.state is RULES[event].target)
        accepted += path.outcome
    assert accepted


@each_row("event", EVENTS)
def test_a_record_with_another_token_was_not_settled_by_this_attempt(event: Transition) -> None:
    """The same attempt id with another token: another life of the key, after a late duplicate of the claim."""
    target = RULES[event].target
    assert target is not None
    another = record(target, "me", token=8)
    assert run(settle(STORE, HELD, event, RESULT), Script([False, another])) is False


def test_a_result_that_a_person_stored_is_not_taken_for_the_own_one() -> None:
    settled = record(State.COMPLETED, "me")._replace(result=OTHER_RESULT)
    assert run(settle(STORE, HELD, Transition.COMPLETE, RESULT), Script([False, settled])) is False


def test_only_unknown_records_are_resolved() -> None:
    for state in State:
        seen = record(state)
        if state is State.UNKNOWN:
            assert run(resolve(STORE, seen, Transition.RESOLVE_FAILED, RESULT, CLOCKS), Script([True])) is True
        else:
            assert run(resolve(STORE, seen, Transition.RESOLVE_FAILED, RESULT, CLOCKS), Script([])) is False


def test_a_lost_reply_to_a_resolution_is_read_back() -> None:
    resolved = SEEN._replace(state=State.COMPLETED, result=RESULT, version=SEEN.version + 1)

    def answer(*told: Any) -> Any:
        return run(resolve(STORE, SEEN, Transition.RESOLVE_COMPLETED, RESULT, CLOCKS), Script([*told]))

    assert answer(DOWN, False, resolved) is True
    assert answer(DOWN, True) is True, "the request was lost, not its reply"
    assert answer(DOWN, False, resolved._replace(result=OTHER_RESULT)) is False
    assert answer(DOWN, False, resolved._replace(version=SEEN.version + 2)) is False
    assert answer(False) is False, "somebody else was quicker, even with the same words"


def test_a_lease_that_cannot_be_renewed_costs_the_others_nothing() -> None:
    """One dead shard of a cluster: the leases on the others are asked for all the same."""
    beats = _Schedule()
    minute = Clocks(lease=60_000_000, window=60_000_000, memory=60_000_000)
    claims = [HELD._replace(key=key, clocks=minute) for key in (b"key", b"second", b"third")]
    told: dict[bytes, list[str]] = {held.key: [] for held in claims}
    now = clock()
    for held in claims:
        observers = Observers([lambda event, held=held: told[held.key].append(event.name)])
        lease = LeaseTerm(held, now, AttemptEvents(observers, want()._replace(key=held.key), True))
        beats.new[lease] = lease
    beats.looks_at = now
    beats.look(now)
    beats.record_answers(claims, {claims[2]}, DOWN, now)
    assert [name for name in told[b"third"] if name != "store_request"] == []
    assert {"renewal_failed"} <= set(told[b"key"]) & set(told[b"second"])
    assert "lease_lost" not in told[b"key"] + told[b"second"], "it may not have been asked for: it is tried again"
    beats.record_answers(claims, {claims[2]}, None, now)
    assert "lease_lost" in told[b"key"]
    assert "lease_lost" in told[b"second"]


def test_renewals_in_several_requests_are_added_up() -> None:
    held = [HELD, HELD._replace(key=b"second")]
    assert run(renew(STORE, held), Script([{b"key"}, {b"second"}])) == set(held)
    assert run(renew(STORE, held), Script([set(), {b"second"}])) == {held[1]}


def test_sweeps_in_several_requests_are_added_up() -> None:
    assert run(sweep(STORE, 10), Script([3, 4])) == 7


# ---------------------------------------------------------------- transactions and migrations


def test_a_claim_in_its_own_transaction_is_rolled_back_unless_it_is_won() -> None:
    for path in paths("open a claim"):
        if path.error is None:
            won = isinstance(path.outcome, Won)
            assert path.kinds[0] == "begin"
            assert path.kinds[-1] == ("savepoint" if won else "rollback")


def test_in_a_transaction_nothing_is_put_twice() -> None:
    for name in ("claim, transactional", "complete in a transaction", "open a claim", "conclude with commit"):
        for path in paths(name):
            assert DOWN not in path.told[:-1]


@each_row("ending", Ending)
def test_every_ending_of_an_own_transaction_commits_exactly_what_it_recorded(ending: Ending) -> None:
    word = settlement_of(ending, ModeKind.OWN)
    for path in every_path(lambda: _conclude(word), replies):
        if path.error is not None:
            continue
        committed = path.kinds[-1] == "commit"
        if word.transaction is Transaction.ROLLBACK:
            assert path.kinds == ["rollback"]
            continue
        assert (path.kinds[0] == "rollback to savepoint") == (word.transaction is Transaction.SAVEPOINT)
        assert committed == (path.outcome or word.transaction is Transaction.EITHER)
        assert path.kinds[-1] in ("commit", "rollback")


def test_migrations_run_in_one_transaction_and_only_what_is_missing() -> None:
    script = Script([None, Rows([(None,)], 1), 0, 1, None, None, None])
    assert run(migrate(STORE, MIGRATIONS, LOCK), script) == MIGRATIONS[1:]
    asked: list[Any] = list(script.asked)
    statements = [request.sql for request in asked if isinstance(request, Query)]
    assert statements[:2] == ["LOCK", "C"]
    assert script.asked[0].kind == "begin"
    assert script.asked[-1].kind == "commit"


def test_a_missing_schema_is_version_zero() -> None:
    assert run(schema_version(STORE), Script([None])) == 0
    assert run(schema_version(STORE), Script([0, None])) == 0
    assert run(schema_version(STORE), Script([0, 2])) == 2


def test_a_snapshot_is_frozen_by_the_two_levels_that_hide_later_commits() -> None:
    for path in paths("frozen snapshot"):
        if path.error is None:
            frozen = path.told[-1] if path.told[-1] != "read committed" else None
            assert path.outcome == frozen


def test_a_process_without_the_lock_does_not_migrate() -> None:
    """GET_LOCK answers 0 when somebody else has kept it too long."""
    with pytest.raises(StoreUnavailable, match="Another process is migrating"):
        run(migrate(STORE, MIGRATIONS, LOCK), Script([None, Rows([(0,)], 1)]))


def test_of_two_claims_to_one_key_that_are_renewed_together_the_one_that_was_taken_over_is_lost() -> None:
    """As in one process whose first attempt was frozen, or cut off, beyond its lease."""
    store, clock = MemoryStore(), [1_000_000]
    client = MemoryClient(lambda: clock[0])
    clocks = Clocks(lease=10, window=1000, memory=1000)
    held = []
    for attempt in ("frozen", "successor"):
        outcome = run(claim(store, ClaimRequest(b"key", "b", "", "o", b"p", attempt, "keyed", clocks)), client)
        assert isinstance(outcome, Won)
        held.append(outcome.ownership)
        clock[0] += 10 if attempt == "frozen" else 0
    for order in (held, held[::-1]):
        kept = [run(renewal, client) for renewal in renewals(store, order)]
        assert set().union(*kept) == {held[1]}
