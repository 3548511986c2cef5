"""Signals that stop a loop: the first, and those that come after it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import ExitStack

import pytest

from retrysafe import ConfigurationError
from retrysafe.stop_signal import SAME, Stops, StopSignal, stopped_by_signals
from tests.loops import InterruptedLoop


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The reading of the clock, as its one element."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_soon_after_the_first_is_the_same_one(clock: list[float], second: signal.Signals) -> None:
    """A shell and a supervisor both pass on a Ctrl-C; a person who wants the end at once takes longer."""
    heard, again = list[str](), list[int]()
    with stopped_by_signals(lambda: heard.append("stop"), again.append):
        signal.raise_signal(signal.SIGINT)
        for _ in range(3):
            signal.raise_signal(second)
        clock[0] += SAME
        signal.raise_signal(second)
        assert (bool(heard), again) == (True, [])
        clock[0] += 0.001
        signal.raise_signal(second)
        assert again == [second]


def test_without_an_end_at_once_every_signal_stops(clock: list[float]) -> None:
    heard = list[str]()
    with stopped_by_signals(lambda: heard.append("stop")):
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 2 * SAME
        signal.raise_signal(signal.SIGTERM)
    assert heard == ["stop", "stop"]


@pytest.mark.parametrize("first_to_end", ["one", "other"])
def test_loops_that_overlap_are_all_stopped(clock: list[float], first_to_end: str) -> None:
    """A relay and a consumer in one process: the one that was entered first had the signal to itself."""
    heard = list[str]()
    before = signal.getsignal(signal.SIGTERM)
    with ExitStack() as left, ExitStack() as ending:
        for name in ("one", "other"):
            (ending if name == first_to_end else left).enter_context(
                stopped_by_signals(lambda name=name: heard.append(name))
            )
        signal.raise_signal(signal.SIGTERM)
        assert sorted(heard) == ["one", "other"]
        ending.close()
        signal.raise_signal(signal.SIGTERM)
        assert heard[2:] == [{"one": "other", "other": "one"}[first_to_end]]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_that_the_program_sets_meanwhile_is_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with stopped_by_signals(lambda: None):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_everybody_who_waits_is_woken() -> None:
    bell = StopSignal()
    waiting = [asyncio.create_task(bell.await_for(seconds)) for seconds in (3600, 1800)]
    await asyncio.sleep(0)
    bell.ring()
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)


async def test_ringing_for_a_loop_that_is_closed_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    bell = StopSignal(loop)
    bell.ring()
    assert bell.rung


def test_a_handler_of_ours_that_is_given_back_to_us_too_late_does_what_was_before() -> None:
    """A server takes the signal meanwhile, and gives it back when it ends: nobody of ours hears it any more."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with stopped_by_signals(lambda: None):
            ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, ours)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_child_is_ended_by_a_signal_that_its_parent_heeds() -> None:
    heard = list[str]()
    with stopped_by_signals(lambda: heard.append("stop")):
        if (child := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert heard == []


def test_all_threads_that_wait_are_woken() -> None:
    bell = StopSignal()
    waiting = [threading.Thread(target=bell.wait, args=(3600,), daemon=True) for _ in range(3)]
    for one in waiting:
        one.start()
    bell.ring()
    for one in waiting:
        one.join(30)
        assert not one.is_alive()


def test_a_stop_is_for_the_runs_that_there_are() -> None:
    stops = Stops()
    with stops.run() as one, stops.run() as other:
        stops.stop()
        assert (one.rung, other.rung) == (True, True)
    stops.stop()  # as `finally: relay.stop()` does, or a second signal
    with stops.run() as later:
        assert not later.rung


def test_a_stop_before_the_first_run_is_for_that_one() -> None:
    """The thread that runs it may not have come so far."""
    stops = Stops()
    stops.stop()
    with stops.run() as first:
        assert first.rung
    with stops.run() as second:
        assert not second.rung


@pytest.mark.slow
def test_an_exclusive_run_refuses_a_second_one_but_not_its_parents() -> None:
    stops = Stops("It runs already.")
    with stops.run():
        with pytest.raises(ConfigurationError, match="It runs already"), stops.run():
            pytest.fail("two at once")
        if (child := os.fork()) == 0:
            with stops.run():
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_stop_after_a_run_that_failed_is_for_the_next_try() -> None:
    stops = Stops()
    with pytest.raises(ZeroDivisionError), stops.run():
        raise ZeroDivisionError
    stops.stop()
    with stops.run() as again:
        assert again.rung
    stops.stop()
    with stops.run() as later:
        assert not later.rung


def test_a_run_whose_event_loop_was_closed_is_over() -> None:
    """As of a fixture that entered a relay and never left it."""
    stops, loop = Stops("It runs already."), asyncio.new_event_loop()
    stops.begin(loop)
    with pytest.raises(ConfigurationError):
        stops.begin()
    loop.close()
    with stops.run():
        pass


def test_a_run_whose_event_loop_was_closed_over_it_is_over_and_hears_no_signal() -> None:
    """As by a KeyboardInterrupt out of `run_until_complete`: the generators of the run still hang about."""
    stops, heard = Stops("It runs already."), list[str]()
    before, begun = signal.getsignal(signal.SIGINT), asyncio.Event()

    async def run() -> None:
        with stops.run(), stopped_by_signals(lambda: heard.append("stop")):
            begun.set()
            await asyncio.Event().wait()

    with InterruptedLoop() as loop:
        loop.begin(run())
        loop.run(begun.wait())
        loop.close()
        try:
            with stops.run():
                pass
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert heard == []
            assert signal.getsignal(signal.SIGINT) is before
        finally:
            signal.signal(signal.SIGINT, before)


def test_a_stop_after_an_event_loop_was_closed_over_a_run_is_for_the_next() -> None:
    """It was for the run that had no loop any more, and the next one went on."""
    stops, loop = Stops(), asyncio.new_event_loop()
    stops.begin(loop)
    loop.close()
    stops.stop()
    with stops.run() as again:
        assert again.rung
    stops.stop()
    with stops.run() as later:
        assert not later.rung


def test_a_run_that_outlives_the_event_loop_that_it_waited_on_has_not_ended_by_an_error() -> None:
    """As that of a plain program, whose loop is closed before the run has come to its end."""
    stops = Stops()
    with stops.run() as one:
        asyncio.run(one.await_for(0))
        stops.stop()
        assert one.rung
    with stops.run() as later:
        assert not later.rung


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["runs", "has run", "was told early"])
def test_a_child_has_runs_and_stops_of_its_own(parent: str) -> None:
    """A stop in it is for what begins in it, and what its parent was told is the parent's."""
    stops = Stops()
    with ExitStack() as ending:
        running = ending.enter_context(stops.run())
        if parent == "has run":
            ending.close()
        elif parent == "was told early":
            stops = Stops()
            stops.stop()
        if (child := os.fork()) == 0:
            if parent != "was told early":
                stops.stop()
            with stops.run() as own:
                os._exit(own.rung)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (parent != "was told early")
        assert not running.rung
