"""The faults of a point's processes, compared with the run that did not crash.

Input and output that no instrument sees is noticed by the interpreter's audit events (PEP 578).
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from retrysafe.testing.crashing.places import user_place
from retrysafe.testing.crashing.points import NOWHERE, Call, Ended, Point
from retrysafe.testing.crashing.snapshots import Rows, differences
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


def _describe_connect(arguments: tuple[Any, ...]) -> str | None:
    address = arguments[1]
    return f"a connection to {':'.join(map(str, address[:2])) if isinstance(address, tuple) else address}"


def _describe_open(arguments: tuple[Any, ...]) -> str | None:
    path, _, flags = arguments
    written = isinstance(flags, int) and flags & _WRITES
    if not written or not isinstance(path, str) or path == os.devnull or user_place(None) is NOWHERE:
        return None
    return "a file opened for writing"


def _describe_sqlite(arguments: tuple[Any, ...]) -> str | None:
    if hasattr(arguments[0], "retrysafe_watched"):
        return None
    return "a connection of a sqlite3.connect that was imported by its name: call it as sqlite3.connect"


_EVENTS = {
    "sqlite3.connect/handle": _describe_sqlite,
    "socket.connect": _describe_connect,
    "subprocess.Popen": lambda arguments: f"a process: {arguments[0]}",
    "os.system": lambda arguments: f"a process: {arguments[0]!r}",
    "open": _describe_open,
}


def _by_known_library() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in _KNOWN and not module.startswith(_HERE):
            return True
        frame = frame.f_back
    return False


class Uncrashed(NamedTuple):
    """The run that did not crash."""

    calls: tuple[Call, ...]
    rows: Rows
    ignored: frozenset[tuple[str, str]]
    """Columns that differ from run to run."""


def problems(uncrashed: Uncrashed, point: Point, processes: Sequence[Ended]) -> list[str]:
    """In words; empty when all is well. The process of the point is the one that came to a call "at" it."""
    last = processes[-1]
    subject = next((process for process in processes if process.at is not None), processes[0])
    found = _strays(uncrashed, point, subject)
    hung = [str(one.calls[-1]) if one.calls else "its beginning" for one in processes if one.hung]
    found += [f"a process hung (it was at: {text})" for text in hung]
    if not any(process.hung for process in processes) and not last.settled:
        found.append(f"no retry came to an end: {last.outcome or 'the process died'}")
    found += [process.problem for process in processes if process.problem]
    if last.settled and last.rows is None and not last.problem:
        found.append("the process that looked at the end has died")
    if is_done(last) and last.rows is not None:
        found += differences(uncrashed.rows, last.rows, uncrashed.ignored)
    calls = [call for process in processes for call in process.calls]
    return found + _requests(uncrashed.calls, calls, done=is_done(last))


def is_done(ended: Ended) -> bool:
    return ended.settled and ended.outcome == "done"


def _strays(uncrashed: Uncrashed, point: Point, first: Ended) -> list[str]:
    """The first process must have come to the boundary the way that the uncrashed run did."""
    way = [call.label for call in (*first.way, *([] if first.at is None else [first.at]))]
    expected = [call.label for call in uncrashed.calls[: point.boundary]]
    for number, (was, should) in enumerate(zip(way, expected, strict=False), 1):
        if was != should:
            return [f"not deterministic: boundary {number} was {was!r}, and {should!r} in the uncrashed run"]
    if first.at is None and first.outcome and point.boundary <= len(uncrashed.calls):
        return [f"not deterministic: boundary {point.boundary} was never reached"]
    return []


def _requests(uncrashed: Iterable[Call], found: Iterable[Call], *, done: bool) -> list[str]:
    """Requests beyond the databases must be as many as in the uncrashed run, counting a repeated key once.

    What did not end with a result may have asked for less.
    """
    once, now = _by_label(uncrashed), _by_label(found)
    lines = []
    for label in dict.fromkeys([*once, *now]):
        requests = now.get(label, [])
        asked, expected = _effects(requests), _effects(once.get(label, []))
        if asked > expected or (done and asked < expected):
            lines.append(f"{label}: {asked} effects asked for instead of {expected}")
            for call in requests:
                key = "without a key" if call.key is None else f"with key {call.key[:12]}…"
                lines.append(f"  {key} from {call.place}")
        payloads: dict[str, set[str]] = defaultdict(set)
        for call in requests:
            if call.key is not None:
                payloads[call.key].add(call.payload)
        lines += [f"{label}: one key with different payloads" for known in payloads.values() if len(known) > 1]
    return lines


def _by_label(calls: Iterable[Call]) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.outbound:
            found[call.label].append(call)
    return found


def _effects(requests: Sequence[Call]) -> int:
    keys = {call.key for call in requests if call.key is not None}
    return len(keys) + sum(call.key is None for call in requests)
