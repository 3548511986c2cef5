"""Stops of loops in the background, from other threads and tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack

import pytest

from retrysafe import ConfigurationError
from retrysafe.stop_signal import Stops, StopSignal


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
    stops.stop()
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


def test_a_run_whose_event_loop_was_closed_is_over() -> None:
    """As of a fixture that entered a relay and never left it."""
    stops, loop = Stops("It runs already."), asyncio.new_event_loop()
    stops.begin(loop)
    with pytest.raises(ConfigurationError):
        stops.begin()
    loop.close()
    with stops.run():
        pass


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
