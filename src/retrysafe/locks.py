"""Locks that a fork cannot leave locked."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ProcessLock:
    """A lock of which every process has its own: a child must not wait for a thread that only its parent has."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks[os.getpid()].release()
