"""The line of the user's code that makes a call."""

from __future__ import annotations

import asyncio
import linecache
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import retrysafe
from retrysafe.testing.crashing.points import NOWHERE, Place

_OURS = str(Path(retrysafe.__file__).parent)
_BOTTOM = str(Path(__file__).with_name("working.py"))
"""Calls the operation: what is below it on the stack has been there before."""
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
)


def user_place(task: asyncio.Task[Any] | None) -> Place:
    """The innermost line that is neither ours nor a library's; in a task of a library, where the user's task waits."""
    found = _innermost(sys._getframe(1))
    if found is NOWHERE and "greenlet" in sys.modules:
        parent = sys.modules["greenlet"].getcurrent().parent
        found = _innermost(None if parent is None else parent.gr_frame)
    if found is NOWHERE and task is not None:
        found = _awaiting(task)
    return found


def _innermost(frame: FrameType | None) -> Place:
    while frame is not None and frame.f_code.co_filename != _BOTTOM:
        if is_users(frame.f_code.co_filename):
            return _place(frame)
        frame = frame.f_back
    return NOWHERE


def _awaiting(task: asyncio.Task[Any]) -> Place:
    awaited: Any = task.get_coro()
    found = NOWHERE
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and is_users(frame.f_code.co_filename):
            found = _place(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


@lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Tell whether a file is neither of the standard library, nor installed, nor ours."""
    return not filename.startswith((_OURS, "<frozen", *_LIBRARIES))


@lru_cache(maxsize=256)
def _show(filename: str) -> str:
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return path.name


def _place(frame: FrameType) -> Place:
    filename, line = frame.f_code.co_filename, frame.f_lineno
    return Place(_show(filename), line, linecache.getline(filename, line, frame.f_globals).strip())


def list_modules() -> tuple[str, ...]:
    """The modules that this process has imported, but for the user's own, which may do things when imported."""
    files = ((name, getattr(module, "__file__", None)) for name, module in tuple(sys.modules.items()))
    return tuple(name for name, file in files if name != "__main__" and (file is None or not is_users(file)))


def is_within(package: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == package:
            return True
        frame = frame.f_back
    return False
