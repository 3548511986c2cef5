"""The progress of long commands, on a line of the terminal that goes away when they end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 0.5
"""Seconds from one line to the next; a command that is faster shows none."""


@contextmanager
def show_progress(tell: Callable[[], str]) -> Iterator[None]:
    """Show on stderr, while the block runs, what ``tell`` returns; nothing if stderr is not a terminal.

    The cursor stays at the beginning of the line, so that messages of the command overwrite it.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    ended, began = threading.Event(), time.monotonic()

    def show() -> None:
        while not ended.wait(EVERY):
            print(f"\x1b[2K{tell()}, {time.monotonic() - began:.0f} s", end="\r", file=sys.stderr, flush=True)
        print("\x1b[2K", end="", file=sys.stderr, flush=True)

    showing = threading.Thread(target=show, name="retrysafe-progress", daemon=True)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()
