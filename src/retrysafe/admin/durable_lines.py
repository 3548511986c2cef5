"""Appending to a file that several processes share: one writer at a time, on disk before the lock is released."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks: there, one writer per file
    fcntl = None  # type: ignore[assignment]

_NOT_FOR_FOLDERS = {errno.EACCES, errno.EBADF, errno.EINVAL, errno.EISDIR}


@contextmanager
def appending(path: Path, mode: int) -> Iterator[int]:
    """Open a file under an exclusive lock for the block; what the block writes is on disk when it ends.

    Judge the end of the file only under this lock: without it, a partial last line may belong to a running
    writer. ``mode`` is the permission of a new file.

    Raises ``OSError`` when what the block wrote may not outlive a crash.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), mode)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_size == 0:
            _sync_folder(path.parent)  # first, so that a file with a line in it survives a crash
        yield file
        os.fsync(file)
    finally:
        os.close(file)  # also releases the lock


def write_all(file: int, data: bytes) -> None:
    """Write all of it: on a full disk, write() may store a part and fail on the next call."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_folder(folder: Path) -> None:
    """A new file survives a crash only when its folder's entry does, where folders can be synchronised."""
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
