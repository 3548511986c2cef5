"""Signals that stop a loop: the first, and those that come after it."""

from __future__ import annotations

import signal
import time

import pytest

from retrysafe.stop_signal import SAME, stopped_by_signals


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
