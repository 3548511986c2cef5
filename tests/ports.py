"""Ports for servers that a test starts, stops and starts again: nobody else is given one of them in between.

They lie below those that a kernel gives to connections and to sockets bound to port 0 (from 32768 on Linux), as do
those 10,000 above them, where the nodes of a Redis cluster meet. Every worker of a run has a stretch of its own, and
so have the tests that a test runs.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, STRETCHES, LENGTH = 19_000, 16, 225
STRETCH = "RETRYSAFE_TEST_STRETCH"
_stretch = int(os.environ.get(STRETCH) or os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % STRETCHES
_calls = itertools.count(os.getpid())  # two runs on one machine begin at different places


def stretch_within() -> dict[str, str]:
    """Return the variables that make the tests of a child use other ports than this process."""
    return {STRETCH: str((_stretch + STRETCHES // 2) % STRETCHES)}


def free_port(beside: int = 0) -> int:
    """A port of the loopback on which nobody listens, nor on so many beside it."""
    start = FIRST + _stretch * LENGTH
    for call in itertools.islice(_calls, LENGTH):
        port = start + call * (1 + beside) % (LENGTH - beside)
        if all(_is_free(port + further) for further in range(1 + beside)):
            return port
    raise AssertionError("no port is free")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
