"""The audit of what operators change: one JSON line before a change and one after, on disk before the next step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from retrysafe.admin.durable_lines import appending, write_all


class Audit(Protocol):
    """Called with an intent before each change and an outcome after it. If it raises on an intent, nothing is changed.

    An entry's ``audit`` is "intent" or "outcome", and its ``id`` is the same in both.
    """

    def __call__(self, entry: Mapping[str, Any], /) -> None: ...


class AuditFile:
    """Appends entries to a file as JSON lines, each on disk when the call returns."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, entry: Mapping[str, Any], /) -> None:
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with appending(self._path, 0o640) as file:
            write_all(file, b"\n" + line if _is_torn(file) else line)


def _is_torn(file: int) -> bool:
    """Tell whether a crash has cut the last line short: it is kept as evidence, and entries go on below."""
    size = os.lseek(file, 0, os.SEEK_END)
    if size == 0:
        return False
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) != b"\n"
