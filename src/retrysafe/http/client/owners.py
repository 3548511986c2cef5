"""The processes that are alive, told by locks that the system releases when a process dies, however it dies."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from pathlib import Path

from retrysafe import runtime

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: what a process holds is free when its time is up
    fcntl = None  # type: ignore[assignment]


class JournalOwner:
    """A journal of this process, as others see it: a locked file beside it, gone when the process is."""

    def __init__(self, journal: Path) -> None:
        _sweep(journal)
        self.pid = runtime.pid
        self._file: int | None = None
        while self._file is None:
            self.name = os.urandom(8).hex()
            self._path = _path(journal, self.name)
            self._file = _lock_new(self._path)

    def close(self) -> None:
        """Say that it holds nothing any more. In a forked child, let the parent's lock be its own."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if self.pid == runtime.pid:
                self._path.unlink(missing_ok=True)


def is_alive(journal: Path, name: str) -> bool:
    """Tell whether the process of that name may still be running; what it left behind is removed if not."""
    path = _path(journal, name)
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        _lock(file)
    except OSError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)


def _sweep(journal: Path) -> None:
    """Remove what processes have left behind that ended without a word."""
    for path in journal.parent.glob(f"{glob.escape(journal.name)}.owner-*"):
        is_alive(journal, path.name.rpartition("-")[2])


def _lock_new(path: Path) -> int | None:
    """A new locked file; None if it was swept away before it was locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    with suppress(OSError):
        if fcntl is not None:
            _lock(file)
        if path.exists():
            return file
    os.close(file)
    path.unlink(missing_ok=True)
    return None


def _lock(file: int) -> None:
    """Lock a file, or raise `OSError` because another has it, or because that cannot be told."""
    if fcntl is None:  # pragma: no cover - Windows
        raise OSError("no locks")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _path(journal: Path, name: str) -> Path:
    return journal.with_name(f"{journal.name}.owner-{name}")
