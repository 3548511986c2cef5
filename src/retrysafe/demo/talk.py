"""What coordinator and workers tell each other: lines of JSON over two pipes per worker.

Every worker has pipes of its own, so one that is killed in the middle of a line breaks nobody else's.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple


class Say(StrEnum):
    """What a worker tells while it works."""

    READY = "ready"
    REACHED = "reached"
    PAUSING = "pausing"
    RESUMED = "resumed"
    ENDED = "ended"
    KILLED = "killed"


class How(StrEnum):
    """How a delivery ended."""

    DONE = "done"
    RETRY = "the bank did not answer"
    CONFLICT = "another attempt is running"
    FENCED = "another attempt has taken over"
    UNCERTAIN = "the outcome of an earlier attempt is unknown"
    UNAVAILABLE = "the store did not answer"
    FAILED = "unexpected error"


class Ending(NamedTuple):
    """A worker's last word on one delivery."""

    how: How
    replayed: bool = False
    recognised: bool = False
    retry_after: float = 0.0
    why: str = ""
    told: tuple[str, ...] = ()


def pack(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"


def packed_ending(ending: Ending) -> bytes:
    """An ending as one line."""
    return pack({"say": Say.ENDED, **ending._asdict()})


def ending_of(message: dict[str, Any]) -> Ending:
    """The ending in a message."""
    fields = {name: message[name] for name in Ending._fields}
    return Ending(**fields | {"how": How(fields["how"]), "told": tuple(fields["told"])})


class Lines:
    """Cuts what arrives on a pipe into messages; half a line from a killed worker is never one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]
