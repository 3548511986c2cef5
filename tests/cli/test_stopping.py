"""Signals that end a command: the first, those after it, and an orderly end that does not come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from retrysafe.cli import stopping
from retrysafe.cli.stopping import SAME, end_by_signals

PROGRAM = """
import os, signal, threading
from retrysafe.cli.stopping import end_by_signals
with end_by_signals(lambda: None, lambda: "the broker is silent.", within=0.1):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.fault(86)
def test_an_end_that_takes_too_long_is_cut_off() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "has not ended within 0.1 s (--stop-within)" in done.stderr


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_soon_after_the_first_is_the_same_one(second: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell and a supervisor both pass on a Ctrl-C; a person who wants the end at once takes longer."""
    now, heard, ended = 100.0, list[str](), list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(stopping, "end_process", lambda number, _: ended.append(number))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with end_by_signals(lambda: heard.append("stop"), str):
        signal.raise_signal(signal.SIGINT)
        for _ in range(3):
            signal.raise_signal(second)
        now += SAME
        signal.raise_signal(second)
        assert (heard, ended) == (["stop"], [])
        now += 0.001
        signal.raise_signal(second)
        assert ended == [second]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_handler_that_a_library_sets_meanwhile_is_its_own() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with end_by_signals(lambda: None, str):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_child_is_ended_by_a_signal_that_its_parent_heeds() -> None:
    heard = list[str]()
    with end_by_signals(lambda: heard.append("stop"), str):
        if (child := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert heard == []
