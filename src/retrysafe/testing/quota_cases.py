"""The conformance suite's cases of quotas: how many keys a scope may claim and keep."""

from __future__ import annotations

from itertools import pairwise

from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import ClaimResult, NotWon, Won, claim
from retrysafe.protocol.quotas import Quota
from retrysafe.protocol.records import QuotaRefusal
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.bench import LEASE, MEMORY, RESULT, WINDOW, Bench, case


def _counting(bench: Bench, count: int) -> list[Bench]:
    """Keys of a scope of this case's own; none where the store cannot count them."""
    bench.boundary = "quota " + bench.key.hex()[:16]
    return [bench.sibling(number) for number in range(count)] if bench.harness.store.capabilities.quotas else []


def _refusal(outcome: ClaimResult) -> QuotaRefusal:
    assert isinstance(outcome, NotWon), outcome
    assert outcome.decision is Decision.REFUSED
    assert outcome.record is None
    assert outcome.refusal is not None
    return outcome.refusal


@case
def new_key_over_the_rate_is_refused_and_not_written(bench: Bench) -> None:
    quota = Quota(rate="2/1h")
    for one in (made := _counting(bench, 3))[:2]:
        one.win(one.want(quota=quota))
    for one in made[2:]:
        limit, retry_after = _refusal(one.claim(one.want(quota=quota)))
        assert limit == "rate"
        assert 3590 < retry_after <= 3600
        assert one.read() is None


@case
def new_key_over_what_may_be_outstanding_is_refused_and_not_written(bench: Bench) -> None:
    quota = Quota(outstanding=2)
    made = _counting(bench, 3)
    for one in made[:2]:
        assert one.settle(one.win(one.want(quota=quota)), Transition.COMPLETE, RESULT)
    for one in made[2:]:
        limit, retry_after = _refusal(one.claim(one.want(quota=quota)))
        assert limit == "outstanding"
        assert MEMORY - 10 < retry_after <= MEMORY
        assert one.read() is None


@case
def quota_never_refuses_a_key_that_has_a_record(bench: Bench) -> None:
    quota = Quota(rate="4/1h", outstanding=4)
    made = _counting(bench, 6)
    if not made:
        return
    won = [one.win(one.want(quota=quota)) for one in made[:4]]
    for one, hold, event in zip(made, won, (Transition.COMPLETE, Transition.FAIL, Transition.RELEASE), strict=False):
        assert one.settle(hold, event, RESULT if event is not Transition.RELEASE else None)
    _refusal(made[4].claim(made[4].want(quota=quota)))
    met = [one.lose(one.want(quota=quota)).decision for one in (made[0], made[1], made[3])]
    assert met == [Decision.REPLAY, Decision.REPLAY_FAILURE, Decision.BUSY]
    assert made[0].lose(made[0].want(b"other", quota=quota)).decision is Decision.REUSED
    made[2].win(made[2].want(quota=quota))
    made[3].elapse(LEASE + 1)
    made[3].win(made[3].want(quota=quota))
    made[5].win()  # without a quota
    assert made[5].lose(made[5].want(quota=quota)).decision is Decision.BUSY


@case
def same_attempt_recognises_its_own_claim_when_it_filled_the_quota(bench: Bench) -> None:
    for one in _counting(bench, 1):
        want = one.want(quota=Quota(rate="1/1h", outstanding=1))
        assert one.win(want) == one.win(want)


@case
def quota_has_room_again_when_the_period_is_over(bench: Bench) -> None:
    quota = Quota(rate="1/1m")
    made = _counting(bench, 3)
    for one, other in pairwise(made):
        one.win(one.want(quota=quota))
        _refusal(other.claim(other.want(quota=quota)))
        one.elapse(61)


@case
def retries_of_a_key_do_not_count_as_new(bench: Bench) -> None:
    quota = Quota(rate="2/1m")
    made = _counting(bench, 3)
    if not made:
        return
    first, second, third = made
    assert first.settle(first.win(first.want(quota=quota)), Transition.COMPLETE, RESULT)
    first.elapse(40)
    for _ in range(3):
        assert first.lose(first.want(quota=quota)).decision is Decision.REPLAY
    second.win(second.want(quota=quota))
    _refusal(third.claim(third.want(quota=quota)))
    first.elapse(21)
    third.win(third.want(quota=quota))


@case
def quota_has_room_again_when_a_key_is_forgotten(bench: Bench) -> None:
    quota = Quota(outstanding=1)
    made = _counting(bench, 3)
    for one, other in pairwise(made):
        assert one.settle(one.win(one.want(quota=quota)), Transition.COMPLETE, RESULT)
        one.elapse(WINDOW + 1)
        _refusal(other.claim(other.want(quota=quota)))
        one.elapse(MEMORY - WINDOW)


@case
def quotas_of_two_scopes_do_not_meet(bench: Bench) -> None:
    quota = Quota(rate="1/1h", outstanding=1)
    for one in _counting(bench, 2):
        want = one.want(quota=quota)
        scope = one.key.hex()
        one.win(want._replace(scope=scope, quota=quota.allowance(one.boundary, scope)))


@case
def quota_is_filled_by_claims_at_once_and_then_full(bench: Bench) -> None:
    quota = Quota(rate="3/1h")
    made = _counting(bench, 9)
    if not made:
        return
    store = bench.harness.store
    outcomes = bench.harness.race([claim(store, one.want(quota=quota)) for one in made[:8]])
    won = [isinstance(outcome, Won) for outcome in outcomes]
    assert 3 <= sum(won) <= 8
    assert [one.read() is not None for one in made[:8]] == won
    _refusal(made[8].claim(made[8].want(quota=quota)))


@case
def keys_claimed_without_a_quota_are_not_refused(bench: Bench) -> None:
    made = _counting(bench, 2)
    for one in made[:1]:
        one.win(one.want(quota=Quota(rate="1/1h", outstanding=1)))
    for one in made[1:]:
        one.win()
