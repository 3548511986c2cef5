"""One rule decides what `make quick` runs: a test that starts a process or a server, or waits for a clock, is slow.

A test that does so without the marker fails there, and is told to have it.
"""

from __future__ import annotations

import asyncio
import importlib
import platform
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
NO_TIME = 0.05
"""Seconds that are not worth the name of waiting."""

_seen: list[str] = []
_is_listening = False
_folders: tuple[str, ...] = ()
"""With the test, and with all that tests share."""
_unnoted_sleep = time.sleep
_unnoted_asyncio_sleep = asyncio.sleep


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and listen."""
    config.addinivalue_line("markers", "slow: starts a process or a server, or waits for a clock; not in `make quick`")
    importlib.import_module("urllib3")  # it binds a socket, to find out about IPv6: no test is to be slow by that
    platform.processor()  # clients name it, and the first one starts a process to ask for it
    sys.addaudithook(_note)
    time.sleep = _sleep
    asyncio.sleep = _asyncio_sleep  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Listen to the fixtures too."""
    global _is_listening, _folders
    _seen.clear()
    _folders = (str(item.path.parent), str(Path(__file__).parent))
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
    if _seen and "not slow" in item.config.option.markexpr:
        pytest.fail(f"mark it slow: it has used {', '.join(dict.fromkeys(_seen))}", pytrace=False)
    return result


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _is_listening:
        return
    if event in STARTS or (event == "socket.bind" and isinstance(arguments[1], tuple)):
        _seen.append(event)


def _sleep(seconds: float) -> None:
    _note_sleep("time.sleep", seconds)
    _unnoted_sleep(seconds)


async def _asyncio_sleep(delay: float, result: Any = None) -> Any:
    _note_sleep("asyncio.sleep", delay)
    return await _unnoted_asyncio_sleep(delay, result)


def _note_sleep(name: str, seconds: float) -> None:
    """Note a sleep that a test asks for by itself: how long others wait depends on how busy the machine is."""
    if _is_listening and seconds >= NO_TIME and sys._getframe(2).f_code.co_filename.startswith(_folders):
        _seen.append(name)
