"""The messages of coordinator and workers: lines of JSON over two pipes per worker.

Every worker has pipes of its own, so one that is killed in the middle of a line breaks nobody else's. What a worker
says of an attempt carries the attempt's number; so a worker may be busy with several, as one that serves an API is.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple

Message = dict[str, Any]


class Say(StrEnum):
    """The kind of a worker's message; READY, KILLED and COPIED are of no attempt."""

    READY = "ready"
    REACHED = "reached"
    PAUSING = "pausing"
    RESUMED = "resumed"
    DYING = "dying"
    RECOGNISED = "recognised"
    TAKEOVER = "takeover"
    FENCED = "fenced"
    ENDED = "ended"
    KILLED = "killed"
    COPIED = "copied"


class How(StrEnum):
    """The end of an attempt for its caller."""

    DONE = "done"
    RETRY = "the bank did not answer"
    BROKEN = "the connection broke"
    TIMEOUT = "no answer in time"
    CONFLICT = "another attempt is running"
    UNCERTAIN = "the outcome of an earlier attempt is unknown"
    UNAVAILABLE = "the store did not answer"
    FAILED = "unexpected error"


class Ending(NamedTuple):
    """The answer to an attempt, or that there was none."""

    how: How
    replayed: bool = False
    retry_after: float = 0.0
    why: str = ""


def pack(message: Message) -> bytes:
    """A message as one line."""
    return json.dumps(message).encode() + b"\n"


def ending_of(message: Message) -> Ending:
    """The ending in a message."""
    fields: Message = {name: message[name] for name in Ending._fields}
    fields["how"] = How(fields["how"])
    return Ending(**fields)


class Lines:
    """Cuts what arrives on a pipe into messages; half a line from a killed worker is never one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]
