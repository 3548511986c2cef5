"""The audit of what operators change: one JSON line before a change and one after, on disk before we go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Audit(Protocol):
    """Is given every entry before the change it announces, and again after it; raising keeps the change from happening.

    An entry's ``audit`` is "intent" or "outcome", and its ``id`` is the same in both.
    """

    def __call__(self, entry: Mapping[str, Any], /) -> None: ...


class AuditFile:
    """Appends entries to a file as JSON lines, each on disk when the call returns."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, entry: Mapping[str, Any], /) -> None:
        """Append one line."""
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
            rest = b"\n" + line if self._is_torn(descriptor) else line
            while rest:  # a full disk takes a part, and refuses the next one
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(self._path.absolute().parent)

    def _is_torn(self, descriptor: int) -> bool:
        """Whether a crash has cut the last line short: it must not swallow this one."""
        size = os.fstat(descriptor).st_size
        return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _sync_folder(folder: Path) -> None:
    """A new file survives a crash only when its folder's entry does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
