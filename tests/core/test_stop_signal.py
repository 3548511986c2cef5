"""Signals that stop a loop: the first, and those that come after it."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack

import pytest

from retrysafe.stop_signal import SAME, StopSignal, stopped_by_signals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock says, as its one element."""
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
