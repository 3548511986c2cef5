"""One rule decides what `make quick` runs: a test that starts a process or a server, or waits for a clock, is slow.

A test that does so without the marker fails, and is told to have it.
"""

from __future__ import annotations

import selectors
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
NO_TIME = 0.05
"""Seconds that are not worth the name of waiting."""

_seen: list[str] = []
_is_listening = False
_unnoted_select: Any = selectors.DefaultSelector.select
_unnoted_sleep = time.sleep


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and listen."""
    config.addinivalue_line("markers", "slow: starts a process or a server, or waits for a clock; not in `make quick`")
    sys.addaudithook(_note)
    selectors.DefaultSelector.select = _select  # type: ignore[method-assign]
    time.sleep = _sleep


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Listen to the fixtures too."""
    global _is_listening
    _seen.clear()
    _is_listening = item.get_closest_marker("slow") is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail what is slow and does not say so."""
    global _is_listening
    try:
        result = yield
    finally:
        _is_listening = False
    if _seen:
        pytest.fail(f"mark it slow: it has used {', '.join(dict.fromkeys(_seen))}", pytrace=False)
    return result


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_listening:
        return
    if event in STARTS or (event == "socket.bind" and isinstance(arguments[1], tuple)):
        _seen.append(event)


def _sleep(seconds: float) -> None:
    """Note a sleep of this thread: those of others are no waiting of the test."""
    if _is_listening and seconds >= NO_TIME and threading.current_thread() is threading.main_thread():
        _seen.append("time.sleep")
    _unnoted_sleep(seconds)


def _select(self: Any, timeout: float | None = None) -> Any:
    """An event loop that waits for nothing but the time."""
    ready = _unnoted_select(self, timeout)
    waited = _is_listening and not ready and timeout is not None and timeout >= NO_TIME
    if waited and threading.current_thread() is threading.main_thread():
        _seen.append("a timer of the event loop")
    return ready
