"""Back-off, patience, heartbeats and durations: pure schedules without a clock of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.backoff import POLLING, RESTART, Backoff, PollSchedule
from retrysafe.protocol.durations import micros, seconds
from retrysafe.protocol.records import Clocks, Ownership
from retrysafe.protocol.schedules import PER_LEASE, RECOVERY, RETRIES_PER_LEASE, Beats, Sweeps
from tests.tables import each_row

CHANCE = st.floats(0, 1, exclude_max=True)


# ---------------------------------------------------------------- back-off


@given(attempt=st.integers(0, 10_000), chance=CHANCE)
def test_a_delay_is_below_a_bound_that_doubles_up_to_the_cap(attempt: int, chance: float) -> None:
    backoff = Backoff(base=0.5, cap=8.0)
    bound = min(8.0, 0.5 * 2 ** min(attempt, 20))
    assert 0 <= backoff.delay(attempt, chance) <= bound
    assert backoff.delay(attempt, 0.5) == bound / 2


def test_the_jitter_is_full() -> None:
    """The delay may be anything from zero: half a bound plus jitter keeps competitors in step."""
    assert [POLLING.delay(3, chance) for chance in (0.0, 0.5)] == [0.0, 0.04]
    assert RESTART.delay(0, 0.5) == 0.01


@given(
    left=st.floats(0.001, 100),
    polls=st.integers(0, 100),
    lease=st.none() | st.floats(-10, 10),
    chance=CHANCE,
)
def test_a_duplicate_never_sleeps_past_its_deadline_nor_far_past_the_lease(
    left: float, polls: int, lease: float | None, chance: float
) -> None:
    pause = PollSchedule(deadline=50 + left, polls=polls).next_pause(50, lease, chance)
    assert pause is not None
    assert 0 < pause <= left + 1e-9
    if lease is not None and lease > 0:
        assert pause <= lease + 0.003


@pytest.mark.fault(77)
@given(over=st.floats(0, 10), chance=CHANCE)
def test_patience_ends_at_its_deadline(over: float, chance: float) -> None:
    assert PollSchedule(deadline=50).next_pause(50 + over, 1.0, chance) is None


def test_patience_ends_although_every_chance_is_zero() -> None:
    """A pause of zero would be a busy loop."""
    patience, now, looks = PollSchedule(deadline=1.0), 0.0, 0
    while (pause := patience.next_pause(now, None, 0.0)) is not None:
        patience, now, looks = patience.next_poll(), now + pause, looks + 1
        assert looks < 1000
    assert patience.polls == looks > 10


# ---------------------------------------------------------------- heartbeats


def held(name: str, lease: float = 30.0) -> Ownership:
    return Ownership(name.encode(), name, 1, Clocks(round(lease * 1e6), 10**9, 10**9), False)


def test_a_lease_is_renewed_when_a_third_of_it_has_passed() -> None:
    beats = Beats()
    assert beats.next_due() is None
    assert beats.add(held("a"), 100.0) == 110.0
    assert beats.next_due() == 110.0
    assert beats.due(109.9) == []
    assert beats.due(110.0) == [held("a")]
    assert beats.next_due() == 120.0


def test_a_renewal_that_failed_is_tried_again_sooner() -> None:
    beats = Beats()
    beats.add(held("a"), 0.0)
    assert beats.due(10.0) == [held("a")]
    assert beats.retry(held("a"), 10.0) == 10.0 + 30.0 / RETRIES_PER_LEASE
    assert beats.due(12.5) == [held("a")]
    assert beats.next_due() == 12.5 + 30.0 / PER_LEASE


def test_dropped_leases_are_not_renewed() -> None:
    beats = Beats()
    beats.add(held("a"), 0.0)
    beats.add(held("b"), 0.0)
    beats.drop(held("a"))
    beats.drop(held("never added", lease=5.0))
    assert beats.due(100.0) == [held("b")]
    beats.retry(held("b"), 100.0)
    beats.drop(held("b"))
    assert beats.next_due() is None


def test_adding_again_moves_the_renewal() -> None:
    beats = Beats()
    beats.add(held("a"), 0.0)
    beats.add(held("a"), 5.0)
    assert beats.due(14.9) == []
    assert beats.due(15.0) == [held("a")]


LEASES = st.sampled_from([1.0, 3.0, 30.0])


@given(st.lists(st.tuples(st.sampled_from("abcdef"), LEASES, st.sampled_from(["add", "drop", "retry"])), max_size=30))
def test_no_lease_is_ever_overdue_by_more_than_its_pause(steps: list[tuple[str, float, str]]) -> None:
    """Against a model: a dictionary of when each is due."""
    beats, model = Beats(), dict[Ownership, float]()
    for now, (name, lease, step) in enumerate(steps):
        one = held(name, lease)
        if step == "add":
            model[one] = beats.add(one, float(now))
        elif step == "retry":
            model[one] = beats.retry(one, float(now))
        else:
            beats.drop(one)
            model.pop(one, None)
        assert beats.next_due() == min(model.values(), default=None)
        due = beats.due(float(now))
        assert sorted(due) == sorted(key for key, when in model.items() if when <= now)
        model.update({key: now + key.clocks.lease / 1e6 / PER_LEASE for key in due})


# ---------------------------------------------------------------- durations


@each_row(
    ("given_as", "expected"),
    [
        (30, 30.0),
        (0.5, 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("48h", 172_800.0),
        ("7d", 604_800.0),
        ("250ms", 0.25),
        (" 1.5h ", 5400.0),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_durations_as_users_write_them(given_as: Any, expected: float) -> None:
    assert seconds(given_as, "lease") == expected
    assert micros(given_as, "lease") == round(expected * 1e6)


@each_row(
    "wrong",
    [
        *("", "30", "30 s", "5 minutes", "-5s", "1h30m", "s", "1e3s", "0s"),
        *(0, -1, float("nan"), float("inf"), 1e300, timedelta(0), timedelta(seconds=-1), True, None, [30]),
    ],
)
def test_other_durations_are_refused_and_the_argument_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="window="):
        seconds(wrong, "window")


def test_a_duration_beyond_all_measure_is_refused_in_the_same_way() -> None:
    with pytest.raises(ConfigurationError, match="window="):
        seconds(10**400, "window")


@given(st.floats(1e-9, 1e9))
def test_a_duration_is_at_least_one_microsecond(number: float) -> None:
    assert micros(number, "lease") >= 1


# ---------------------------------------------------------------- sweeps

SWEEPS = Sweeps(batch=100, pause=0.01, every=3600)


@given(took=st.floats(0, 100))
def test_a_sweeper_rests_at_least_as_long_as_it_worked(took: float) -> None:
    schedule, rest = SWEEPS._replace(failures=3).goes_on(took)
    assert rest == max(took, 0.01)
    assert schedule.failures == 0


@given(chance=CHANCE)
def test_sweepers_that_were_started_together_do_not_stay_together(chance: float) -> None:
    schedule, rest = SWEEPS._replace(failures=3).when_done(chance)
    assert 0.75 * 3600 <= rest <= 1.25 * 3600
    assert SWEEPS.when_done(0.0)[1] != SWEEPS.when_done(0.5)[1]
    assert schedule.failures == 0
    assert 0 <= SWEEPS.first(chance) <= 3600


@given(failures=st.integers(0, 1000), chance=CHANCE)
def test_a_sweeper_whose_store_fails_backs_off(failures: int, chance: float) -> None:
    schedule, rest = SWEEPS._replace(failures=failures).after_failure(chance)
    assert schedule.failures == failures + 1
    assert 0.01 <= rest <= RECOVERY.cap
    assert SWEEPS._replace(failures=3).after_failure(0.5)[1] == 2.0


def test_a_sweeper_sleeps_about_its_interval() -> None:
    sweeps = Sweeps(100, 1.0, 60.0)
    assert [sweeps.when_done(chance)[1] for chance in (0.0, 0.5)] == [45.0, 60.0]


def test_a_century_is_the_longest_and_a_microsecond_the_shortest() -> None:
    assert seconds("36500d", "window") == 36500 * 86400.0
    assert [micros(1e-6, "lease"), micros(1e-9, "lease")] == [1, 1]


def test_a_waiter_for_a_lease_that_ends_now_looks_at_its_own_pace() -> None:
    pauses = [PollSchedule(100.0, 5).next_pause(0.0, left, 0.9) for left in (0.0, None)]
    assert pauses[0] == pauses[1]


@each_row("left", [0.004, 0.02])
def test_a_waiter_for_a_lease_that_ends_soon_looks_just_after_its_end(left: float) -> None:
    assert PollSchedule(100.0, 20).next_pause(0.0, None, 0.99) > 2 * left  # type: ignore[operator]
    assert PollSchedule(100.0, 20).next_pause(0.0, left, 0.99) == left + 0.002
