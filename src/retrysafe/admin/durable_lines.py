"""Appending to a file that several processes share: one writer at a time, and on disk before it goes on."""

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
    """The descriptor of a file that nobody else appends to meanwhile; what the block writes is on disk behind it.

    Only here can the file's end be judged: without the lock, a last line that is not whole may be one that somebody
    is writing. ``mode`` is the permission of a file that is made.

    Raises ``OSError`` when what the block wrote may not outlive a crash.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), mode)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_size == 0:
            _sync_folder(path.parent)  # first, so that whoever finds a line in the file knows that its name will last
        yield file
        os.fsync(file)
    finally:
        os.close(file)  # which also lets the lock go


def write_all(file: int, data: bytes) -> None:
    """Write all of it: a full disk takes a part, and refuses the next one."""
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
