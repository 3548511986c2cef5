"""Input and output that no instrument sees, noticed by the interpreter's audit events (PEP 578)."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from retrysafe.testing.crashing.places import user_place
from retrysafe.testing.crashing.points import NOWHERE
from retrysafe.testing.crashing.tracing import Tracer

_KNOWN = ("asyncpg", "psycopg", "pymysql", "asyncmy", "aiosqlite", "redis", "smtplib", "sqlalchemy", "retrysafe")
"""Libraries that connect outside the calls that are watched."""
_HERE = __name__.rpartition(".")[0]
_WRITES = os.O_WRONLY | os.O_RDWR


def watch_for_the_unseen(tracer: Tracer) -> None:
    """Tell of connections, processes and written files that are part of no call. Cannot be undone in this process."""
    noticing = False

    def notice(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal noticing
        if not tracer.watching or noticing or event not in _EVENTS or tracer.crossing:
            return
        noticing = True
        try:
            what = _EVENTS[event](arguments)
            if what is not None and not _by_known_library():
                tracer.tell("unseen", f"{what} ({user_place(tracer.task)})")
        finally:
            noticing = False

    sys.addaudithook(notice)


def _connected(arguments: tuple[Any, ...]) -> str | None:
    address = arguments[1]
    return f"a connection to {':'.join(map(str, address[:2])) if isinstance(address, tuple) else address}"


def _opened(arguments: tuple[Any, ...]) -> str | None:
    path, _, flags = arguments
    written = isinstance(flags, int) and flags & _WRITES
    if not written or not isinstance(path, str) or path == os.devnull or user_place(None) is NOWHERE:
        return None
    return "a file opened for writing"


def _connected_to_sqlite(arguments: tuple[Any, ...]) -> str | None:
    if hasattr(arguments[0], "retrysafe_watched"):
        return None
    return "a connection of a sqlite3.connect that was imported by its name: call it as sqlite3.connect"


_EVENTS = {
    "sqlite3.connect/handle": _connected_to_sqlite,
    "socket.connect": _connected,
    "subprocess.Popen": lambda arguments: f"a process: {arguments[0]}",
    "os.system": lambda arguments: f"a process: {arguments[0]!r}",
    "open": _opened,
}


def _by_known_library() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in _KNOWN and not module.startswith(_HERE):
            return True
        frame = frame.f_back
    return False
