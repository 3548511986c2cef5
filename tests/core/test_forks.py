"""Forks wait for uses, in turn, for a bounded time; an exception in a hook neither shuts the gate nor is lost."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from retrysafe import forks


def _forked() -> int:
    """The exit code of a child that does nothing."""
    if (child := os.fork()) == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_that_ends_the_wait_leaves_nothing_open_and_no_gate_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    is_used, may_end, done = threading.Event(), threading.Event(), list[str]()

    def use() -> None:
        with forks.Use():
            is_used.set()
            may_end.wait(60)

    def told(_: float) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=use)
    thread.start()
    assert is_used.wait(60)
    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=told))
    monkeypatch.setattr(forks, "_before", [lambda: done.append("closed")])
    assert _forked() == 0
    assert done == ["closed"]
    assert not forks._forking
    may_end.set()
    thread.join()


@pytest.mark.slow
def test_forks_of_several_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on while the other closes what is idle would leave its child what is half closed."""
    other, waited = threading.get_ident() + 1, list[bool]()
    forks._forking[other] = forks._Fork()

    def passing(_: float) -> None:
        waited.append(other in forks._forking)
        forks._forking.pop(other)

    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=passing))
    assert _forked() == 0
    assert waited == [True]


def test_a_gate_that_nobody_opened_opens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception may have ended the hook that opens it."""
    monkeypatch.setattr(forks, "PATIENCE", 0.0)
    other = threading.get_ident() + 1
    forks._forking[other] = forks._Fork()
    with forks.Use() as use:
        assert forks.begun() == [use]
    assert other not in forks._forking


def test_a_child_finds_out_by_itself_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception may have ended the hook that tells it."""
    done: list[int] = []
    monkeypatch.setattr(forks, "_in_child", [lambda: done.append(os.getpid())])
    monkeypatch.setattr(forks, "_process", 0)
    with forks.Use():
        assert done == [os.getpid()]
    with forks.Use():
        assert done == [os.getpid()]


@pytest.mark.slow
def test_a_fork_within_a_fork_opens_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def again() -> None:
        if not seen:
            seen.append(True)
            assert _forked() == 0
            seen.append(bool(forks._forking))

    monkeypatch.setattr(forks, "_before", [again])
    assert _forked() == 0
    assert seen == [True, True]
    assert not forks._forking


def test_uses_that_were_cut_off_are_forgotten() -> None:
    use = forks.Use()
    use.begin()
    del use
    gc.collect()
    assert forks.begun() == []
    assert not forks._uses


def test_the_garbage_collector_may_use_something_in_a_thread_that_waits_for_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it closes may be the file that the fork waits for; here it comes between any two calls of that thread."""
    monkeypatch.setattr(forks, "PATIENCE", 0.001)
    other, collected = threading.get_ident() + 1, list[str]()
    forks._forking[other] = fork = forks._Fork()
    fork.until = math.inf

    def collect(_: object, event: str, __: object) -> None:
        sys.setprofile(None)
        with forks.Use():
            collected.append(event)
        sys.setprofile(collect)

    def use() -> None:
        sys.setprofile(collect)
        with forks.Use():
            sys.setprofile(None)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(60)
    del forks._forking[other]
    assert not thread.is_alive()
    assert collected


@pytest.mark.slow
def test_a_signal_handler_may_fork() -> None:
    codes: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: codes.append(_forked()))
    try:
        with forks.Use():
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert codes == [0]
