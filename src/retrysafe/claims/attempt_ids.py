"""Attempt ids: random digits, and behind them the machine and the process of the attempt, as operators need to know.

An id such as "9f86d081884c7d659a2feaa0@web-3:4711" is compared as a whole; nothing but what operators see is read from
it. It is written with every claim, so that a takeover names the process that runs now, in every store alike.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from retrysafe import runtime

LONGEST = 64
"""Characters of an id: as many as the narrowest column has."""
_RANDOM = 12
"""Random bytes of an id: two attempts at one key never have the same."""


class Worker(NamedTuple):
    """The process that runs an attempt."""

    host: str
    pid: int


def new() -> str:
    """The id of a new attempt of this process."""
    return os.urandom(_RANDOM).hex() + _worker(runtime.pid)


def worker_of(attempt: str) -> Worker | None:
    """The process of an attempt; None for an id of an earlier retrysafe, or a foreign one, which does not say."""
    _, at, named = attempt.partition("@")
    host, _, pid = named.rpartition(":")
    return Worker(host, int(pid)) if at and host and pid.isascii() and pid.isdigit() else None


@lru_cache(maxsize=1)
def _worker(pid: int) -> str:
    """A process as it is written: of a long host name its end, where those of one deployment differ."""
    number = f":{pid}"
    return f"@{_host()[-(LONGEST - 2 * _RANDOM - 1 - len(number)) :]}{number}"


def _host() -> str:
    """The name of the machine or container, without its domain, and with nothing but letters, digits, - and _."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    plain = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-_") else "-" for mark in name.split(".")[0])
    return plain or "unnamed"
