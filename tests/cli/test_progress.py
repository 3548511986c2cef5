"""The progress of long commands."""

from __future__ import annotations

import io
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from threading import Event

import pytest

from retrysafe.cli import batch, dead_letters, main, progress
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.tables import each_row


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


class Refusing:
    """A publisher whose broker wants none of the messages."""

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        return [PublishResult(PublishStatus.REJECTED, "no") for _ in envelopes]

    def close(self) -> None:
        """Close nothing."""


@each_row(
    ("arguments", "shown"),
    [
        ("outbox dead redrive --all --yes", ["redrive of 2 messages"]),
        ("outbox dead discard --all --yes", ["discard of 2 messages"]),
        ("batch runs", ["reading the loads"]),
        ("batch show r", ["reading the loads", "looking for the run"]),
    ],
)
def test_commands_that_may_take_long_show_it(
    arguments: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/shop.db"
    outbox = Outbox(store, source="/shop")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        outbox.add_many(connection, [Message("a", number) for number in range(2)])
    Relay(store, Refusing()).run_once()
    told: list[str] = []

    def show(tell: Callable[[], str]) -> AbstractContextManager[None]:
        told.append(tell())
        return nullcontext()

    for module in (batch, dead_letters):
        monkeypatch.setattr(module, "show_progress", show)
    main([*arguments.split(), "--store", store])
    assert told == shown
