"""A server's clock, bounded by the times in its answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retrysafe.backends.service_clock import (
    DRIFT,
    RESOLUTION,
    Bounds,
    ServiceClock,
    Sightings,
    instant,
    narrow,
    sample,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND
Answers = list[tuple[int, int, int]]
ANSWERS: st.SearchStrategy[Answers] = st.lists(
    st.tuples(st.integers(0, 30 * SECOND), st.integers(0, 3 * SECOND), st.integers(0, 3 * SECOND)), min_size=1
)
"""For every answer: the pause before it, and how long request and reply took."""
OFFSET = st.integers(-100 * HOUR, 100 * HOUR)


def date_of(service: int) -> int:
    return service // RESOLUTION * RESOLUTION


def told(answers: Answers, offset: int) -> list[Bounds]:
    """Return the bounds after each answer of a service whose clock is ``offset`` ahead of ours."""
    known: Bounds | None = None
    local, every = 0, list[Bounds]()
    for pause, there, back in answers:
        sent = local + pause
        local = sent + there + back
        known = narrow(known, sample(sent, local, date_of(sent + there + offset)))
        every.append(known)
    return every


@given(ANSWERS, OFFSET, st.integers(0, 10 * HOUR))
def test_the_truth_is_always_within_the_bounds(answers: Answers, offset: int, later: int) -> None:
    for known in told(answers, offset):
        aged = known.age(known.at + later)
        assert aged.least <= offset <= aged.most


@given(ANSWERS, OFFSET)
def test_the_least_is_never_ahead_and_never_goes_back(answers: Answers, offset: int) -> None:
    before = -(10**30)
    for known in told(answers, offset):
        now = known.at + known.least
        assert before <= now <= known.at + offset
        before = now


@given(ANSWERS, OFFSET)
def test_one_answer_is_as_exact_as_its_round_trip_and_more_only_help(answers: Answers, offset: int) -> None:
    every = told(answers, offset)
    for known, (_, there, back) in zip(every, answers, strict=True):
        assert known.width <= RESOLUTION + there + back


def test_answers_around_a_tick_tell_the_time_exactly() -> None:
    known = narrow(sample(0, 10, 41 * SECOND), sample(20, 30, 42 * SECOND))
    assert known.width == 30
    assert known.least <= 42 * SECOND - 20 <= known.most


def test_a_clock_that_was_set_is_followed() -> None:
    known = narrow(sample(0, 10, 41 * SECOND), sample(20, 30, 20 * SECOND))
    assert known == sample(20, 30, 20 * SECOND)


def test_knowledge_is_worth_less_later() -> None:
    known = sample(0, 0, 0)
    assert known.age(HOUR).width == RESOLUTION + 2 * (HOUR // DRIFT)
    assert known.age(-HOUR) == known, "answers may be noted out of order"


class Machine:
    """A machine with a steady clock, and a wall clock that somebody sets."""

    def __init__(self, wall_ahead: int) -> None:
        self.steady = 5 * SECOND
        self.wall_ahead = wall_ahead
        self.clock = ServiceClock(lambda: self.steady, lambda: (self.steady + self.wall_ahead) * 1000)

    def answer(self, service: str) -> None:
        self.clock.note(self.steady - 1000, self.steady, service)


def test_the_wall_clock_does_not_matter_once_the_service_has_answered() -> None:
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    true = instant(date)
    assert true is not None
    for ahead in (-HOUR, 0, HOUR):
        machine = Machine(true - 5 * SECOND + ahead)
        assert not machine.clock.corrected
        assert machine.clock() == true + ahead
        machine.answer(date)
        assert machine.clock.corrected
        assert true - RESOLUTION <= machine.clock() <= true
        assert machine.clock.error <= RESOLUTION + 1000
        machine.wall_ahead += 7 * HOUR
        machine.steady += 10 * SECOND
        assert true + 9 * SECOND - HOUR // DRIFT <= machine.clock() <= true + 10 * SECOND


def test_an_answer_without_a_readable_date_tells_nothing() -> None:
    machine = Machine(0)
    machine.answer("yesterday, perhaps")
    machine.clock.note(0, 1, None)
    assert not machine.clock.corrected
    assert machine.clock.error == 0


def test_a_version_is_unchanged_since_it_was_first_seen() -> None:
    seen = Sightings(most=2)
    assert seen.unchanged_for(b"a", 1, 100) == 0
    assert seen.unchanged_for(b"a", 1, 140) == 40
    assert seen.unchanged_for(b"a", 2, 150) == 0
    assert seen.unchanged_for(b"b", 1, 160) == 0
    assert seen.unchanged_for(b"c", 1, 170) == 0, "two at most: the oldest is forgotten"
    assert seen.unchanged_for(b"a", 2, 180) == 0
    assert seen.unchanged_for(b"c", 1, 190) == 20


def test_two_answers_that_leave_one_moment_tell_it() -> None:
    assert narrow(Bounds(0, 10, 0), Bounds(10, 20, 0)) == Bounds(10, 10, 0)
