"""The progress of long commands."""

from __future__ import annotations

import io
import sys
from threading import Event

import pytest

from retrysafe.cli import progress


class Terminal(io.StringIO):
    """Standard error that is a terminal, or is not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_a_terminal_shows_progress_until_the_command_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(is_terminal=True))
    monkeypatch.setattr(progress, "EVERY", 0.001)
    asked, counted = Event(), iter(range(1000))

    def tell() -> str:
        if (number := next(counted)) == 2:
            asked.set()
        return f"removed {number}"

    with progress.show_progress(tell):
        assert asked.wait(60)
    *shown, last = terminal.getvalue().split("\r")
    assert shown[:2] == ["\x1b[2Kremoved 0, 0 s", "\x1b[2Kremoved 1, 0 s"]
    assert last == "\x1b[2K"


def test_elsewhere_nothing_is_shown_and_nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", output := Terminal(is_terminal=False))
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.show_progress(lambda: pytest.fail("asked")):
        pass
    assert output.getvalue() == ""
