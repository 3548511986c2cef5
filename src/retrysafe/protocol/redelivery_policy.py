"""The decisions of an inbox: whether a message is tried, and the reaction to the end of a try. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from retrysafe.protocol.backoff import Backoff


class MessageOutcome(StrEnum):
    """The outcome of a message.

    Handled: its effect and its record are committed. Duplicate: it was handled before, and not again. Dead: it was
    given up, and lies in the dead letters. Passed: it has no id, and its boundary lets such messages through unguarded.
    Busy: another consumer is handling it. Gap: what comes before it has not been applied. Failed: its handler raised,
    and it is tried again. Stalled: what its handler needs cannot be reached, which spends no attempt. Behind: it was
    not tried, because one before it in its lane has to come again. Suspect: an attempt at it ended with its consumer,
    and it is to be tried with no other in progress; returned only with ``alone=False``.
    """

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    PASSED = "passed"
    BUSY = "busy"
    GAP = "gap"
    FAILED = "failed"
    STALLED = "stalled"
    BEHIND = "behind"
    SUSPECT = "suspect"


DONE = (MessageOutcome.HANDLED, MessageOutcome.DUPLICATE, MessageOutcome.PASSED)
"""Outcomes after which a message does not come again, and needs no person."""


class HandleResult(NamedTuple):
    """The outcome of a message, and the time at which it has to come again.

    ``again``: seconds after which it has to be delivered again; None: it is settled, and its ack is due.
    """

    became: MessageOutcome
    again: float | None = None
    error: str = ""

    @property
    def settled(self) -> bool:
        """True if the broker may forget it."""
        return self.again is None


class Counts(NamedTuple):
    """Attempts at a message that were begun, those that came to an end, and whether it lies in the dead letters.

    ``age``: seconds since the last of them was noted.
    """

    started: int = 0
    finished: int = 0
    dead: bool = False
    age: float = 0.0


class RetryLimits(NamedTuple):
    """The limits of a message's attempts: those that end by an error, that end with their process, that meet a gap.

    ``grace``: seconds after which an attempt that has neither begun its work nor been withdrawn is over.
    """

    max_attempts: int = 5
    max_crashes: int = 3
    max_gaps: int = 10
    backoff: Backoff = Backoff(base=0.5, cap=60.0)
    grace: float = 2.0


SUSPECT = "An attempt at it ended with its consumer."
KILLS = "Every attempt to handle it ended with the end of its consumer."


def crash_pause(counts: Counts, limits: RetryLimits) -> float | None:
    """Tell whether a message was begun so often without an end that it seems to kill its consumers; None: it does not.

    Else the seconds to wait before that is certain: deliveries of one message that come together are begun together,
    and withdrawn when it turns out that one of them is being handled.
    """
    if counts.started - counts.finished < limits.max_crashes:
        return None
    return max(0.0, limits.grace - counts.age)


def is_suspect(counts: Counts) -> bool:
    """Tell whether a message may have killed a consumer; so may whatever was being handled beside it."""
    return counts.started > counts.finished


def after_failure(counts: Counts, limits: RetryLimits, chance: float, *, gap: bool) -> float | None:
    """Seconds until a message is tried again whose attempt has just ended by an error; None: it is given up.

    ``chance`` is random in [0, 1). Half of the pause is certain, so that a failing message never storms.
    """
    most = limits.max_gaps if gap else limits.max_attempts
    if counts.finished >= most:
        return None
    return limits.backoff.delay(counts.finished - 1, 0.5 + chance / 2)
